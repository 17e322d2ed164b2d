"""The official synchronous client's stream: order, errors as messages, final marks, and both ways to end it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as client_library
from tritonclient.utils import InferenceServerException

from bireme.config.model_config import ModelTransactionPolicy
from bireme.frontend.grpc.frontend import GrpcFrontend
from bireme.frontend.grpc.options import GrpcOptions
from bireme.types import Tensor
from e2e_server import fake_config, wait_until
from grpc_calls import A, B, inputs
from http_fakes import FakeConfig, FakeServer

STRICT = {"triton_grpc_error": "true"}


class Streaming:
    """A client with a stream open; what comes back is taken one by one."""

    def __init__(self, address: str, **settings: object) -> None:
        self.client = client_library.InferenceServerClient(address)
        self._answers: queue.Queue = queue.Queue()
        self.client.start_stream(lambda result, error: self._answers.put(error or result), **settings)
        self.ask = self.client.async_stream_infer
        self.stop = self.client.stop_stream

    def take(self) -> client_library.InferResult | InferenceServerException:
        return self._answers.get(timeout=10)

    def take_error(self) -> InferenceServerException:
        error = self.take()
        assert isinstance(error, InferenceServerException), error
        return error

    def rest(self) -> list[object]:
        """Whatever else has come."""
        return list(self._answers.queue)


@contextmanager
def streaming(address: str, **settings: object) -> Iterator[Streaming]:
    stream = Streaming(address, **settings)
    try:
        yield stream
    finally:
        stream.client.close()


@pytest.fixture
def stream(server) -> Iterator[Streaming]:
    with streaming(server.grpc_address) as made:
        yield made


def is_final(result: client_library.InferResult) -> bool:
    return result.get_response().parameters["triton_final_response"].bool_param


def test_answers_come_in_the_order_of_the_requests(stream):
    for factor in range(50):
        model = ("add", "versions")[factor % 2]
        stream.ask(model, inputs(INPUT0=A * factor, INPUT1=B), request_id=str(factor))
    for factor in range(50):
        result = stream.take()
        assert result.get_response().id == str(factor)
        assert is_final(result)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * factor + B)
    stream.stop()

    assert stream.rest() == []


def test_a_slow_first_request_holds_back_those_behind_it(start_fake):
    server, backend = start_fake({"slow": fake_config("slow"), "fast": fake_config("fast")})
    backend.functions["slow"] = lambda inputs: (gate.get(timeout=10), {"Y": inputs["X"]})[1]
    gate: queue.Queue = queue.Queue()
    with streaming(server.grpc_address) as stream:
        stream.ask("slow", inputs(X=A), request_id="slow")
        for _ in range(3):
            stream.ask("fast", inputs(X=A), request_id="fast")
        wait_until(lambda: sum(instance.num_executions for instance in backend.instances) == 4)
        assert stream.rest() == []
        gate.put(None)

        assert [stream.take().get_response().id for _ in range(4)] == ["slow", "fast", "fast", "fast"]


def test_half_close_delivers_what_is_in_flight(start_fake):
    server, backend = start_fake({"m": fake_config("m")})
    backend.gate.clear()
    with streaming(server.grpc_address) as stream:
        for index in range(3):
            stream.ask("m", inputs(X=A * index))
        assert backend.started.acquire(timeout=5)
        stream.client._stream._request_queue.put(None)  # the client's own half-close; stop_stream would wait
        wait_until(lambda: server.engine.model("m").num_in_flight == 3)
        backend.gate.set()
        stream.stop()

        assert [int(stream.take().as_numpy("Y")[1]) for _ in range(3)] == [0, 1, 2]
        assert stream.rest() == []


def test_errors_are_messages_and_the_stream_goes_on(stream):
    stream.ask("nothing", inputs(X=A), request_id="1")
    stream.ask("add", inputs(INPUT0=A, INPUT1=B[:15]), request_id="2")
    stream.ask("add", inputs(INPUT0=A, INPUT1=B), request_id="3")

    assert "'nothing' is not found" in stream.take_error().message()
    assert "[request id: 2] unexpected shape for input 'INPUT1'" in stream.take_error().message()
    assert stream.take().get_response().id == "3"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_stream(server, algorithm):
    values = np.zeros(100_000, np.float32)
    with streaming(server.grpc_address, compression_algorithm=algorithm) as stream:
        stream.ask("plus_one", inputs(X=values))

        np.testing.assert_array_equal(stream.take().as_numpy("Y"), values + 1)


def test_large_messages(stream):
    values = np.arange(1_500_000, dtype=np.float32)
    for factor in (1, 2, 3):
        stream.ask("plus_one", inputs(X=values * factor))
    for factor in (1, 2, 3):
        np.testing.assert_array_equal(stream.take().as_numpy("Y"), values * factor + 1)


def test_parameters_are_taken(stream):
    stream.ask(
        "add",
        inputs(INPUT0=A, INPUT1=B),
        priority=2,
        timeout=10_000_000,
        parameters={"text": "x"},
        enable_empty_final_response=True,
        sequence_id=4,
        sequence_start=True,
        sequence_end=True,
    )

    assert is_final(stream.take())


def test_a_stopped_stream_cancels_its_requests(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")
    with streaming(server.grpc_address) as stream:
        for _ in range(4):
            stream.ask("slow", inputs(X=A))
        wait_until(lambda: model.num_in_flight == 4)
        stream.stop(cancel_requests=True)

        assert stream.take_error().status() == "StatusCode.CANCELLED"
        wait_until(lambda: model.num_in_flight == 1)
        backend.gate.set()
        wait_until(lambda: model.num_in_flight == 0)
    assert len(backend.batches) == 1


def test_a_stream_s_own_deadline_ends_it(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")
    with streaming(server.grpc_address, stream_timeout=0.1) as stream:
        stream.ask("slow", inputs(X=A))
        stream.ask("slow", inputs(X=A))

        assert stream.take_error().status() == "StatusCode.DEADLINE_EXCEEDED"
        wait_until(lambda: model.num_in_flight == 1)
        backend.gate.set()


# Strict mode


def test_strict_mode_ends_the_stream_with_the_status_of_the_first_error(start_fake):
    server, backend = start_fake({"m": fake_config("m"), "other": fake_config("other")})
    backend.functions["m"] = _fail
    with streaming(server.grpc_address, headers=STRICT) as stream:
        stream.ask("other", inputs(X=A), request_id="before")
        assert stream.take().get_response().id == "before"
        stream.ask("m", inputs(X=A))
        error = stream.take_error()
        assert error.status() == "StatusCode.INTERNAL"
        assert "on purpose" in error.message()


def test_strict_mode_cancels_what_else_is_in_flight(start_fake):
    server, backend = start_fake({"m": fake_config("m"), "slow": fake_config("slow")})
    backend.functions |= {"m": _fail, "slow": lambda inputs: (gate.get(timeout=10), {"Y": inputs["X"]})[1]}
    gate: queue.Queue = queue.Queue()
    model = server.engine.model("slow")
    with streaming(server.grpc_address, headers=STRICT) as stream:
        stream.ask("m", inputs(X=A))
        for _ in range(3):
            stream.ask("slow", inputs(X=A))

        assert stream.take_error().status() == "StatusCode.INTERNAL"
        wait_until(lambda: model.num_in_flight <= 1)
        gate.put(None)
        wait_until(lambda: model.num_in_flight == 0)


def test_strict_mode_still_tells_of_a_malformed_request_by_a_message(server):
    with streaming(server.grpc_address, headers=STRICT) as stream:
        stream.ask("add", inputs(INPUT0=A, INPUT1=B), model_version="one")
        assert "version" in stream.take_error().message()
        stream.ask("add", inputs(INPUT0=A, INPUT1=B), request_id="after")
        assert stream.take().get_response().id == "after"


def _fail(_inputs: dict[str, np.ndarray]) -> Callable:
    raise RuntimeError("on purpose")


# Decoupled models: case 9 of the users' list. No backend has them yet, so the engine under the front end is a fake.


class DecoupledServer(FakeServer):
    """Its model ``m`` answers as its input says: 1: a, then b as the last; 2: a, b, then a mark alone; 3: the mark alone."""

    def __init__(self) -> None:
        super().__init__()
        self.models["m"].config = FakeConfig(ModelTransactionPolicy(decoupled=True))

    def submit(self, request):
        (mode,) = request.inputs["X"].to_numpy()
        for value in "ab" if mode < 3 else "":
            array = np.array([ord(value)], np.float32)
            is_last = mode == 1 and value == "b"
            self.answer(request, [Tensor.from_numpy("Y", array)], final=is_last)
        if mode > 1:
            self.answer(request, [], final=True, flag_only=True)


@pytest.fixture(scope="module")
def decoupled() -> Iterator[str]:
    """The address of a front end over a `DecoupledServer`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    async def start():
        front_end = GrpcFrontend(DecoupledServer(), GrpcOptions(address="127.0.0.1", port=0))
        await front_end.start()
        return front_end

    front_end = call(start())
    yield f"127.0.0.1:{front_end.port}"
    call(front_end.stop(0))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize("wants_empty", [False, True])
def test_a_decoupled_request_ends_with_exactly_one_mark(decoupled, wants_empty):
    a, b, mark = ("a", False), ("b", False), ("", True)
    expected = {
        1: [a, ("b", True)],
        2: [a, b, mark] if wants_empty else [a, b],
        3: [mark] if wants_empty else [],
    }
    with streaming(decoupled) as stream:
        for mode in expected:
            values = np.array([mode], np.float32)
            stream.ask("m", inputs(X=values), request_id=str(mode), enable_empty_final_response=wants_empty)
        stream.stop()
        results = stream.rest()

    found: dict[int, list] = {1: [], 2: [], 3: []}
    for result in results:
        value = result.as_numpy("Y")
        text = "" if value is None else chr(int(value[0]))
        found[int(result.get_response().id)].append((text, is_final(result)))
    assert found == expected
    assert {result.get_response().model_name for result in results} == {"m"}


def test_a_decoupled_model_needs_a_stream(decoupled):
    with client_library.InferenceServerClient(decoupled) as client:
        with pytest.raises(InferenceServerException, match="decoupled transaction policy") as caught:
            client.infer("m", inputs(X=np.ones(1, np.float32)))
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
