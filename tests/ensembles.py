"""Ensembles for tests: configs in a short form, and a run that is driven by hand."""

from dataclasses import dataclass, field

import numpy as np

from bireme.config import ModelConfig
from bireme.config.model_config import (
    EnsembleStep,
    ModelEnsembling,
    ModelInput,
    ModelOutput,
    ModelParameter,
    ModelTransactionPolicy,
)
from bireme.scheduling.ensemble_plan import EnsemblePlan
from bireme.scheduling.ensemble_run import EnsembleRun
from bireme.types import Tensor

FP32 = "TYPE_FP32"


def member(name, inputs="X", outputs="Y", *, batch=0, decoupled=False, optional="", dims=(-1,), kind=FP32):
    """Return the config of a step's model; names are separated by blanks."""
    return ModelConfig(
        name,
        max_batch_size=batch,
        input=tuple(
            ModelInput(each, kind, dims=dims, optional=each in optional.split()) for each in inputs.split()
        ),
        output=tuple(ModelOutput(each, kind, dims=dims) for each in outputs.split()),
        model_transaction_policy=ModelTransactionPolicy(decoupled=decoupled),
    )


def step(model, reads, writes):
    """Return a step; ``reads`` and ``writes`` are ``"X=tensor Z=other"``."""
    return EnsembleStep(
        model_name=model.name, model_version=-1, input_map=_pairs(reads), output_map=_pairs(writes)
    )


def _pairs(text):
    return dict(pair.split("=") for pair in text.split())


def ensemble(
    steps, inputs="X", outputs="Y", *, batch=0, optional="", limit=0, dims=(-1,), kind=FP32, **parameters
):
    """Return an ensemble's config; parameters such as ``when={"t": "x > 1"}``."""
    return ModelConfig(
        "pipeline",
        platform="ensemble",
        max_batch_size=batch,
        input=tuple(
            ModelInput(each, kind, dims=dims, optional=each in optional.split()) for each in inputs.split()
        ),
        output=tuple(ModelOutput(each, kind, dims=dims) for each in outputs.split()),
        ensemble_scheduling=ModelEnsembling(step=tuple(steps), max_inflight_requests=limit),
        parameters={
            f"{kind}:{tensor}": ModelParameter(string_value=text)
            for kind, texts in parameters.items()
            for tensor, text in texts.items()
        },
    )


def compile_plan(config, *models):
    """Return the plan of ``config``; ``models`` are found by name."""
    by_name = {model.name: model for model in models}
    return EnsemblePlan(config, [by_name[step.model_name] for step in config.ensemble_scheduling.step])


def tensor(name, *values, shape=None):
    """Return an FP32 tensor."""
    array = np.array(values, np.float32)
    return Tensor.from_numpy(name, array if shape is None else array.reshape(shape))


@dataclass
class Driven:
    """A run whose calls the test answers."""

    plan: EnsemblePlan
    inputs: dict
    outputs: tuple | None = None
    batch_size: int = 1
    run: EnsembleRun = field(init=False)
    calls: list = field(default_factory=list)
    answers: list = field(default_factory=list)

    def __post_init__(self):
        self.run = EnsembleRun(self.plan, self.inputs, outputs=self.outputs, batch_size=self.batch_size)
        self.collect()

    def collect(self):
        """Take what the run asks for and gives."""
        self.calls += self.run.calls
        self.run.calls.clear()
        self.answers += self.run.answers
        self.run.answers.clear()

    @property
    def waiting(self):
        """Names of the models that have been called and have not answered."""
        return [call.step.model_name for call in self.calls]

    def find(self, model):
        """Return the first open call of a model."""
        return next(call for call in self.calls if call.step.model_name == model)

    def respond(self, model, parameters=None, *, final=True, call=None, **outputs):
        """Answer an open call with tensors by output name, each given by its values."""
        call = call or self.find(model)
        if final:
            self.calls.remove(call)
            self.run.end()
        made = [
            value if isinstance(value, Tensor) else tensor(name, *value) for name, value in outputs.items()
        ]
        self.run.take(call, made, parameters)
        self.collect()

    def finish(self, model):
        """End an open call without a further response."""
        self.calls.remove(self.find(model))
        self.run.end()

    def values(self, index=-1):
        """Return the tensors of an answer as lists by name."""
        return {each.name: each.to_numpy().ravel().tolist() for each in self.answers[index].outputs}
