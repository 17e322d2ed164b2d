"""EnsembleRun: where one request of an ensemble stands. Plain state: calls and answers come out, responses go in.

A frame is one instance of a scope (see `bireme.scheduling.ensemble_plan`): the request itself, or one response of a
decoupled step. A step becomes a call as soon as all that it needs is settled: there, absent, or skipped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from bireme.config.reshape import Reshape
from bireme.scheduling.ensemble_plan import SINK, EnsemblePlan, Selection, Step
from bireme.types import BackendFailed, BiremeError, Internal, InvalidArgument, Parameter, Tensor


class _Skipped:
    """The value of a slot whose step did not run."""

    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED: Final = _Skipped()
Value = Tensor | _Skipped | None
"""What a settled slot holds; None: the tensor is absent, as an optional input that was not given."""


class SequenceFields(NamedTuple):
    """To which sequence the requests of steps belong."""

    id: int | str
    is_start: bool
    is_end: bool


NO_SEQUENCE: Final = SequenceFields(0, is_start=False, is_end=False)


class StepCall:
    """A request to be made to a step's model."""

    __slots__ = ("begin_ns", "frame", "inputs", "run", "sequence", "step")

    def __init__(
        self, run: EnsembleRun, step: Step, frame: _Frame, inputs: dict[str, Tensor], sequence: SequenceFields
    ) -> None:
        self.run = run
        self.step = step
        self.frame = frame
        self.inputs = inputs
        self.sequence = sequence
        self.begin_ns = 0

    def __repr__(self) -> str:
        return f"StepCall({self.step.label})"


class Answer(NamedTuple):
    """A response of the ensemble."""

    outputs: list[Tensor]
    sequence: SequenceFields | None
    """Set where a step said so in the parameters of its response."""


class _Frame:
    __slots__ = ("missing", "num_outside", "num_reads", "parent", "scope", "sequences", "values", "waiting")

    def __init__(self, parent: _Frame | None, scope: int) -> None:
        self.parent = parent
        self.scope = scope
        self.values: dict[int, Value] = {}
        """By slot, of this scope only. A slot that nobody reads any more is emptied."""
        self.missing: dict[int, int] = {}
        """For each step of this scope, how many of its slots are not settled."""
        self.num_outside = 0
        """How many of these are of frames around this one."""
        self.num_reads: dict[int, int] = {}
        """How often a slot was read."""
        self.waiting: dict[int, list[tuple[_Frame, int]]] = {}
        """Frames inside this one whose steps wait for a slot of it."""
        self.sequences: dict[int, SequenceFields] | None = None
        """By slot, what a step's response says on the sequence."""


