"""A model that a backend has opened outside of any server, as the engine does it."""

from __future__ import annotations

from typing import Self

from bireme.backends.interface import Backend, ModelContext, Placement
from bireme.engine.batch import BatchPlan, GatherBuffers
from bireme.types import Array, BiremeError, InferenceRequest, Tensor, datatypes


class OpenedModel:
    """Completed, checked, and with instances that are ready to execute; in a ``with`` it is closed behind it."""

    def __init__(self, backend: Backend, ctx: ModelContext, *, count: int = 1) -> None:
        self.loaded = backend.load(ctx)
        try:
            self.config = self.loaded.complete_config(ctx.config)
            self.loaded.check_config(self.config)
            self.instances = [self.loaded.create_instance(Placement(f"m_{index}")) for index in range(count)]
        except BaseException:
            self.loaded.close()
            raise
        self.instance = self.instances[0]

    def execute(self, **inputs: Array) -> dict[str, Array]:
        """Run the first instance."""
        return self.instance.execute(inputs)

    def infer(self, inputs: dict[str, Array]) -> dict[str, Tensor]:
        """Return what a client would see."""
        kinds = {tensor.name: datatypes.from_config_name(tensor.data_type) for tensor in self.config.input}
        given = {name: Tensor.from_numpy(name, array, kinds[name]) for name, array in inputs.items()}
        request = InferenceRequest("m", given, lambda _request, _response: None)
        if self.config.max_batch_size:
            request.batch_size = next(iter(given.values())).shape[0]
        plan = BatchPlan(self.config)
        arrays = plan.gather([request], request.batch_size, GatherBuffers())
        (result,) = plan.scatter(self.instance.execute(arrays), [request])
        if isinstance(result, BiremeError):
            raise result
        return {tensor.name: tensor for tensor in result}

    def close(self) -> None:
        """Close the instances, then the model."""
        for instance in self.instances:
            instance.close()
        self.loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
