"""EnsembleBackend: an ensemble is a model whose instance makes requests to other models, as its config says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bireme.backends.ensemble.instance import EnsembleInstance
from bireme.backends.ensemble.nesting import check_nesting
from bireme.backends.interface import Host, ModelContext, Placement
from bireme.config import ModelConfig, find_member_faults
from bireme.config.model_config import ModelTransactionPolicy
from bireme.scheduling.ensemble_plan import EnsemblePlan
from bireme.types import BiremeError, InvalidArgument, Unavailable


class EnsembleBackend:
    """See `bireme.backends.interface.Backend`."""

    name = "ensemble"

    def load(self, ctx: ModelContext) -> EnsembleModel:
        """Open an ensemble; its composing models serve already.

        Raises:
            InvalidArgument: the config names it as a backend.
            Unavailable: there is no server whose models it could consist of.
        """
        if ctx.config.ensemble_scheduling is None:
            raise InvalidArgument(
                f"model '{ctx.name}': 'ensemble' is no backend but a platform: an ensemble says platform: \"ensemble\", "
                "'ensemble_scheduling', and no backend"
            )
        if ctx.host is None:
            raise Unavailable(f"ensemble '{ctx.name}' cannot be loaded without a server that runs its models")
        return EnsembleModel(ctx.host, ctx.version)


class EnsembleModel:
    """One version of an ensemble: its compiled plan."""

    def __init__(self, host: Host, version: int) -> None:
        self._host = host
        self._version = version
        self._plan: EnsemblePlan | None = None

    def complete_config(self, config: ModelConfig) -> ModelConfig:
        """Return ``config`` as decoupled as its steps are, whatever it says itself.

        Raises:
            InvalidArgument: it does not fit its composing models, or one of them does not serve; names the step.
        """
        members = self._members(config)
        faults = list(find_member_faults(config, members))
        if faults:
            raise InvalidArgument("; ".join(faults))
        check_nesting(config, self._host)
        self._plan = EnsemblePlan(config, members)
        policy = config.model_transaction_policy or ModelTransactionPolicy()
        return replace(config, model_transaction_policy=replace(policy, decoupled=self._plan.is_decoupled))

    def check_config(self, config: ModelConfig) -> None:
        """Nothing is left to check: `complete_config` has done it."""

    def _members(self, config: ModelConfig) -> Sequence[ModelConfig]:
        assert config.ensemble_scheduling is not None
        members = []
        for index, step in enumerate(config.ensemble_scheduling.step):
            try:
                members.append(self._host.find_config(step.model_name, step.model_version))
            except BiremeError as error:
                raise InvalidArgument(
                    f"in ensemble '{config.name}', step {index} ('{step.model_name}'): {error.message}"
                ) from None
        return members

    def create_instance(self, placement: Placement) -> EnsembleInstance:  # noqa: ARG002
        """Make the one instance."""
        assert self._plan is not None
        return EnsembleInstance(self._plan, self._host, self._version)

    def close(self) -> None:
        """Nothing is held."""