class EnsembleRun:
    """One request on its way through the steps.

    The caller takes what is in ``calls`` and ``answers``, in order, after each of `take`, `skip` and the constructor, and
    tells with `end` that a call has had its last response.
    """

    __slots__ = (
        "_batch_size",
        "_plan",
        "_selection",
        "_sequence",
        "answers",
        "calls",
        "error",
        "num_answers",
        "num_blocked",
        "num_in_flight",
    )

    def __init__(
        self,
        plan: EnsemblePlan,
        inputs: Mapping[str, Tensor],
        *,
        outputs: Iterable[str] | None = None,
        batch_size: int = 1,
        sequence: SequenceFields = NO_SEQUENCE,
    ) -> None:
        """Begin with ``inputs``, those of a request that fits the ensemble; ``outputs``: the wanted ones, none: all."""
        self._plan = plan
        self._selection: Selection = plan.select(tuple(outputs or ()) or None)
        self._batch_size = batch_size
        self._sequence = sequence
        self.calls: deque[StepCall] = deque()
        """To be made."""
        self.answers: deque[Answer] = deque()
        """To be given."""
        self.num_in_flight = 0
        """Calls that came out of ``calls`` or are in it, and have not ended."""
        self.num_answers = 0
        self.num_blocked: dict[int, int] = {}
        """By scope, how many of its frames wait for a tensor of a frame around them."""
        self.error: BiremeError | None = None
        """The first failure."""
        frame = self._open_frame(None, 0)
        reshapes = plan.input_reshapes
        values: dict[int, Value] = {}
        for name, slot in plan.inputs.items():
            tensor = inputs.get(name)
            if tensor is not None and name in reshapes:  # cannot fail: the request fits the ensemble
                tensor = _reshaped(tensor, reshapes[name], plan)
            values[slot] = tensor
        self._settle(frame, values)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come out."""
        return not self.num_in_flight

    def fail(self, error: BiremeError) -> None:
        """Begin nothing more. The first error is the one that counts."""
        if self.error is None:
            self.error = error
        self.num_in_flight -= len(self.calls)
        self.calls.clear()
        self.answers.clear()

    def end(self) -> None:
        """A call has had its last response."""
        self.num_in_flight -= 1

    def take(
        self, call: StepCall, outputs: Iterable[Tensor], parameters: Mapping[str, Parameter] | None = None
    ) -> None:
        """Go on with a response to ``call`` that is no error. Outputs that it lacks are absent from now on."""
        if self.error is not None:
            return
        step = call.step
        values: dict[int, Value] = dict.fromkeys(step.outputs.values())
        for tensor in outputs:
            slot = step.outputs.get(tensor.name)
            if slot is not None:
                values[slot] = tensor
        sequence = _sequence_in(parameters, call.sequence) if parameters else None
        if sequence is None and call.sequence is not self._sequence:
            sequence = call.sequence  # what an earlier step's response has said goes on
        frame = self._open_frame(call.frame, step.out_scope) if step.is_decoupled else call.frame
        if sequence is not None:
            frame.sequences = {**(frame.sequences or {}), **dict.fromkeys(values, sequence)}
        self._settle(frame, values)

    def _open_frame(self, parent: _Frame | None, scope: int) -> _Frame:
        """Return a new frame, in which steps wait for what is not settled around it either."""
        frame = _Frame(parent, scope)
        selection = self._selection
        if parent is None:
            frame.missing = selection.missing.copy()
            return frame
        for step in selection.steps_of_scope[scope]:
            frame.missing[step.index] = self._wait(frame, step.index, step.needs)
        if scope == selection.sink_scope:
            frame.missing[SINK] = self._wait(frame, SINK, selection.sink_needs)
        if frame.num_outside:
            self.num_blocked[scope] = self.num_blocked.get(scope, 0) + 1
        return frame

    def _wait(self, frame: _Frame, waiter: int, needs: Iterable[int]) -> int:
        """Return for how many of ``needs`` a step has to wait, and have the frames around tell it."""
        scopes = self._plan.scope_of_slot
        num_missing = 0
        for slot in needs:
            owner = frame
            while owner.scope != scopes[slot]:
                assert owner.parent is not None
                owner = owner.parent
            if owner is frame:
                num_missing += 1
            elif slot not in owner.values:
                num_missing += 1
                frame.num_outside += 1
                owner.waiting.setdefault(slot, []).append((frame, waiter))
        return num_missing

    def _settle(self, frame: _Frame, values: Mapping[int, Value]) -> None:
        """Put ``values`` into ``frame`` and go on; whatever is wrong there, the run ends with it, as it must end."""
        try:
            self._spread(frame, values)
        except BiremeError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 (it becomes the answer)
            self.fail(Internal(f"in ensemble '{self._plan.name}': {type(error).__name__}: {error}"))

    def _spread(self, frame: _Frame, values: Mapping[int, Value]) -> None:
        """Put ``values`` into ``frame`` and go on with all that waited for them; skipped steps lead to more."""
        todo = [(frame, slot, value) for slot, value in values.items()]
        waiters = self._selection.waiters
        for where, slot, value in todo:  # which grows meanwhile
            where.values[slot] = value
            missing = where.missing
            for index in waiters[slot]:
                missing[index] -= 1
                if not missing[index]:
                    todo += self._go(where, index)
            for inner, index in where.waiting.pop(slot, ()) if where.waiting else ():
                inner.num_outside -= 1
                if not inner.num_outside:
                    self.num_blocked[inner.scope] -= 1
                inner.missing[index] -= 1
                if not inner.missing[index]:
                    todo += self._go(inner, index)

    def _go(self, frame: _Frame, index: int) -> Iterable[tuple[_Frame, int, Value]]:
        """Run what has all that it needs; return what is settled by that at once: the outputs of a skipped step."""
        if index == SINK:
            self._answer(frame)
            return ()
        step = self._plan.steps[index]
        if self.error is not None:
            return ()
        try:
            inputs = self._inputs(frame, step)
        except InvalidArgument as error:
            self.fail(InvalidArgument(f"in ensemble '{self._plan.name}', {step.label}: {error.message}"))
            return ()
        if inputs is None:
            return self._skip(frame, step)
        self.calls.append(StepCall(self, step, frame, inputs, self._sequence_for(frame, step)))
        self.num_in_flight += 1
        return ()

    def _inputs(self, frame: _Frame, step: Step) -> dict[str, Tensor] | None:
        """Return the tensors for a step; None: it is skipped.

        Raises:
            InvalidArgument: its condition cannot be evaluated.
        """
        runs = True
        if step.condition is not None:
            found = {name: self._value(frame, slot) for name, slot in step.condition_slots.items()}
            runs = step.condition.holds(
                {
                    name: value.to_numpy() if isinstance(value, Tensor) else None
                    for name, value in found.items()
                }
            )
        inputs: dict[str, Tensor] = {}
        num_skipped = 0
        for feed in step.feeds:
            value = self._value(frame, feed.slot)
            if value is SKIPPED:
                num_skipped += 1
                runs = runs and not feed.is_required
            elif isinstance(value, Tensor):
                tensor = value if feed.bridge is None else feed.bridge.apply(value)
                inputs[feed.name] = tensor if tensor.name == feed.name else tensor.renamed(feed.name)
        for slot in step.needs:
            self._let_go(frame, slot)
        return inputs if runs and num_skipped < len(step.feeds) else None

    def _value(self, frame: _Frame, slot: int) -> Value:
        scope = self._plan.scope_of_slot[slot]
        while frame.scope != scope:
            assert frame.parent is not None
            frame = frame.parent
        return frame.values[slot]

    def _let_go(self, frame: _Frame, slot: int) -> None:
        """One reader of a slot has what it needs. After the last one, the ensemble keeps the tensor no longer."""
        num_reads = self._selection.num_reads[slot]
        if num_reads == 0:
            return
        frame.num_reads[slot] = frame.num_reads.get(slot, 0) + 1
        if frame.num_reads[slot] == num_reads:
            frame.values[slot] = None

    def _skip(self, frame: _Frame, step: Step) -> list[tuple[_Frame, int, Value]]:
        """Settle the outputs of a step that does not run. A decoupled one has no response, unless defaults make one."""
        if step.is_decoupled:
            if not step.defaults:
                return []
            frame = self._open_frame(frame, step.out_scope)
        settled: list[tuple[_Frame, int, Value]] = []
        for slot in step.outputs.values():
            default = step.defaults.get(slot)
            settled.append((frame, slot, SKIPPED if default is None else default.make(self._batch_size)))
        return settled

    def _sequence_for(self, frame: _Frame, step: Step) -> SequenceFields:
        """Return the sequence for a step's request: the ensemble's, unless the response it reads from says another."""
        for feed in step.feeds:
            found = self._override(frame, feed.slot)
            if found is not None:
                return found
        return self._sequence

    def _override(self, frame: _Frame, slot: int) -> SequenceFields | None:
        scope = self._plan.scope_of_slot[slot]
        while frame.scope != scope:
            assert frame.parent is not None
            frame = frame.parent
        return None if frame.sequences is None else frame.sequences.get(slot)

    def _answer(self, frame: _Frame) -> None:
        outputs: list[Tensor] = []
        sequence: SequenceFields | None = None
        for output in self._selection.outputs:
            value = self._value(frame, output.slot)
            sequence = sequence or self._override(frame, output.slot)
            if isinstance(value, Tensor):
                tensor = value if output.bridge is None else output.bridge.apply(value)
                if output.reshape is not None:
                    tensor = _reshaped(tensor, output.reshape, self._plan)
                outputs.append(tensor if tensor.name == output.name else tensor.renamed(output.name))
            self._let_go(frame, output.slot)
        self.answers.append(Answer(outputs, sequence))
        self.num_answers += 1

    def __repr__(self) -> str:
        return (
            f"EnsembleRun({self._plan.name!r}, {self.num_in_flight} calls in flight, {self.num_answers} answers"
            f"{', failed' if self.error else ''})"
        )


def _reshaped(tensor: Tensor, reshape: Reshape, plan: EnsemblePlan) -> Tensor:
    try:
        shape = reshape.shape(tensor.shape, num_leading=plan.is_batching)
    except IndexError:
        shape = None
    if shape is None or math.prod(shape) != math.prod(
        tensor.shape
    ):  # a model's output that is not what its config says
        raise BackendFailed(
            f"in ensemble '{plan.name}', a tensor of shape {list(tensor.shape)} is to be reshaped from "
            f"{list(reshape.source)} to {list(reshape.target)}, which has another number of elements"
        )
    return tensor.reshaped(shape)


def _sequence_in(parameters: Mapping[str, Parameter], current: SequenceFields) -> SequenceFields | None:
    """Return the sequence that a step's response asks for; None: it asks for none.

    Source: Triton ``ensemble_scheduler.cc`` (ConsumeResponse).

    Raises:
        InvalidArgument: a parameter is of the wrong type.
    """
    if not parameters.keys() & {"sequence_id", "sequence_start", "sequence_end"}:
        return None
    found = parameters.get("sequence_id", current.id)
    if isinstance(found, bool) or not isinstance(found, int | str):
        raise InvalidArgument(f"expected parameter 'sequence_id' to be an integer or a string, got {found!r}")
    flags = [parameters.get(name, False) for name in ("sequence_start", "sequence_end")]
    for name, flag in zip(("sequence_start", "sequence_end"), flags, strict=True):
        if not isinstance(flag, bool):
            raise InvalidArgument(f"expected parameter '{name}' to be a bool, got {flag!r}")
    return SequenceFields(found, bool(flags[0]), bool(flags[1]))
