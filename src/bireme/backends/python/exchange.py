"""Exchange: who of a worker's threads reads the channel, and to whom what arrives is given.

There is no reading thread. Whoever waits for a message reads, if nobody else does, and gives what is meant for others to
them (leader and followers); one that has got its own message passes the reader's role on to another one that waits. So
a model with one thread asks another model with one send and one receive, and no thread is woken in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from bireme.backends.python.conversions import to_response
from bireme.ipc.channel import Channel
from bireme.ipc.ledger import Ledger
from bireme.ipc.messages import (
    Cancel,
    CheckReady,
    DropSequence,
    Execute,
    Finalize,
    FromWorker,
    Hold,
    Released,
    Reply,
    Result,
    Resume,
)
from bireme.types import BiremeError, InferenceResponse

UNSENDABLE: Final = (ValueError, TypeError, OverflowError)
"""What encoding a message raises: text that is no Unicode, numbers of more than 64 bits."""


class Receiver(Protocol):
    """Whoever waits for the answers to a call: an `InferenceResponse`, several of them, or a `Result`; or for tasks."""

    def deliver(self, message: Any) -> None:
        """Take a message, from any thread; None: the server is gone."""


class Waiter:
    """The messages for one waiting thread."""

    __slots__ = ("_awake", "messages")

    def __init__(self) -> None:
        self.messages: deque[Any] = deque()
        self._awake = threading.Lock()  # free: woken. A fraction of the price of a Condition
        self._awake.acquire()

    def deliver(self, message: Any) -> None:
        """Append ``message`` and wake the thread."""
        self.messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Have the thread look around: now, or when it is about to sleep."""
        if self._awake.locked():
            try:
                self._awake.release()
            except RuntimeError:  # another thread was faster
                return

    def sleep(self) -> None:
        """Return once it has been woken since the last time."""
        self._awake.acquire()


