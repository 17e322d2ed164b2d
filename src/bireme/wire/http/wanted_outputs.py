"""Reads from the JSON how a request wants its outputs: which, as JSON or binary, as classes, in shared memory.

Source: Triton ``http_server.cc`` (``ParseJsonTritonIO``, ``ValidateOutputParameter``).
"""

from __future__ import annotations

from typing import Any

from bireme.types import InvalidArgument
from bireme.wire.http.json_text import ABSENT, describe, wrong_member
from bireme.wire.http.region_place import read_place
from bireme.wire.regions import OutputRegion, Regions
from bireme.wire.wanted_outputs import AS_BINARY, AS_JSON, WantedOutput


def read_outputs(items: Any, regions: Regions) -> dict[str, WantedOutput]:
    """Return the outputs that a request lists, in their order.

    An output may be listed again; the first of its entries that asks for something special counts, as in Triton.

    Raises:
        InvalidArgument: a member is absent or of the wrong type.
        NotFound: there's no such shared memory region.
    """
    if type(items) is not list:
        raise wrong_member("outputs", "the request", "an array", items)
    outputs: dict[str, WantedOutput] = {}
    for item in items:
        if type(item) is not dict:
            raise InvalidArgument(f"Unable to parse 'outputs': expected objects, found {describe(item)}")
        name = item.get("name", ABSENT)
        parameters = item.get("parameters")
        wanted = _read_output_parameters(name, parameters, regions) if type(parameters) is dict else AS_JSON
        if type(name) is not str:
            raise wrong_member("name", f"output {len(outputs)}", "a string", name)
        if outputs.get(name, AS_JSON) is AS_JSON:
            outputs[name] = wanted
    return outputs


def _read_output_parameters(name: Any, parameters: dict[str, Any], regions: Regions) -> WantedOutput:
    binary = parameters.get("binary_data", False)
    if type(binary) is not bool:
        raise wrong_member("binary_data", f"output '{name}'", "a boolean", binary)
    if "shared_memory_region" in parameters:
        _check_alone(name, parameters)
        place = read_place(f"output '{name}'", parameters)
        return WantedOutput(region=OutputRegion(*place, regions.slice(*place)))
    classification = parameters.get("classification", 0)
    if classification == 0 and type(classification) is int:
        return AS_BINARY if binary else AS_JSON
    if type(classification) is not int or classification < 0:
        raise InvalidArgument(
            f"Unable to set 'classification': output '{name}' expects an unsigned integer, found "
            f"{describe(classification)}"
        )
    return WantedOutput(binary=binary, classification=classification)


def _check_alone(name: Any, parameters: dict[str, Any]) -> None:
    for other in ("classification", "binary_data"):
        if parameters.get(other, False) is not False:
            raise InvalidArgument(
                f"Output can't set both 'shared_memory_region' and '{other}': output '{name}' does"
            )
