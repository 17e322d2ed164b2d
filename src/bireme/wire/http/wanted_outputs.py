"""Reads from the JSON how a request wants its outputs: which, as JSON or binary, as classes.

Source: Triton ``http_server.cc`` (``ParseJsonTritonIO``, ``ValidateOutputParameter``).
"""

from __future__ import annotations

from typing import Any, NoReturn

from bireme.types import InferenceRequest, InvalidArgument, Unsupported
from bireme.wire.http.json_text import ABSENT, describe, wrong_member
from bireme.wire.wanted_outputs import AS_BINARY, AS_JSON, WantedOutput

CLIENT_SHARED_MEMORY_UNSUPPORTED = (
    "client shared memory is not supported yet; send tensors in the request, in binary form"
)
"""The answer to a request that names a shared memory region, and to one that registers it."""


def read_outputs(items: Any, request: InferenceRequest) -> dict[str, WantedOutput]:
    """Return the outputs that a request lists, in their order.

    Raises:
        InvalidArgument: a member is absent or of the wrong type, or an output is listed twice.
        Unsupported: an output is to go to shared memory.
    """
    if type(items) is not list:
        raise wrong_member("outputs", "the request", "an array", items)
    outputs: dict[str, WantedOutput] = {}
    for item in items:
        if type(item) is not dict:
            raise InvalidArgument(f"Unable to parse 'outputs': expected objects, found {describe(item)}")
        name = item.get("name", ABSENT)
        parameters = item.get("parameters")
        wanted = _read_output_parameters(name, parameters) if type(parameters) is dict else AS_JSON
        if type(name) is not str:
            raise wrong_member("name", f"output {len(outputs)}", "a string", name)
        if name in outputs:
            raise InvalidArgument(f"{request.id_prefix}output '{name}' already exists in request")
        outputs[name] = wanted
    return outputs


def _read_output_parameters(name: Any, parameters: dict[str, Any]) -> WantedOutput:
    binary = parameters.get("binary_data", False)
    if type(binary) is not bool:
        raise wrong_member("binary_data", f"output '{name}'", "a boolean", binary)
    if "shared_memory_region" in parameters:
        _refuse_region(name, parameters)
    classification = parameters.get("classification", 0)
    if classification == 0 and type(classification) is int:
        return AS_BINARY if binary else AS_JSON
    if type(classification) is not int or classification < 0:
        raise InvalidArgument(
            f"Unable to set 'classification': output '{name}' expects an unsigned integer, found "
            f"{describe(classification)}"
        )
    return WantedOutput(binary=binary, classification=classification)


def _refuse_region(name: Any, parameters: dict[str, Any]) -> NoReturn:
    for other in ("classification", "binary_data"):
        if parameters.get(other, False) is not False:
            raise InvalidArgument(
                f"Output can't set both 'shared_memory_region' and '{other}': output '{name}' does"
            )
    raise Unsupported(CLIENT_SHARED_MEMORY_UNSUPPORTED)
