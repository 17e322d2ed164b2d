"""InstancePool: which instances of a model are free, busy or away.

Loop thread only, except that any thread may take a slot out of the free ones and append it again, each in one step that the
interpreter does not interrupt (`bireme.engine.direct_calls`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bireme.backends.interface import RequestInstance, SupervisedInstance
from bireme.engine.instances import RequestSlot, Slot, TensorSlot
from bireme.types import Execution, Way


class InstancePool:
    """The slots of one model version.

    A slot is in ``free`` exactly while its instance can take another execution.
    """

    __slots__ = ("_away", "free", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self.free = list(reversed(self.slots))
        self._away: set[Slot] = set()

    def reserve(self) -> Slot | None:
        """Take a slot out of the free ones; None: there is none. Any thread: the slot belongs to whoever took it."""
        try:
            return self.free.pop()
        except IndexError:
            return None

    def take(self, slot: Slot) -> bool:
        """As `reserve`, for one slot that is wanted; whether it was free."""
        if slot not in self.free:
            return False
        self.free.remove(slot)
        return True

    def withdraw(self) -> None:
        """No slot is wanted any more that `take` has found not free."""

    def pass_on(self) -> None:
        """What is free and not taken may go to other models."""

    def give_back(self, slot: Slot) -> None:
        """A reserved slot was not needed."""
        self.free.append(slot)

    def occupy(self, slot: Slot, execution: Execution) -> None:
        """Give a reserved slot ``execution`` to run."""
        slot.active.add(execution)
        execution.holder = slot
        if len(slot.active) < slot.capacity:
            self.free.insert(0, slot)  # behind the others, so that they share the work

    def expect(self) -> None:
        """The next request will come within microseconds."""
        if self.free and isinstance(slot := self.free[-1], RequestSlot):
            slot.requests.expect()

    def leave(self, execution: Execution) -> None:
        """``execution`` has ended: its slot takes another one."""
        slot: Slot = execution.holder
        execution.holder = None
        was_full = len(slot.active) == slot.capacity
        slot.active.discard(execution)
        if was_full and slot.unavailable is None:
            self.free.append(slot)

    def refresh(self) -> int:
        """See which instances are away now, or are back; return how many came back."""
        num_back = 0
        for slot in self.slots:
            if slot.unavailable is not None:
                self._away.add(slot)
                if slot in self.free:
                    self.free.remove(slot)
            elif slot in self._away:
                self._away.discard(slot)
                self.free.append(slot)
                num_back += 1
        return num_back

    @property
    def is_up(self) -> bool:
        """Whether an instance can run something now or is running something."""
        return any(slot.unavailable is None for slot in self.slots)

    @property
    def is_given_up(self) -> bool:
        """Whether every process died and is not even being started again at this moment."""
        return all(slot.unavailable is not None and slot.retry_delay_s > 0 for slot in self.slots)

    @property
    def away_reason(self) -> str:
        """Why an instance cannot run anything now; empty if all can."""
        return next((slot.unavailable for slot in self.slots if slot.unavailable is not None), "")

    @property
    def can_start(self) -> bool:
        """Whether an instance is free, or will be whatever calls wait: frameworks call nobody, processes are restarted."""
        return bool(self.free) or any(
            isinstance(slot, TensorSlot) or slot.unavailable is not None for slot in self.slots
        )

    @property
    def executions(self) -> list[Execution]:
        """What runs at this moment."""
        # Each set in one step: threads that call directly change them meanwhile.
        return [execution for slot in self.slots for execution in tuple(slot.active)]

    @property
    def can_be_killed(self) -> bool:
        """Whether some of what runs can be ended from outside."""
        return any(isinstance(slot.instance, SupervisedInstance | RequestInstance) for slot in self.slots)

    @property
    def can_be_called(self) -> bool:
        """Whether every instance runs in this process, on whatever thread it is called."""
        return all(
            slot.requests.can_be_called
            if isinstance(slot, RequestSlot)
            else not isinstance(slot.instance, SupervisedInstance)
            for slot in self.slots
        )

    @property
    def way(self) -> Way:
        """The shortest way for a call of another model; frameworks that run tensors decide for themselves where."""
        if not all(isinstance(slot, RequestSlot) for slot in self.slots):
            return "queue"
        return (
            "inline" if all(getattr(slot.instance, "runs_inline", False) for slot in self.slots) else "thread"
        )

    @property
    def has_ready_hook(self) -> bool:
        """Whether an instance is asked if it is ready."""
        return any(isinstance(slot, RequestSlot) and slot.requests.has_ready_hook for slot in self.slots)

    async def check_ready(self) -> bool:
        """Ask all instances that want to be asked."""
        instances = [slot.requests for slot in self.slots if isinstance(slot, RequestSlot)]
        hooks = [instance.check_ready() for instance in instances if instance.has_ready_hook]
        return all(await asyncio.gather(*hooks))

    def kill(self) -> None:
        """End the processes with what runs in them; frameworks in this process finish all the same."""
        for slot in self.slots:
            if isinstance(slot.instance, SupervisedInstance | RequestInstance):
                slot.instance.kill()

    def close(self) -> None:
        """Close all instances. Blocking: not for the loop."""
        for slot in self.slots:
            slot.close()

    def clear(self) -> None:
        """Let go of the slots, which refer to their model."""
        self.slots.clear()
        self.free.clear()
        self._away.clear()

    def statistics(self) -> dict[str, Any]:
        """Return how many instances there are, are free, and are away."""
        return {
            "instances": len(self.slots),
            "instances_free": len(self.free),
            "instances_away": sum(slot.unavailable is not None for slot in self.slots),
        }
