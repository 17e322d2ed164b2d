"""What the openvino backend needs of an ``openvino.Model``, without OpenVINO: ports with names, shapes and types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = Sequence[int] | None
"""-1 is a dynamic dimension; None an unknown rank."""


@dataclass
class FakeDimension:
    length: int

    @property
    def is_dynamic(self) -> bool:
        return self.length < 0

    def get_length(self) -> int:
        return self.length


@dataclass
class FakeRank:
    is_dynamic: bool


class FakeShape(list[FakeDimension]):
    """An ``openvino.PartialShape``."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(map(FakeDimension, shape or ()))
        self.rank = FakeRank(shape is None)
        self.is_static = shape is not None and min(shape, default=0) >= 0

    def to_shape(self) -> list[int]:
        return [dim.length for dim in self]


@dataclass
class FakeNode:
    name: str
    layout: str = "[...]"
    kind: str = "Parameter"
    source: FakeNode | None = None

    def get_type_name(self) -> str:
        return self.kind

    def get_friendly_name(self) -> str:
        return self.name

    def get_layout(self) -> str:
        return self.layout

    def input_value(self, _index: int) -> FakePort:
        assert self.source is not None
        return FakePort(set(), (), node=self.source)

    def get_node(self) -> FakeNode:
        return self


@dataclass
class FakeType:
    name: str

    def get_type_name(self) -> str:
        return self.name


@dataclass
class FakePort:
    """An ``openvino.Output``."""

    names: set[str]
    shape: Shape
    type_name: str = "f32"
    node: FakeNode = field(default_factory=lambda: FakeNode("node"))

    def get_names(self) -> set[str]:
        return self.names

    def get_partial_shape(self) -> FakeShape:
        return FakeShape(self.shape)

    def get_element_type(self) -> FakeType:
        return FakeType(self.type_name)

    def get_node(self) -> FakeNode:
        return self.node


def output_port(names: Iterable[str], shape: Shape, operation: str = "op", layout: str = "[...]") -> FakePort:
    """Return an output that an operation of that name makes."""
    return FakePort(
        set(names), shape, node=FakeNode("Result_1", layout, "Result", FakeNode(operation, kind="Add"))
    )


class FakeModel:
    """An ``openvino.Model`` whose outputs have the shapes that ``infer_shapes`` makes of those of the inputs."""

    def __init__(
        self,
        inputs: list[FakePort],
        outputs: list[FakePort],
        infer_shapes: Callable[[list[Any]], list[Shape]] | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._infer_shapes = infer_shapes

    def reshape(self, shapes: Mapping[int, Sequence[int]]) -> None:
        """Reshape all or nothing, as OpenVINO does."""
        wanted = [shapes.get(index, port.shape) for index, port in enumerate(self.inputs)]
        found = self._infer_shapes(wanted) if self._infer_shapes is not None else wanted
        for port, shape in zip([*self.inputs, *self.outputs], [*wanted, *found], strict=False):
            port.shape = shape
