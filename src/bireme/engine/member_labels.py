"""Class labels of ensembles: an output without a label file has the labels of the model that makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bireme.config import ModelConfig
from bireme.engine.model_table import ModelTable


class MemberLabels(Mapping[str, Sequence[str]]):
    """The labels of an ensemble's outputs: its own, else those that the composing model has now. Loop thread only.

    Source: Triton ``model_lifecycle.cc`` (labels of ensembles).
    """

    def __init__(self, config: ModelConfig, own: Mapping[str, Sequence[str]], table: ModelTable) -> None:
        assert config.ensemble_scheduling is not None
        self._own = own
        self._table = table
        names = {output.name for output in config.output} - own.keys()
        self._makers = {
            tensor: (step.model_name, step.model_version, output)
            for step in config.ensemble_scheduling.step
            for output, tensor in step.output_map.items()
            if tensor in names
        }

    def __getitem__(self, name: str) -> Sequence[str]:
        if name in self._own:
            return self._own[name]
        model_name, version, output = self._makers[name]
        model = self._table.find(model_name, version)
        if model is None:
            raise KeyError(name)
        return model.labels[output]

    def __iter__(self) -> Iterator[str]:
        return (name for name in (*self._own, *self._makers) if self.get(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
