"""Reads from a tensor's JSON parameters where in shared memory it lies.

Source: Triton ``http_server.cc`` (``CheckSharedMemoryData``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bireme.wire.http.json_text import ABSENT, wrong_member
from bireme.wire.regions import Place


def read_place(owner: str, parameters: Any) -> Place:
    """Return the place that ``parameters`` (a JSON object) of ``owner`` name; whether there's such a place is the regions' to say.

    Raises:
        InvalidArgument: a member is absent or of the wrong type.
    """
    region = parameters["shared_memory_region"]
    if type(region) is not str:
        raise wrong_member("shared_memory_region", owner, "a string", region)
    offset = parameters.get("shared_memory_offset", 0)
    byte_size = parameters.get("shared_memory_byte_size", ABSENT)
    for key, value in (("shared_memory_offset", offset), ("shared_memory_byte_size", byte_size)):
        if type(value) is not int or value < 0:
            raise wrong_member(key, owner, "an unsigned integer", value)
    return Place(region, offset, byte_size)


def input_places(items: Iterable[dict[str, Any]]) -> Iterator[Place]:
    """Yield the places of those inputs that lie in shared memory; all have been found good."""
    for item in items:
        parameters = item.get("parameters")
        if parameters and "shared_memory_region" in parameters:
            yield read_place(item["name"], parameters)
