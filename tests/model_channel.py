"""The far end of a model's worker process, without a process: a channel whose messages a test writes and reads."""

import os
import select
import threading
from collections import deque

import msgspec
import numpy as np

from bireme.ipc.messages import BlockRef, Infer, Reply, RequestData, ResponseData, TensorData
from bireme.types import Tensor, datatypes, decode_bytes

NOTHING = object()


class FakeChannel:
    """What `bireme.ipc.channel.Channel` is to its worker. `put` is the server's send, `sent` what it gets."""

    def __init__(self, answer=None):
        """``answer`` takes each message that the worker sends, and returns messages for it (or None)."""
        self.sent = []
        self.is_lost = False
        self.num_polls = 0
        self._answer = answer
        self._messages = deque()
        self._reader, self._writer = os.pipe()
        self._changed = threading.Condition()

    def put(self, *messages):
        for message in messages:
            self._messages.append(message)
            os.write(self._writer, b"1")

    def send(self, message):
        if self.is_lost:
            raise BrokenPipeError
        msgspec.msgpack.encode(message)
        answers = self._answer(message) if self._answer is not None else None
        with self._changed:
            self.sent.append(message)
            self._changed.notify_all()
        self.put(*(answers or ()))

    def receive(self):
        os.read(self._reader, 1)
        return self._messages.popleft()

    def receive_now(self):
        self.num_polls += 1
        if not select.select([self._reader], [], [], 0)[0]:
            return NOTHING
        return self.receive()

    def fileno(self):
        return self._reader

    def close(self):
        os.close(self._reader)
        os.close(self._writer)

    def of(self, kind):
        """Return the messages of ``kind`` that were sent so far."""
        return [message for message in list(self.sent) if type(message) is kind]

    def wait_for(self, kind, number=1):
        """Return the messages of ``kind`` once ``number`` of them were sent."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(kind)) >= number, 10), self.sent
        return self.of(kind)


class FakeLedger:
    """Lends copies. A tensor of the server's comes as a `BlockRef` where a test wants to see its lease return."""

    def __init__(self):
        self.released = []
        self.taken_back = []
        self.num_exported = 0
        self.num_trims = 0
        self.arena = self

    def export(self, tensor):
        self.num_exported += 1
        return tensor_data(tensor.name, tensor.to_numpy(), tensor.to_buffer(), tensor.datatype)

    def adopt(self, data, *, writable=True):
        if isinstance(data.data, BlockRef):
            array = np.zeros(data.shape, datatypes.NUMPY_DTYPES[data.datatype]).view(LentArray)
            array.ledger = self
            array.lease = data.data.lease
        elif data.datatype == "BYTES":
            array = decode_bytes(data.name, data.shape, data.data)
        else:
            array = np.frombuffer(data.data, datatypes.NUMPY_DTYPES[data.datatype]).reshape(data.shape)
        array.flags.writeable = writable
        return Tensor(data.name, data.datatype, tuple(data.shape), array)

    def take_released(self):
        taken = []
        while self.released:
            taken.append(self.released.pop())
        return taken

    def trim(self):
        self.num_trims += 1
        return 0

    def take_back(self, leases):
        self.taken_back.extend(leases)


class LentArray(np.ndarray):
    """Gives its lease back when it dies, if it has one of its own."""

    ledger = None

    def __del__(self):
        if self.ledger is not None:
            self.ledger.released.append(self.lease)


def tensor_data(name, array, buffer=None, datatype=None):
    tensor = Tensor.from_numpy(name, array, datatype)
    return TensorData(
        name, tensor.datatype, tensor.shape, bytearray(tensor.to_buffer() if buffer is None else buffer)
    )


def lent_data(name, lease, shape=(4,)):
    """Return an FP32 tensor that the server lends."""
    return TensorData(name, "FP32", shape, BlockRef(1, 0, 16, lease))


def request_data(number, *inputs, **fields):
    return RequestData(number, fields.pop("id", ""), list(inputs), **fields)


def answer_infer(respond):
    """Return an ``answer`` for `FakeChannel`: each `Infer` is replied to with what ``respond`` makes of its request."""

    def answer(message):
        if type(message) is not Infer:
            return None
        return [Reply(message.request.number, respond(message.request))]

    return answer


def echo(request):
    """Respond with the request's inputs."""
    return ResponseData(list(request.inputs), model_name=request.model_name, model_version=1)
