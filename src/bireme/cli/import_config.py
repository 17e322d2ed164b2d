"""The config that `bireme import` writes: what the model file says, sensible batching, and the reason of each setting.

Pure: configs in, configs and text out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from bireme.config import ModelConfig, to_text
from bireme.config.model_config import ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelOutput
from bireme.config.reshape import model_dims
from bireme.repository.model_files import Format
from bireme.types import InvalidArgument, datatypes

# Rows as small as those of tables cost next to nothing each, so more of them share a run.
_MAX_BATCH_SIZES: Final = ((4 << 10, 64), (64 << 10, 16))
"""Bytes of a row's inputs up to which a run has so many rows."""
_MAX_BATCH_SIZE_OF_LARGE_ROWS: Final = 8
_KNOW_THEIR_BATCH: Final = frozenset({"tensorrt", "python"})
"""Backends whose completed config has the file's own limit, not the server's default: an engine's profile, a model's code."""
_SIZE_OF_UNKNOWN_DIM: Final = 64
_NBYTES_OF_TEXT: Final = 64


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A config and why it is so."""

    config: ModelConfig
    origin: str
    """Where the model came from."""
    batching: str
    """Why ``max_batch_size`` is what it is."""

    def to_text(self) -> str:
        """Return the config file."""
        config = self.config
        sections = [
            f"# Written by `bireme import` from {self.origin}.\n",
            to_text(
                ModelConfig(
                    name=config.name,
                    backend=config.backend,
                    platform=config.platform,
                    default_model_filename=config.default_model_filename,
                )
            ),
            "\n",
            _comment(self.batching),
            to_text(ModelConfig(max_batch_size=config.max_batch_size)) or "max_batch_size: 0\n",
            "\n",
            to_text(ModelConfig(input=config.input, output=config.output)),
        ]
        if config.dynamic_batching is not None:
            sections += ["\n", _comment(_DYNAMIC_BATCHING), "dynamic_batching { }\n"]
        if config.instance_group:
            sections += [
                "\n",
                _comment(_instances(config)),
                to_text(ModelConfig(instance_group=config.instance_group)),
            ]
        return "".join(sections)


_DYNAMIC_BATCHING: Final = (
    "Requests that come while the model is busy share its next run; nobody waits for others. To trade latency for fuller runs: "
    "dynamic_batching { max_queue_delay_microseconds: 500 }"
)


def suggest(completed: ModelConfig, form: Format, origin: str, max_batch_size: int | None) -> Suggestion:
    """Return a config for a model of which the server knows ``completed``.

    ``max_batch_size`` is the user's; None: it follows from the file and the size of its rows.
    """
    if completed.max_batch_size > 0 and max_batch_size == 0:
        completed = _with_batch_as_dim(completed)
        batching = "No batching, as was asked: the batch dimension is one of the tensors' own, and requests run one by one."
    elif completed.max_batch_size == 0:
        batching = (
            "No batching: the first dimension of the inputs and outputs is not a variable one in all of them."
            if form.names_tensors
            else "No batching: the file doesn't say whether it can. With a batch dimension in front of all inputs and outputs, "
            "set it to the most rows that one run may have."
        )
    else:
        own = completed.max_batch_size if form.backend in _KNOW_THEIR_BATCH else 0
        size = max_batch_size or own or _max_batch_size(completed.input)
        completed = replace(completed, max_batch_size=size)
        batching = (
            f"The first dimension of all inputs and outputs is the batch, and left out below: up to {size} "
            f"row{'s' * (size > 1)} in one run."
        )
    return Suggestion(_final(completed, form), origin, batching)


def with_fewer_rows(suggestion: Suggestion, max_rows: int, reason: str) -> Suggestion:
    """Return ``suggestion`` for a model that failed with more rows than ``max_rows``, and why."""
    batching = ModelDynamicBatching() if max_rows > 1 else None
    config = replace(suggestion.config, max_batch_size=max_rows, dynamic_batching=batching)
    text = f"The file declares a batch dimension, but a run with more than {max_rows} row{'s' * (max_rows > 1)} failed: {reason}"
    return replace(suggestion, config=config, batching=text)


def _final(config: ModelConfig, form: Format) -> ModelConfig:
    batches = config.max_batch_size > 1
    is_gpu = form.backend == "tensorrt"
    group = ModelInstanceGroup(count=1, kind="KIND_GPU" if is_gpu else "KIND_CPU")
    return ModelConfig(
        name=config.name,
        backend=form.backend,
        platform=form.platform,
        default_model_filename=config.default_model_filename,
        max_batch_size=config.max_batch_size,
        input=config.input,
        output=config.output,
        dynamic_batching=ModelDynamicBatching() if batches else None,
        instance_group=(group,),
    )


def _with_batch_as_dim(config: ModelConfig) -> ModelConfig:
    def dims_of(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
        return (-1, *model_dims(tensor))

    return replace(
        config,
        max_batch_size=0,
        input=tuple(replace(tensor, dims=dims_of(tensor), reshape=None) for tensor in config.input),
        output=tuple(replace(tensor, dims=dims_of(tensor), reshape=None) for tensor in config.output),
    )


def _max_batch_size(inputs: Iterable[ModelInput]) -> int:
    nbytes = sum(_row_nbytes(tensor) for tensor in inputs)
    return next((size for limit, size in _MAX_BATCH_SIZES if nbytes <= limit), _MAX_BATCH_SIZE_OF_LARGE_ROWS)


def _row_nbytes(tensor: ModelInput) -> int:
    name = datatypes.from_config_name(tensor.data_type)
    num_elements = prod(_SIZE_OF_UNKNOWN_DIM if dim < 0 else dim for dim in tensor.dims)
    return num_elements * datatypes.ITEM_SIZES.get(name, _NBYTES_OF_TEXT)


def _instances(config: ModelConfig) -> str:
    if config.instance_group[0].kind == "KIND_GPU":
        return "One instance on each GPU; more of them overlap copies with computing."
    if config.backend == "python":
        return "One instance, in a process of its own. More of them run side by side, each with memory of its own."
    return (
        "One instance, which uses all cores of the server. More of them share the weights and run side by side: raise count "
        "where one run leaves cores idle."
    )


def _comment(text: str, width: int = 118) -> str:
    """Return ``text`` as lines of comment."""
    lines, line = [], "#"
    for word in text.split():
        if len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "#"
        line += f" {word}"
    return "".join(f"{each}\n" for each in (*lines, line))


def read_tensor(text: str) -> tuple[str, str, tuple[int, ...]]:
    """Return name, data type of configs and dims out of ``NAME:DTYPE:DIMS``, such as ``x:FP32:3,224,-1``.

    Raises:
        InvalidArgument: it is not of this form; says what is expected.
    """
    name, *rest = text.rsplit(":", 2)
    if len(rest) != 2 or not name:
        raise InvalidArgument(f"'{text}': expected NAME:DTYPE:DIMS, such as x:FP32:3,224,224")
    datatype, dims = rest
    wanted = datatype.upper().removeprefix("TYPE_")
    wanted = "BYTES" if wanted == "STRING" else wanted
    if wanted not in datatypes.NUMPY_DTYPES:
        raise InvalidArgument(
            f"'{text}': '{datatype}' is no data type; expected one of {', '.join(datatypes.NUMPY_DTYPES)}"
        )
    return name, datatypes.to_config_name(wanted), read_dims(text, dims)


def read_dims(text: str, dims: str) -> tuple[int, ...]:
    """Return ``3,224,-1`` as numbers; ``text`` is where it comes from.

    Raises:
        InvalidArgument: one is no size.
    """
    try:
        sizes = tuple(int(dim) for dim in dims.strip("[]").split(","))
    except ValueError:
        sizes = ()
    if not sizes or any(size == 0 or size < -1 for size in sizes):
        raise InvalidArgument(
            f"'{text}': '{dims}' are no dims; expected sizes such as 3,224,224, -1 for any size"
        )
    return sizes


def shown(name: str, datatype: str, shape: Sequence[int]) -> str:
    """Return a tensor as people write it: ``x FP32[1,3,224,224]``."""
    return f"{name} {datatype}[{','.join(map(str, shape))}]"
