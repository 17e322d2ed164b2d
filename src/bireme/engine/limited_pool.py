"""LimitedPool: an `InstancePool` whose instances need resources to run (``--rate-limit=execution_count``). Loop thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bireme.config import ModelConfig
from bireme.config.model_config import ModelInstanceGroup
from bireme.engine.instance_pool import InstancePool
from bireme.engine.instances import Slot
from bireme.scheduling.rate_limiter import ANY_DEVICE, Claim, RateLimiter, Resource, needs_of
from bireme.types import Execution


class Resources:
    """The rate limiter of one server, and who is told when something has become free."""

    def __init__(self, given: Sequence[tuple[str, int, int | None]] = ()) -> None:
        """``given``: name, count and device (None: each of them) of what there is; nothing: as much as instances ask for."""
        counts = {
            Resource(name.lower(), ANY_DEVICE if device is None else device): count
            for name, count, device in given
        }
        self.limiter: RateLimiter[LimitedPool] = RateLimiter(counts)

    def wake_next(self) -> None:
        """Have the model dispatch that goes first among those that wait and could run."""
        claim = self.limiter.next_one()
        if claim is not None:
            claim.owner.wake()


class Holding:
    """What an execution holds. It counts as free while the execution's code waits for other models."""

    __slots__ = ("_claim", "_is_lent", "_resources")

    def __init__(self, resources: Resources, claim: Claim[LimitedPool]) -> None:
        self._resources = resources
        self._claim = claim
        self._is_lent = False

    def lend(self) -> None:
        """The code waits for a call."""
        if not self._is_lent:
            self._is_lent = True
            self._resources.limiter.free(self._claim)
            self._resources.wake_next()

    def take_back(self) -> None:
        """The code waits no longer."""
        if self._is_lent:
            self._is_lent = False
            self._resources.limiter.take_back(self._claim)

    def end(self) -> None:
        """The execution has ended."""
        self.lend()


class LimitedPool(InstancePool):
    """The slots of a model version of which at least one needs resources."""

    __slots__ = ("_claims", "_has_waiting", "_resources", "wake")

    def __init__(
        self,
        slots: Sequence[Slot],
        groups: Iterable[ModelInstanceGroup],
        resources: Resources,
        *,
        wake: Callable[[], object],
        has_waiting: Callable[[], bool],
    ) -> None:
        """``wake`` has the model dispatch, soon; ``has_waiting`` says whether it would have anything to run.

        Raises:
            InvalidArgument: see `make_pool`.
        """
        super().__init__(slots)
        self.wake = wake
        self._has_waiting = has_waiting
        self._resources = resources
        self._claims = {
            slot: self._claim(slot, group) for slot, group in zip(slots, _spread(groups), strict=True)
        }
        resources.limiter.add(list(self._claims.values()))

    def _claim(self, slot: Slot, group: ModelInstanceGroup) -> Claim[LimitedPool]:
        device = slot.placement.device_id if group.kind == "KIND_GPU" else None
        limits = group.rate_limiter
        return Claim(self, needs_of(limits, device), limits.priority if limits is not None else 0)

    def reserve(self) -> Slot | None:
        """As `InstancePool.reserve`: of the free slots whose resources are free that which goes first."""
        limiter = self._resources.limiter
        self.withdraw()
        found = None
        if self._has_waiting():
            for slot in sorted(self.free, key=self._rank):
                if limiter.take(self._claims[slot]):
                    self.free.remove(slot)
                    found = slot
                    break
            else:
                for slot in self.free:
                    limiter.wait(self._claims[slot])
        else:
            self._rest()
        self._resources.wake_next()
        return found

    def take(self, slot: Slot) -> bool:
        """As `InstancePool.take`: also its resources have to be free. If they are not, it waits for them."""
        limiter = self._resources.limiter
        claim = self._claims[slot]
        if slot not in self.free:
            return False
        if not limiter.take(claim):
            limiter.wait(claim)
            return False
        self.free.remove(slot)
        return True

    def withdraw(self) -> None:
        """See `InstancePool.withdraw`."""
        for claim in self._claims.values():
            self._resources.limiter.withdraw(claim)

    def pass_on(self) -> None:
        """See `InstancePool.pass_on`."""
        if not self._has_waiting():
            self._rest()
        self._resources.wake_next()

    def _rank(self, slot: Slot) -> int:
        return self._resources.limiter.rank(self._claims[slot])

    def _rest(self) -> None:
        for slot in self.free:
            self._resources.limiter.rest(self._claims[slot])

    def give_back(self, slot: Slot) -> None:
        """See `InstancePool.give_back`."""
        super().give_back(slot)
        self._resources.limiter.free(self._claims[slot])
        self._resources.wake_next()

    def occupy(self, slot: Slot, execution: Execution) -> None:
        """See `InstancePool.occupy`."""
        claim = self._claims[slot]
        self._resources.limiter.count(claim)
        execution.holding = Holding(self._resources, claim)
        super().occupy(slot, execution)

    def leave(self, execution: Execution) -> None:
        """See `InstancePool.leave`."""
        super().leave(execution)
        if not self._has_waiting():
            self._rest()
        holding, execution.holding = execution.holding, None
        holding.end()

    def clear(self) -> None:
        """See `InstancePool.clear`."""
        self._resources.limiter.remove(self._claims.values())
        self._claims.clear()
        self.wake = self._has_waiting = _no  # they refer to the model
        super().clear()

    @property
    def can_be_called(self) -> bool:
        """Never: a thread that calls could not wait for resources."""
        return False

    def statistics(self) -> dict[str, Any]:
        """As `InstancePool.statistics`, and what is in use of the server's resources."""
        limiter = self._resources.limiter
        in_use = {f"{need.name}:{need.device}": count for need, count in limiter.in_use().items()}
        return {**super().statistics(), "resources_in_use": in_use}


def make_pool(
    slots: Sequence[Slot],
    config: ModelConfig,
    resources: Resources | None,
    *,
    wake: Callable[[], object],
    has_waiting: Callable[[], bool],
) -> InstancePool:
    """Return the pool of a model version's ``slots``; ``resources``: the server's; None: nothing is limited.

    Raises:
        InvalidArgument: an instance needs more than there is, or a resource that cannot be.
    """
    if resources is None or not any(group.rate_limiter for group in config.instance_group):
        return InstancePool(slots)
    return LimitedPool(slots, config.instance_group, resources, wake=wake, has_waiting=has_waiting)


def _no() -> bool:
    return False


def _spread(groups: Iterable[ModelInstanceGroup]) -> Iterator[ModelInstanceGroup]:
    """Yield the group of each active instance, in order."""
    for group in groups:
        if not group.passive:
            yield from [group] * (group.count * len(group.gpus or (0,)))
