"""An answer as a table for people, or as the JSON of the v2 protocol for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bireme.cli.targets import Answer
from bireme.types import Array, InferenceResponse, Tensor
from bireme.wire.http import WantedOutputs, encode_infer_response

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MAX_SHOWN_VALUES = 12
_MAX_SHOWN_ROWS = 20
_MAX_SHOWN_CHARACTERS = 80


def to_json(answer: Answer) -> str:
    """Return the response object of the protocol, all tensors as JSON, on one line."""
    version = int(answer.version) if answer.version.isdigit() else -1
    response = InferenceResponse(
        answer.model, version, answer.id, answer.outputs, parameters=dict(answer.parameters) or None
    )
    body = encode_infer_response(response, WantedOutputs())
    while not body.is_complete:
        body.advance()
    return b"".join(body.pieces).decode()


def show(console: Console, answer: Answer, *, is_classified: bool) -> None:
    """Print one table per classified output, or one of all outputs."""
    console.print(
        f"[bold]{answer.model}[/bold] version {answer.version}, {answer.took_ms:.1f} ms", highlight=False
    )
    for key, value in answer.parameters.items():
        console.print(f"  {key} = {value!r}", highlight=False)
    if is_classified:
        for tensor in answer.outputs:
            console.print(_class_table(tensor))
    else:
        console.print(_tensor_table(answer.outputs))


def _class_table(tensor: Tensor) -> Table:
    table = _table(title=tensor.name)
    rows = tensor.to_numpy().reshape(-1, tensor.shape[-1] if tensor.shape else 1)
    for heading in ("row",) * (len(rows) > 1) + ("class", "index", "value"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for number, row in enumerate(rows):
        for element in row:
            value, index, *label = element.decode(errors="replace").split(":", 2)
            cells = [label[0] if label else "", index, value]
            table.add_row(*([str(number)] if len(rows) > 1 else []), *cells)
    return table


def _tensor_table(tensors: list[Tensor]) -> Table:
    table = _table()
    for heading in ("output", "type", "values"):
        table.add_column(heading, overflow="fold")
    for tensor in tensors:
        kind = f"{tensor.datatype}[{','.join(map(str, tensor.shape))}]"
        table.add_row(tensor.name, kind, describe(tensor))
    return table


def describe(tensor: Tensor) -> str:
    """Return the values where they are few, else their range and the first of them."""
    array = tensor.to_numpy()
    if tensor.datatype == "BYTES":
        return _describe_texts(array)
    if tensor.datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    if array.size <= _MAX_SHOWN_VALUES:
        return np.array2string(array, precision=6, separator=", ", max_line_width=70)
    first = ", ".join(f"{value:.6g}" for value in array.reshape(-1)[:4].tolist())
    if array.dtype.kind == "b":
        return f"{first}, …  ({int(array.sum())} of {array.size} true)"
    return (
        f"{first}, …  (min {array.min():.6g}, mean {array.mean(dtype=np.float64):.6g}, max {array.max():.6g})"
    )


def _describe_texts(array: Array) -> str:
    flat = array.reshape(-1)
    lines = []
    for element in flat[:_MAX_SHOWN_ROWS]:
        text = element.decode(errors="backslashreplace")
        lines.append(text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…")
    if len(flat) > _MAX_SHOWN_ROWS:
        lines.append(f"… and {len(flat) - _MAX_SHOWN_ROWS} more")
    return "\n".join(lines)


def _table(title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
