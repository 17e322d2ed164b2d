"""Messages between the server and a worker process: msgpack arrays, one SEQPACKET datagram each.

The first element of a message is its tag. Tensors travel beside their message: small ones inside it, others as a
reference to a block of shared memory (`bireme.ipc.ledger`). Times are ``time.monotonic_ns``, which all processes of a
machine share.
"""

from __future__ import annotations

from typing import Any

import msgspec

Parameters = dict[str, bool | int | float | str]


class BlockRef(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Where a tensor's bytes are: in a segment that the sender has announced, on loan until the lease is released."""

    segment: int
    """Negative: the receiver lent the memory itself, under the lease of that number without its sign."""
    offset: int
    """From the start of the segment, or of what was lent."""
    nbytes: int
    lease: int


class TensorData(msgspec.Struct, array_like=True, gc=False):
    """One tensor. BYTES are encoded: each element a little-endian uint32 length and its bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytearray | BlockRef


class ErrorData(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An error of `bireme.types` by its code."""

    code: str
    message: str


class RequestData(msgspec.Struct, array_like=True):
    """An inference request: for the worker's model, or from it for another model (BLS)."""

    number: int
    """Names the request, or the call that it is, between the two processes."""
    id: str
    inputs: list[TensorData]
    outputs: list[str] | None = None
    """None: all of them."""
    parameters: Parameters | None = None
    sequence_id: int | str = 0
    flags: int = 0
    """1: starts its sequence, 2: ends it."""
    timeout_us: int = 0
    priority: int = 0
    trace_context: str | None = None
    is_shared: bool = False
    """Others may hold the inputs: they are given to the model read-only."""
    is_cancelled: bool = False
    model_name: str = ""
    model_version: int = -1


class ResponseData(msgspec.Struct, array_like=True):
    """A response, or what a model has for one of its requests."""

    outputs: list[TensorData] = []
    error: ErrorData | None = None
    parameters: Parameters | None = None
    is_final: bool = True
    is_flag_only: bool = False
    """Nothing but the mark that no more responses come."""
    id: str = ""
    model_name: str = ""
    model_version: int = -1


# From the server to a worker.


class Start(msgspec.Struct, array_like=True, tag=1):
    """Be this: the first message. What ``settings`` hold is between the backend and its worker's entry."""

    settings: dict[str, str]


class Execute(msgspec.Struct, array_like=True, tag=2):
    """Run the model over one batch."""

    number: int
    requests: list[RequestData]
    released: list[int] = []


class Cancel(msgspec.Struct, array_like=True, tag=3):
    """The caller of a request that runs, or whose responses are still open, has taken it back."""

    request: int


class Reply(msgspec.Struct, array_like=True, tag=4):
    """A response to an `Infer`."""

    call: int
    response: ResponseData
    released: list[int] = []


class Result(msgspec.Struct, array_like=True, tag=5):
    """The outcome of a `Call`."""

    call: int
    error: ErrorData | None = None
    value: bool | int | float | str | None = None


class CheckReady(msgspec.Struct, array_like=True, tag=6):
    """Ask the model's ``is_ready``; answered by `Readiness`."""

    number: int


class Finalize(msgspec.Struct, array_like=True, tag=7):
    """Run ``finalize`` and end. What is running is finished first."""


class Released(msgspec.Struct, array_like=True, tag=8):
    """Both ways: leases that are not needed any more."""

    released: list[int]


class Spilled(msgspec.Struct, array_like=True, tag=9):
    """Both ways: a message too large for a datagram lies in this block."""

    block: BlockRef


class Hold(msgspec.Struct, array_like=True, tag=22):
    """Send no more responses to this request, until `Resume` or `Cancel`: nobody has room for them."""

    request: int


class Resume(msgspec.Struct, array_like=True, tag=23):
    """There is room again."""

    request: int


class Soon(msgspec.Struct, array_like=True, tag=25):
    """A message will follow at once: wake up, and look for it."""


class DropSequence(msgspec.Struct, array_like=True, tag=26):
    """A sequence is over without its END: the model may let go of what it keeps for it."""

    sequence_id: int | str


class Ask(msgspec.Struct, array_like=True, tag=20):
    """Do something by name, such as ``check_config``; answered by `Answer`. The backend's own, as `Start.settings` are."""

    number: int
    method: str
    argument: str


# From a worker to the server.


class Started(msgspec.Struct, array_like=True, tag=10):
    """The model is initialised, or ``error`` says why not. ``facts`` are the backend's own."""

    error: ErrorData | None = None
    facts: dict[str, str] = {}


class Executed(msgspec.Struct, array_like=True, tag=11):
    """A batch is done, the instance is free. A response is None where the model sends its own, or will later."""

    number: int
    start_ns: int
    end_ns: int
    responses: list[ResponseData | None]
    error: ErrorData | None = None
    """The whole batch failed: the answer to all of its requests that are still open."""
    released: list[int] = []
    rescheduled: list[int] = []
    """Requests (by number) that the model wants again in a later batch."""


class Respond(msgspec.Struct, array_like=True, tag=12):
    """A response by a sender, any number per request until one is final."""

    request: int
    response: ResponseData
    released: list[int] = []


class Infer(msgspec.Struct, array_like=True, tag=13):
    """Run another model (BLS); answered by `Reply`, several times if ``is_decoupled``.

    ``execution``: the batch whose code asks, 0 when unknown.
    """

    request: RequestData
    execution: int = 0
    is_decoupled: bool = False
    released: list[int] = []


class CancelCall(msgspec.Struct, array_like=True, tag=14):
    """Take an `Infer` back."""

    call: int


class Taken(msgspec.Struct, array_like=True, tag=24):
    """The code that asked has taken so many more of the replies to a decoupled `Infer`; 0: it reads none any more."""

    call: int
    num: int


class Call(msgspec.Struct, array_like=True, tag=15):
    """Ask the server for something by name, such as ``load_model``; answered by `Result` unless ``call`` is 0."""

    call: int
    method: str
    arguments: dict[str, Any]


class LogLine(msgspec.Struct, array_like=True, tag=16):
    """A line for the server's log."""

    level: int
    """As in `logging`; 5 is verbose."""
    message: str
    file: str
    line: int


class Readiness(msgspec.Struct, array_like=True, tag=17):
    """The answer to `CheckReady`."""

    number: int
    is_ready: bool
    reason: str = ""


class Orphaned(msgspec.Struct, array_like=True, tag=18):
    """The model dropped its last way to answer this request without a final response."""

    request: int


class Answer(msgspec.Struct, array_like=True, tag=21):
    """The outcome of an `Ask`."""

    number: int
    result: str = ""
    error: ErrorData | None = None


ToWorker = (
    Start
    | Execute
    | Cancel
    | Hold
    | Resume
    | Reply
    | Result
    | CheckReady
    | Finalize
    | Released
    | Spilled
    | DropSequence
    | Soon
    | Ask
)
FromWorker = (
    Started
    | Executed
    | Respond
    | Infer
    | CancelCall
    | Taken
    | Call
    | LogLine
    | Readiness
    | Orphaned
    | Released
    | Spilled
    | Answer
)
