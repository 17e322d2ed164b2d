"""What a user writes for a model's inputs, turned into tensors that fit the model.

The forms, for a model whose config is at hand:

    NAME=VALUE          VALUE is JSON (``[1, 2, 3]``, ``0.5``, ``"text"``), plain text for a string input, or a file
    NAME=@FILE, FILE    ``.npy``; a picture (resized to the input's shape); ``.json``: a list for the one input, an
                        object of inputs, or a whole v2 request; anything else: the bytes of a string input
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bireme.cli import pictures
from bireme.types import Array, InvalidArgument, Tensor, datatypes
from bireme.wire import bfloat16


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input as the model's config declares it."""

    name: str
    datatype: str
    """Protocol name."""
    dims: tuple[int, ...]
    """Without the batch dimension; -1 is any size."""
    layout: str = "FORMAT_NONE"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the client needs to know of a model."""

    name: str
    max_batch_size: int
    inputs: Mapping[str, InputSpec]
    outputs: tuple[str, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """Read the JSON form of a ModelConfig."""
        inputs = [
            InputSpec(
                each["name"],
                datatypes.from_config_name(each["data_type"]),
                tuple(int(dim) for dim in each["dims"]),
                each.get("format", "FORMAT_NONE"),
            )
            for each in config["input"]
        ]
        return cls(
            config["name"],
            config["max_batch_size"],
            {each.name: each for each in inputs},
            tuple(each["name"] for each in config["output"]),
        )


@dataclass(slots=True)
class GivenInputs:
    """The inputs collected from the command line, one list of arrays per input: several make a batch."""

    spec: ModelSpec
    scaling: str = "auto"
    size: tuple[int, int] | None = None
    """Width and height of pictures, where the input leaves them open."""
    arrays: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, word: str) -> None:
        """Take one word of the command line.

        Raises:
            InvalidArgument: it names no input, or its value or file does not fit; says what is expected.
        """
        name, equals, value = word.partition("=")
        if equals and not (name not in self.spec.inputs and _is_file(Path(word))):
            self._add_value(self._input(name), value)
        else:
            self._add_file(None, Path(word))

    def tensors(self) -> list[Tensor]:
        """Return one tensor per given input; several arrays of one input become the rows of a batch."""
        return [self._tensor(self.spec.inputs[name], arrays) for name, arrays in self.arrays.items()]

    def _add_value(self, spec: InputSpec, text: str) -> None:
        path = Path(text.removeprefix("@"))
        if text.startswith("@") or (path.suffix and _is_file(path)):
            self._add_file(spec, path)
        elif spec.datatype == "BYTES":
            self._append(spec, _text_values(text))
        else:
            self._append(spec, _json_values(spec, text, where=f"input '{spec.name}'"))

    def _add_file(self, spec: InputSpec | None, path: Path) -> None:
        if not _is_file(path):
            raise InvalidArgument(
                f"'{path}' is neither a file nor NAME=VALUE; inputs of '{self.spec.name}': {self._known()}"
            )
        if path.suffix == ".json":
            self._add_json(spec, path)
            return
        spec = spec or self._only_input(path)
        if path.suffix == ".npy":
            self._append(spec, _load_npy(spec, path))
        elif spec.datatype == "BYTES":
            self._append(spec, np.array(path.read_bytes(), np.object_))
        else:
            rows = pictures.load(path, spec.dims, spec.datatype, spec.layout, self.scaling, self.size)
            self._append(spec, rows)

    def _add_json(self, spec: InputSpec | None, path: Path) -> None:
        try:
            content = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError as error:
            raise InvalidArgument(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
        if spec is not None or not isinstance(content, dict):
            spec = spec or self._only_input(path)
            self._append(spec, _as_array(spec, content, where=str(path)))
        elif isinstance(content.get("inputs"), list) and "inputs" not in self.spec.inputs:
            for each in content["inputs"]:
                self._add_request_input(each, path)
        else:
            for name, values in content.items():
                named = self._input(name)
                self._append(named, _as_array(named, values, where=f"{path}: '{name}'"))

    def _add_request_input(self, each: Any, path: Path) -> None:
        """Take one element of ``inputs`` of a v2 request: name, shape and data."""
        if not isinstance(each, dict) or "name" not in each or "data" not in each:
            raise InvalidArgument(
                f"{path}: each of 'inputs' needs 'name', 'shape' and 'data', found {each!r:.80}"
            )
        spec = self._input(each["name"])
        array = _as_array(spec, each["data"], where=f"{path}: '{spec.name}'")
        shape = each.get("shape", list(array.shape))
        if prod(shape) != array.size:
            raise InvalidArgument(
                f"{path}: input '{spec.name}' has shape {shape}, but {array.size} value(s) in 'data'"
            )
        self._append(spec, array.reshape(shape))

    def _append(self, spec: InputSpec, array: Array) -> None:
        self.arrays.setdefault(spec.name, []).append(array)

    def _tensor(self, spec: InputSpec, arrays: list[Array]) -> Tensor:
        if self.spec.max_batch_size == 0:
            if len(arrays) > 1:
                raise InvalidArgument(
                    f"input '{spec.name}' is given {len(arrays)} times, but model '{self.spec.name}' does not batch"
                )
            return _wrap(spec, fit(arrays[0], spec.dims))
        rows = [fit(array, spec.dims, batched=True) for array in arrays]
        shapes = {row.shape[1:] for row in rows}
        if len(shapes) > 1:
            raise InvalidArgument(
                f"input '{spec.name}' is given {len(arrays)} times with different shapes, which cannot share a "
                f"batch: {', '.join(map(str, sorted(shapes)))}"
            )
        return _wrap(spec, rows[0] if len(rows) == 1 else np.concatenate(rows))

    def _input(self, name: str) -> InputSpec:
        found = self.spec.inputs.get(name)
        if found is None:
            raise InvalidArgument(f"model '{self.spec.name}' has no input '{name}'; it has: {self._known()}")
        return found

    def _only_input(self, path: Path) -> InputSpec:
        if len(self.spec.inputs) != 1:
            raise InvalidArgument(
                f"model '{self.spec.name}' has several inputs ({self._known()}): say which one is meant, NAME=@{path}"
            )
        return next(iter(self.spec.inputs.values()))

    def _known(self) -> str:
        return ", ".join(
            f"{spec.name} {spec.datatype}[{','.join(map(str, spec.dims))}]"
            for spec in self.spec.inputs.values()
        )


def fit(array: Array, dims: Iterable[int], *, batched: bool = False) -> Array:
    """Return ``array`` in the shape that a model with ``dims`` takes, with a batch dimension in front if ``batched``.

    A missing batch dimension is added, and as many values as the dims hold are reshaped to them; a flat list of several
    times as many is a batch. Anything else is left as it is, for the server to refuse with its own words.
    """
    dims = tuple(dims)
    if batched and _matches(array.shape, dims):
        return array[np.newaxis]
    if _matches(array.shape[1:] if batched else array.shape, dims) and (array.ndim or not batched):
        return array
    if all(dim > 0 for dim in dims) and array.size:
        if array.size == prod(dims):
            return array.reshape((1, *dims) if batched else dims)
        if batched and array.ndim == 1 and array.size % prod(dims) == 0:
            return array.reshape(-1, *dims)
    if array.ndim == 0:  # a lone value for a variable dimension
        return array.reshape((1,) * (len(dims) + batched))
    return array


def _matches(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(dim in {-1, size} for size, dim in zip(shape, dims, strict=True))


def _wrap(spec: InputSpec, array: Array) -> Tensor:
    return Tensor.from_numpy(spec.name, array, spec.datatype)


def _is_file(path: Path) -> bool:
    """Whether there is such a file; values may be longer than any path."""
    try:
        return path.is_file()
    except OSError:
        return False


def _text_values(text: str) -> Array:
    """JSON text or a list of texts; what is no JSON is the text itself."""
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        values = text
    if not isinstance(values, str | list):
        values = text
    return np.array(values, np.object_)


def _json_values(spec: InputSpec, text: str, where: str) -> Array:
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InvalidArgument(
            f"{where}: expected {spec.datatype} values as JSON or a file, found {text!r}"
        ) from None
    return _as_array(spec, values, where)


def _as_array(spec: InputSpec, values: Any, where: str) -> Array:
    """Return JSON values as an array of the input's data type."""
    if spec.datatype == "BYTES":
        return np.array(values, np.object_)
    try:
        plain = np.array(values)
        if spec.datatype == "BF16":
            return bfloat16.from_float64(np.atleast_1d(plain.astype(np.float64))).reshape(plain.shape)
        wanted = datatypes.NUMPY_DTYPES[spec.datatype]
        if plain.dtype.kind not in "biuf" or (wanted.kind in "iu" and plain.dtype.kind == "f"):
            raise ValueError("not such numbers")
        return np.array(values, wanted)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(
            f"{where}: expected {spec.datatype} values, found {values!r:.80} ({error})"
        ) from None


def _load_npy(spec: InputSpec, path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise InvalidArgument(f"{path}: not a .npy file: {error}") from None
    if spec.datatype != "BYTES" and array.dtype.kind not in "biuf":
        raise InvalidArgument(f"{path}: input '{spec.name}' takes {spec.datatype}, found dtype {array.dtype}")
    return array
