"""Small PyTorch models in all the ways in which people save them, and a way to open them as the engine does.

Only for tests of `tests/frameworks`: torch is imported with this module, as the backend imports it.
"""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bireme.backends.interface import ModelContext
from bireme.backends.pytorch.backend import PyTorchBackend
from bireme.backends.pytorch.runtime import torch
from bireme.config import ModelConfig, parse_text
from bireme.config.instance_groups import normalise_instance_groups
from bireme.types import Array
from opened_model import OpenedModel

TORCHSCRIPT = "1/model.pt"
EXPORTED = "1/model.pt2"
EAGER = "1/model.py"

Tensor = torch.Tensor
Pair = namedtuple("Pair", ["low", "high"])  # noqa: PYI024 - TorchScript compiles this form


class Scale(torch.nn.Module):
    """``x`` FP32[n, 4] → FP32[n, 3], a product with ones."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, size, bias=False)
        with torch.no_grad():
            self.linear.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class AddSub(torch.nn.Module):
    """The sum and the difference."""

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left + right, left - right


class Named(torch.nn.Module):
    def forward(self, x: Tensor) -> Pair:
        return Pair(x - 1, x + 1)


class Dictionaries(torch.nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": batch["a"] + batch["b"], "difference": batch["a"] - batch["b"]}


class Many(torch.nn.Module):
    """As many outputs as rows."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x[index] for index in range(x.size(0))]


class Texts(torch.nn.Module):
    """Each word twice, and its length in bytes."""

    def forward(self, words: list[str]) -> tuple[list[str], Tensor]:
        lengths = [len(word) for word in words]
        return [word + word for word in words], torch.tensor(lengths)


class Scalars(torch.nn.Module):
    """The sum, times a factor, as a scalar, and how many elements there are, as a number."""

    def forward(self, x: Tensor, factor: float, negate: bool = False) -> tuple[Tensor, int]:
        total = x.sum() * factor
        return -total if negate else total, x.numel()


class Optional(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor | None = None, scale: int = 1) -> Tensor:
        return x * scale if y is None else x * scale + y


class Counter(torch.nn.Module):
    """Keeps a sum of all that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.eye(2))
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.total += self.linear(x)
        return self.total


class Recurrent(torch.nn.Module):
    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return x + state, x + state


class Writer(torch.nn.Module):
    """Writes to its input."""

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return x * 2


class Identity(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Same(torch.nn.Module):
    """Returns what it was given, in new memory."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class Transposed(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 0).transpose(0, 1)


class Halves(torch.nn.Module):
    """Two outputs in one piece of memory."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y[:2], y[2:]


class Picky(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.max() > 5):
            raise ValueError("too large")
        return x.double()


class NestedArguments(torch.nn.Module):
    def forward(self, x: Tensor, options: dict[str, Tensor], *, bias: Tensor) -> dict[str, Any]:
        return {"logits": x + bias, "pair": (options["a"] * 2, options["b"] + options["a"])}


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save_torchscript(
    model_dir: Path, module: Any, *, trace: Sequence[Any] = (), file: str = TORCHSCRIPT
) -> Path:
    """Script ``module``, or trace it with the arguments ``trace``."""
    path = _prepare(model_dir / file)
    with _without_warnings():
        scripted = torch.jit.trace(module.eval(), tuple(trace)) if trace else torch.jit.script(module)
        scripted.save(str(path))
    return path


def save_exported(
    model_dir: Path, module: Any, *arguments: Any, dynamic: Any = None, file: str = EXPORTED, **keywords: Any
) -> Path:
    """Export ``module`` with example arguments; ``dynamic`` are its dynamic shapes."""
    path = _prepare(model_dir / file)
    with _without_warnings(), path.open("wb") as target:
        program = torch.export.export(module.eval(), arguments, keywords, dynamic_shapes=dynamic)
        torch.export.save(program, target)
    return path


def save_eager(model_dir: Path, code: str, module: Any = None) -> Path:
    """Write a ``model.py``, and the weights of ``module`` beside it."""
    path = _prepare(model_dir / EAGER)
    path.write_text("import torch\n" + code)
    if module is not None:
        torch.save(module.state_dict(), path.with_suffix(".pt"))
    return path


def _prepare(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def tensors(inputs: str, outputs: str, *, more: str = "") -> str:
    """Write a config; tensors are given as ``name:TYPE:dims``, such as ``x:FP32:-1,4``."""
    return "\n".join([more, *_entries("input", inputs), *_entries("output", outputs)])


def _entries(kind: str, specs: str) -> Iterator[str]:
    for spec in specs.split():
        name, data_type, dims = spec.rsplit(":", 2)
        yield f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: [{dims}] }}'


def parameter(key: str, value: str) -> str:
    return f"parameters {{ key: \"{key}\" value {{ string_value: '{value}' }} }}\n"


def make_config(text: str) -> ModelConfig:
    """Parse a config and fill in what the engine fills in before a backend sees it."""
    config = replace(parse_text(text, "config.pbtxt"), name="m", backend="pytorch")
    return normalise_instance_groups(config)


class OpenModel(OpenedModel):
    """A model of PyTorch's, with one instance or more."""

    def __init__(self, model_dir: Path, text: str = "", *, count: int = 1, **backend_config: str) -> None:
        settings = {key.replace("_", "-"): value for key, value in backend_config.items()}
        ctx = ModelContext("m", 1, model_dir, model_dir / "1", make_config(text), settings)
        super().__init__(PyTorchBackend(), ctx, count=count)

    def execute(self, instance: int = 0, **inputs: Array) -> dict[str, Array]:
        return self.instances[instance].execute(inputs)

    def module(self, instance: int = 0) -> Any:
        """The module that an instance runs."""
        forward = self.instances[instance]._call.forward
        return getattr(forward, "__self__", getattr(forward, "owner", forward))
