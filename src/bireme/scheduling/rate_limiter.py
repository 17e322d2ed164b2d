"""RateLimiter: which instances may run when several share what there is only so much of. Pure.

An instance that declares resources runs only while all of them are free. Among those that could run the one with the smallest
number of executions times its priority goes first. Executions are counted for each resource, and who begins to want it again
begins where those are that have gone on meanwhile: nobody can save up turns by being idle, and then keep all others waiting.

Whoever asks is looked at by itself: one that lacks something holds up nobody who lacks nothing. But one that needs much would
wait for ever while others keep taking little. So when they have overtaken it often enough, nobody takes anything that it needs
until it has run.

Who waits for others lends: as long as the code of an execution waits for calls to other models, what it holds counts as
free. So nobody ever waits for what a waiting one holds, and calls between models cannot come to a standstill here. When the
call is answered the execution goes on at once, even if what it lent is in use: until one of the two ends, more is in use
than there is.

Source: Triton ``rate_limiter.cc``, ``docs/user_guide/rate_limiter.md``. There, a callee waits for its caller's resources,
executions count from the load on (``ScaledPriority``), and whoever is first in the row holds up all others. The counting here is
start-time fair queueing (Goyal, Vin, Cheng 1996).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from bireme.config.model_config import ModelRateLimiter
from bireme.types import InvalidArgument

ANY_DEVICE: Final = -1
"""The device of a count that holds for each of them, and of instances that run on none."""
GLOBAL: Final = -2
"""The device of a resource that all of them share."""

PATIENCE: Final = 8
"""How many turns others may have before one that waits, while it lacks something."""

Owner = TypeVar("Owner")


class Resource(NamedTuple):
    """Something that instances hold while they run."""

    name: str
    """In lower case: the command line does not tell cases apart."""
    device: int
    """Its number, `ANY_DEVICE` or `GLOBAL`."""


class Claim(Generic[Owner]):
    """What one instance needs to run, and how often it has run."""

    __slots__ = ("is_idle", "needs", "owner", "priority", "turns")

    def __init__(self, owner: Owner, needs: Mapping[Resource, int], priority: int = 0) -> None:
        """``owner`` is the caller's own. ``priority``: 2 runs half as often as 1; 0 is 1."""
        self.owner = owner
        self.needs = dict(needs)
        self.priority = priority or 1
        self.turns = dict.fromkeys(self.needs, 0)
        """For each resource: executions times priority, with what it has missed while it was idle."""
        self.is_idle = True

    def __repr__(self) -> str:
        return f"Claim({self.needs}, {self.turns}{', idle' if self.is_idle else ''})"