class Exchange:
    """The worker's end of its conversation with the server. Any thread may use it."""

    def __init__(self, channel: Channel, ledger: Ledger) -> None:
        self.ledger = ledger
        self.tasks: Receiver = Waiter()
        """Who gets batches, `CheckReady`, `DropSequence` and `Finalize`."""
        self.open_batch: Callable[[Execute], Any] = _same
        """Makes a task of an `Execute`."""
        self.on_cancel: Callable[[int], None] = _ignore
        """Is told the number of a request that its caller has taken back."""
        self.on_hold: Callable[[int], None] = _ignore
        """Is told the number of a request whose responses nobody has room for."""
        self.on_resume: Callable[[int], None] = _ignore
        """Is told the number of one that may have responses again."""
        self.on_end: Callable[[], None] = _do_nothing
        """Is told that the server wants no more, or is gone."""
        self.is_lost = False
        """Whether the server is gone."""
        self.is_forked = False
        """Whether this is a copy of the process that a model's code made by forking: it must not speak."""
        self._channel = channel
        self._reading = threading.Lock()  # held by the thread that reads
        self._receivers: dict[int, Receiver] = {}
        self._followers: set[Waiter] = set()
        self._handlers: dict[type, Callable[[Any], None]] = {
            Execute: self._on_execute,
            Reply: self._on_reply,
            Result: self._on_result,
            Cancel: self._on_cancel,
            Hold: self._on_hold,
            Resume: self._on_resume,
            Released: self._on_released,
            CheckReady: self._on_task,
            DropSequence: self._on_task,
            Finalize: self._on_finalize,
            type(None): self._on_end,
        }

    # What goes out

    def send(self, message: FromWorker) -> None:
        """Send ``message``; without a server nothing happens.

        Raises:
            RuntimeError: this is a forked copy of the worker.
        """
        self.check_not_forked()
        if self.is_lost:
            return
        try:
            self._channel.send(message)
        except OSError:  # the server is gone; whoever reads next will see it, too
            self._lose()

    def flush(self, least: int = 1) -> None:
        """Give leases back in a message of their own, if there are ``least``."""
        if len(self.ledger.released) >= least:
            self.send(Released(self.ledger.take_released()))

    # What comes in

    def ask(self, message: FromWorker, call: int) -> Any:
        """Send ``message`` and wait for the one answer to ``call``; None: the server is gone."""
        if not self._reading.acquire(blocking=False):
            waiter = Waiter()
            self._receivers[call] = waiter
            try:
                self.send(message)
                return self.wait(waiter)
            finally:
                del self._receivers[call]
        # Nobody reads, so the answer cannot arrive before this thread reads it: no need to be known to anyone.
        try:
            self.send(message)
            while not self.is_lost:
                answer = self._channel.receive()
                kind = type(answer)
                if kind is Reply and answer.call == call:
                    return self._adopt(answer)
                if kind is Result and answer.call == call:
                    return answer
                self._dispatch(answer)
            return None
        finally:
            self._reading.release()
            if self._followers:
                self._hand_over()

    def wait(self, waiter: Waiter) -> Any:
        """Return the next message of ``waiter``, reading for everyone if nobody else does."""
        messages = waiter.messages
        if messages:
            return messages.popleft()
        reading = self._reading
        if reading.acquire(blocking=False):
            try:
                self._read_until(messages)
            finally:
                reading.release()
                if self._followers:
                    self._hand_over()
        else:
            self._follow(waiter)
        return messages.popleft()

    def poll(self, most: int = 64) -> None:
        """Read what is there, at most ``most`` messages, unless another thread reads anyway."""
        if self.is_lost or self.is_forked or not self._reading.acquire(blocking=False):
            return
        try:
            for _ in range(most):
                message = self._channel.receive_now()
                if not self._dispatch(message) or self.is_lost:
                    return
        finally:
            self._reading.release()
            if self._followers:
                self._hand_over()

    def take_tasks(self, receiver: Receiver) -> None:
        """Have tasks delivered to ``receiver``; those that came before are now."""
        former, self.tasks = self.tasks, receiver
        if isinstance(former, Waiter):
            while former.messages:
                receiver.deliver(former.messages.popleft())

    def expect(self, call: int, receiver: Receiver) -> None:
        """Have the answers to ``call`` delivered to ``receiver``, from before they are asked for."""
        self._receivers[call] = receiver
        if self.is_lost:
            receiver.deliver(None)

    def forget(self, call: int) -> None:
        """Nobody waits for ``call`` any more."""
        self._receivers.pop(call, None)

    def mark_forked(self) -> None:
        """Become silent: this is the forked copy, in its only thread."""
        self.is_forked = True
        self._reading = threading.Lock()  # whoever had it is not here
        self._followers.clear()

    def check_not_forked(self) -> None:
        """Check that this is the worker itself.

        Raises:
            RuntimeError: it is a copy that a model's code forked.
        """
        if self.is_forked:
            raise RuntimeError("a process that a model forked cannot talk to the server")

    # Reading

    def _read_until(self, messages: deque[Any]) -> None:
        """Read until ``messages`` holds something. This thread has the reader's role."""
        while not messages:
            if self.is_lost:
                messages.append(None)
                return
            self.check_not_forked()
            self._dispatch(self._channel.receive())

    def _follow(self, waiter: Waiter) -> None:
        """Wait until another thread has delivered something to ``waiter``, or let it read itself."""
        messages = waiter.messages
        # Known as a follower first, then the role is tried for: whoever gives it up in between will wake this thread.
        self._followers.add(waiter)
        try:
            while not messages:
                if self._reading.acquire(blocking=False):
                    try:
                        self._read_until(messages)
                    finally:
                        self._reading.release()
                else:
                    waiter.sleep()
        finally:
            self._followers.discard(waiter)
            if self._followers:
                self._hand_over()

    def _hand_over(self) -> None:
        """Wake one of those who wait, so that it reads on. Not needed when another thread has the role already."""
        if self._reading.locked():
            return
        for waiter in tuple(self._followers):
            if not waiter.messages:
                waiter.wake()
                return

    def _dispatch(self, message: Any) -> bool:
        """Give ``message`` to whom it is meant for; return whether it was one."""
        handle = self._handlers.get(type(message))
        if handle is None:  # nothing came
            return False
        handle(message)
        return True

    def _on_execute(self, message: Execute) -> None:
        task = self.open_batch(message)
        if message.released:
            self.ledger.take_back(message.released)
        self.tasks.deliver(task)

    def _on_task(self, message: CheckReady | DropSequence | Finalize) -> None:
        self.tasks.deliver(message)

    def _on_finalize(self, message: Finalize) -> None:
        self.on_end()
        self.tasks.deliver(message)

    def _on_reply(self, message: Reply) -> None:
        response = self._adopt(message)  # also where nobody waits for it: what it lends goes back
        receiver = self._receivers.get(message.call)
        if receiver is not None:
            receiver.deliver(response)

    def _adopt(self, message: Reply) -> InferenceResponse:
        """Return the response. By the thread that reads, before the next message: that may end what this one refers to."""
        data = message.response
        try:
            response = to_response(data, self.ledger.adopt)
        except BiremeError as error:
            response = InferenceResponse(data.model_name, data.model_version, data.id, error=error)
        if message.released:
            self.ledger.take_back(message.released)
        return response

    def _on_result(self, message: Result) -> None:
        receiver = self._receivers.get(message.call)
        if receiver is not None:
            receiver.deliver(message)

    def _on_cancel(self, message: Cancel) -> None:
        self.on_cancel(message.request)

    def _on_hold(self, message: Hold) -> None:
        self.on_hold(message.request)

    def _on_resume(self, message: Resume) -> None:
        self.on_resume(message.request)

    def _on_released(self, message: Released) -> None:
        self.ledger.take_back(message.released)

    def _on_end(self, _: None) -> None:
        self._lose()

    def _lose(self) -> None:
        """The server is gone: so are all answers."""
        if self.is_lost:
            return
        self.is_lost = True
        self.on_end()
        for receiver in list(self._receivers.values()):
            receiver.deliver(None)
        self.tasks.deliver(None)


def _ignore(_: Any) -> None:
    pass


def _do_nothing() -> None:
    pass


def _same(message: Execute) -> Execute:
    return message
