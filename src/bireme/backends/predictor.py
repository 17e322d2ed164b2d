"""Predictor: what is left of a backend when a model file is one object and a run of it is one call.

scikit-learn, XGBoost, LightGBM and JAX give the server such an object; `PredictorModel` and `PredictorInstance` make the
rest of a backend's interface of it. All instances share the object.

The file may offer more than is served: of the outputs that `Predictor.describe` lists those are computed that the config
lists. Where it lists none, the parameter ``outputs`` names them, and without it `Predictor.default_outputs` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from bireme.backends.config_check import find_faults, mismatch
from bireme.backends.devices import refuse_gpu
from bireme.backends.errors import refuse_run
from bireme.backends.interface import Execute, ModelContext, Placement
from bireme.backends.settings import SettingsReader, read_default_max_batch_size
from bireme.backends.signature import Signature, TensorSpec, complete, quoted
from bireme.config import ModelConfig
from bireme.config.state_tensors import with_state_tensors
from bireme.telemetry.log import get_logger
from bireme.types import InvalidArgument, datatypes

OUTPUTS: Final = "outputs"
"""The parameter that names outputs, separated by commas."""

NUMBERS: Final = frozenset(datatypes.NUMPY_DTYPES) - {"BF16", "BYTES"}
"""The protocol's types of numbers, but for BF16, which numpy does not have."""

log: Final = get_logger("bireme.backends")


class Predictor(Protocol):
    """A model file that is open."""

    may_run_inline: bool
    """As that of an instance. Read when an instance is made, after `prepare`."""

    def describe(self, config: ModelConfig) -> Signature:
        """Return what the file takes and all that it can compute, in the data types that ``config`` asks for.

        Raises:
            InvalidArgument: what the config asks for goes with no file.
        """

    def can_batch(self) -> bool:
        """Whether a dynamic first dimension of all its tensors is a batch dimension."""

    def default_outputs(self) -> tuple[str, ...]:
        """Return the outputs of a model whose config names none."""

    def prepare(self, config: ModelConfig) -> Execute:
        """Return the function that computes the outputs of the final ``config``. Several threads may call it at once."""


class PredictorModel:
    """One version of a model: a `bireme.backends.interface.LoadedModel` around a `Predictor`."""

    def __init__(self, backend: str, ctx: ModelContext, predictor: Predictor) -> None:
        """``backend`` is the name in messages.

        Raises:
            InvalidArgument: the backend's setting ``default-max-batch-size`` is no number.
        """
        self._backend = backend
        self._predictor: Predictor | None = predictor
        self._default_max_batch_size = read_default_max_batch_size(backend, ctx.backend_config)
        self._config = ctx.config
        self._execute: Execute | None = None

    @property
    def _open_predictor(self) -> Predictor:
        assert self._predictor is not None
        return self._predictor

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Fill in batching, inputs and outputs from the file.

        Raises:
            InvalidArgument: the config asks for batching and the file cannot batch, or for an output that there is not.
            Unsupported: an input or output to fill in has a type that the protocol has not.
        """
        signature = self._open_predictor.describe(config)
        if not config.output:
            signature = replace(signature, outputs=self._chosen_outputs(config, signature))
        default_max_batch_size = self._default_max_batch_size if self._open_predictor.can_batch() else 0
        self._config = complete(config, signature, default_max_batch_size)
        return self._config

    def check_config(self, config: ModelConfig) -> None:
        """Compare the final config with the file.

        Raises:
            InvalidArgument: tells all faults, each with what the config says and what the file has.
        """
        full = with_state_tensors(config)
        faults = find_faults(full, self._open_predictor.describe(full))
        if faults:
            raise mismatch(config, faults)
        self._config = config

    def create_instance(self, placement: Placement) -> PredictorInstance:
        """Make an instance; it costs no memory beyond what its runs need.

        Raises:
            Unsupported: it is to be placed on a GPU.
        """
        refuse_gpu(placement, self._config.name, self._backend)
        if self._execute is None:
            self._execute = self._open_predictor.prepare(with_state_tensors(self._config))
        return PredictorInstance(self._execute, may_run_inline=self._open_predictor.may_run_inline)

    def close(self) -> None:
        """Let go of the file's object."""
        self._predictor = None
        self._execute = None

    def _chosen_outputs(self, config: ModelConfig, signature: Signature) -> dict[str, TensorSpec]:
        text = SettingsReader.of_model(config).text(OUTPUTS)
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in signature.outputs:
                raise InvalidArgument(
                    f"model '{config.name}': parameter '{OUTPUTS}' names '{name}'; this model can give "
                    f"{quoted(signature.outputs)}"
                )
        return {name: signature.outputs[name] for name in names or self._open_predictor.default_outputs()}


class PredictorInstance:
    """Runs the shared object."""

    __slots__ = ("execute", "may_run_inline")

    def __init__(self, execute: Execute, *, may_run_inline: bool) -> None:
        self.execute = execute
        """See `bireme.backends.interface.Instance`."""
        self.may_run_inline = may_run_inline
        """Whether a fast model may run on the loop thread."""

    def close(self) -> None:
        """Let go of the object."""
        self.execute = refuse_run


def adopt_datatypes(config: ModelConfig, signature: Signature, numeric: frozenset[str]) -> Signature:
    """Return ``signature`` with the data types that ``config`` gives its tensors, where both are among ``numeric``.

    For frameworks that take and give any type of number: what is right is the config's to say.
    """
    asked = {tensor.name: tensor.data_type for tensor in config.input}
    asked |= {tensor.name: tensor.data_type for tensor in config.output}

    def adopt(tensor: TensorSpec) -> TensorSpec:
        kind = asked.get(tensor.name, "").removeprefix("TYPE_").replace("STRING", "BYTES")
        return replace(tensor, datatype=kind) if kind in numeric and tensor.datatype in numeric else tensor

    return replace(
        signature,
        inputs={name: adopt(tensor) for name, tensor in signature.inputs.items()},
        outputs={name: adopt(tensor) for name, tensor in signature.outputs.items()},
    )


def output_dtypes(config: ModelConfig) -> dict[str, str]:
    """Return the protocol data type of each output that ``config`` lists, by name."""
    return {output.name: datatypes.from_config_name(output.data_type) for output in config.output}