class RateLimiter(Generic[Owner]):
    """The resources of one server: how many there are, how many are in use, and who waits for some."""

    def __init__(self, given: Mapping[Resource, int] | None = None) -> None:
        """``given`` counts, if there is any, are all there are; else there is as much as the neediest instance needs."""
        self._given = given or {}
        self._claims: dict[Claim[Owner], None] = {}
        self._waiting: dict[Claim[Owner], None] = {}
        self._in_use: dict[Resource, int] = {}
        self._count: dict[Resource, int] = {}
        self._turn: dict[Resource, int] = {}
        """For each resource: the fewest turns that one of those has had that are not idle; never less than before."""

    # Who is there.

    def add(self, claims: Sequence[Claim[Owner]]) -> None:
        """Take instances in.

        Raises:
            InvalidArgument: one needs more than there is, or a name is both global and a device's.
        """
        for claim in claims:
            self._check(claim)
        self._claims.update(dict.fromkeys(claims))
        self._recount()

    def remove(self, claims: Iterable[Claim[Owner]]) -> None:
        """Forget instances, which run nothing and wait for nothing any more."""
        for claim in claims:
            self._claims.pop(claim, None)
            self._waiting.pop(claim, None)
        self._recount()

    def _check(self, claim: Claim[Owner]) -> None:
        shared = {need.name: need.device == GLOBAL for other in self._claims for need in other.needs}
        for need, count in claim.needs.items():
            is_global = need.device == GLOBAL
            if shared.setdefault(need.name, is_global) is not is_global:
                raise InvalidArgument(
                    f'Resource "{need.name}" is present as both global and device-specific resource'
                )
            limit = self._limit(need)
            if limit is not None and limit < count:
                raise InvalidArgument(
                    f'Resource count for "{need.name}" is limited to {limit} which will prevent scheduling of one or '
                    f"more model instances, the minimum required count is {count}"
                )

    def _limit(self, need: Resource) -> int | None:
        if not self._given:
            return None
        everywhere = self._given.get(Resource(need.name, ANY_DEVICE), 0)
        return everywhere if need.device == GLOBAL else self._given.get(need, everywhere)

    def _recount(self) -> None:
        counts: dict[Resource, int] = {}
        for claim in self._claims:
            for need, count in claim.needs.items():
                limit = self._limit(need)
                counts[need] = max(counts.get(need, 0), count) if limit is None else limit
        self._count = counts
        self._turn = {need: self._turn.get(need, 0) for need in counts}
        self._go_on(counts)

    # Who runs.

    def take(self, claim: Claim[Owner]) -> bool:
        """Give ``claim`` what it needs; False: it has to wait, for something or because another one goes first."""
        self._wake(claim)
        if not self._fits(claim) or self._is_behind(claim):
            return False
        self.take_back(claim)
        return True

    def take_back(self, claim: Claim[Owner]) -> None:
        """Let what ``claim`` needs be in use, free or not."""
        for need, count in claim.needs.items():
            self._in_use[need] = self._in_use.get(need, 0) + count

    def free(self, claim: Claim[Owner]) -> None:
        """What ``claim`` needs is in use no longer: it has ended, or lends it."""
        for need, count in claim.needs.items():
            self._in_use[need] -= count

    def wait(self, claim: Claim[Owner]) -> None:
        """Let ``claim`` be among those that `next_one` returns."""
        self._wake(claim)
        self._waiting[claim] = None

    def withdraw(self, claim: Claim[Owner]) -> None:
        """Let ``claim`` wait no longer, for now: see `rest`."""
        self._waiting.pop(claim, None)

    def rest(self, claim: Claim[Owner]) -> None:
        """``claim`` has nothing to run, unless it waits."""
        if claim not in self._waiting and not claim.is_idle:
            claim.is_idle = True
            self._go_on(claim.needs)

    def count(self, claim: Claim[Owner]) -> None:
        """``claim``, which has been given what it needs, does run."""
        for need in claim.turns:
            claim.turns[need] += claim.priority
        self._go_on(claim.needs)

    def _go_on(self, needs: Iterable[Resource]) -> None:
        for need in needs:
            turns = [claim.turns[need] for claim in self._claims if not claim.is_idle and need in claim.turns]
            if turns:
                self._turn[need] = max(self._turn[need], min(turns))

    def _wake(self, claim: Claim[Owner]) -> None:
        if claim.is_idle:
            claim.is_idle = False
            for need, turn in claim.turns.items():
                claim.turns[need] = max(turn, self._turn[need])

    def rank(self, claim: Claim[Owner]) -> int:
        """Return how many turns ``claim`` is ahead of those that share a resource with it; smaller goes first."""
        return max((turn - self._turn[need] for need, turn in claim.turns.items()), default=0)

    def next_one(self) -> Claim[Owner] | None:
        """Return which of the waiting could run now and goes first; it goes on waiting until it is withdrawn."""
        for claim in sorted(self._waiting, key=self.rank):
            if self._fits(claim) and not self._is_behind(claim):
                return claim
        return None

    def _fits(self, claim: Claim[Owner]) -> bool:
        return all(
            self._in_use.get(need, 0) + count <= self._count.get(need, count)
            for need, count in claim.needs.items()
        )

    def _is_behind(self, claim: Claim[Owner]) -> bool:
        """Whether one of the waiting needs some of the same and goes first: it could run now, or has been overtaken too often."""
        rank = self.rank(claim)
        return any(
            (lead := rank - self.rank(other)) > 0
            and other.owner is not claim.owner
            and not other.needs.keys().isdisjoint(claim.needs)
            and (lead > PATIENCE or self._fits(other))
            for other in self._waiting
        )

    @property
    def num_waiting(self) -> int:
        """Instances that wait."""
        return len(self._waiting)

    def in_use(self) -> dict[Resource, int]:
        """Return what is in use; more than there is while lent ones are needed back."""
        return {resource: count for resource, count in self._in_use.items() if count}

    def __repr__(self) -> str:
        return f"RateLimiter({self._in_use} of {self._count} in use, {len(self._waiting)} waiting)"


def needs_of(config: ModelRateLimiter | None, device: int | None) -> dict[Resource, int]:
    """Return what an instance of a group with this config needs, on a GPU or (None) on none.

    Raises:
        InvalidArgument: a resource is both global and the device's.
    """
    needs: dict[Resource, int] = {}
    names: dict[str, bool] = {}
    for each in config.resources if config is not None else ():
        name = each.name.lower()
        if names.setdefault(name, each.global_) is not each.global_:
            raise InvalidArgument(
                f'Resource "{each.name}" is present as both global and device-specific resource'
            )
        key = Resource(name, GLOBAL if each.global_ else ANY_DEVICE if device is None else device)
        if each.count:
            needs[key] = max(needs.get(key, 0), each.count)
    return needs
