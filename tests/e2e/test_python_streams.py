"""Streams and answers of Python models under pressure: slow readers, open streams at an unload, lost senders, whose answer is whose."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import time

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_client
from tritonclient.utils import InferenceServerException

from python_models import DECOUPLED, GrpcStream, instances, memory_kb, num_descriptors

pytestmark = pytest.mark.slow

SENDER = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender = request.get_response_sender()
            mode = int(x_of(request)[0])
            if mode == 0:  # goes on after the end
                sender.send(word(1), flags=final)
                try:
                    sender.send(word(2))
                except Exception as error:
                    signal_file("after", str(error))
            elif mode == 1:  # never says that it was the last
                sender.send(word(1))
                self.kept.append(sender)
            elif mode == 2:  # drops its sender
                sender.send(word(1))
            elif mode == 3:
                raise ValueError("mid-stream")
            elif mode == 4:
                sender.send(word(1))
                raise ValueError("mid-stream")
            elif mode == 5:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("torn")))
                sender.send(word(2), flags=final)
            elif mode == 6:
                sender.send(5)
            elif mode == 7:  # ends everything that it kept
                while self.kept:
                    self.kept.pop().send(flags=final)
                sender.send(flags=final)
            elif mode == 8:
                return [word(1)]
            elif mode == 9:
                for number in range(2000):
                    sender.send(word(number))
                sender.send(flags=final)
            elif mode == 10:
                while not request.is_cancelled():
                    sender.send(word(1))
                    time.sleep(0.002)
                sender.send(flags=final)
                signal_file("stopped")
            elif mode == 11:  # large ones
                for number in range(150):
                    if request.is_cancelled():
                        signal_file("gave-up")
                        break
                    sender.send(reply(np.full(1 << 18, number, np.float32)))
                sender.send(flags=final)
            else:
                sender.send(word(mode), flags=final)
"""


def test_senders_that_are_used_wrongly(python_server):
    python_server.add("s", SENDER, DECOUPLED)
    with GrpcStream(python_server) as stream:

        def expect(mode: int, *answers: object) -> None:
            stream.ask("s", mode)
            for answer in answers:
                got = stream.take()
                if isinstance(answer, str):
                    assert isinstance(got, InferenceServerException), (mode, got)
                    assert answer in str(got), mode
                else:
                    assert got == answer, mode

        expect(0, [1])
        assert python_server.wait_signal("after") != "\n"
        expect(2, [1], "dropped the response sender of a request without a final response")
        expect(3, "ValueError: mid-stream")
        expect(4, [1], "ValueError: mid-stream")
        expect(5, "torn", [2])
        expect(6, "")
        expect(8, "decoupled mode and the execute function must return None")
        expect(9, *([number] for number in range(2000)))
        expect(20, [20])
        assert not stream.has_more(0.05)


def test_a_stream_that_is_never_ended_can_be_left(python_server):
    python_server.add("s", SENDER, DECOUPLED)
    with GrpcStream(python_server) as stream:
        stream.ask("s", 1)
        assert stream.take() == [1]
        assert python_server.count("nv_inference_request_success", "s") == 0
    with GrpcStream(python_server) as stream:
        stream.ask("s", 20)
        assert stream.take() == [20]
    # Nobody waits for the first one any more: the model may be closed.
    python_server.unload("s")
    python_server.wait_unloaded("s", timeout_s=15)


def test_an_unload_lets_open_streams_end(python_server):
    python_server.add("s", SENDER, DECOUPLED + instances(2))
    with GrpcStream(python_server) as stream, GrpcStream(python_server) as other:
        stream.ask("s", 10)
        assert stream.take() == [1]
        other.ask("s", 10)
        assert other.take() == [1]
        python_server.unload("s")
        assert python_server.index("s")["state"] == "UNLOADING"
        assert stream.take() == [1]
        assert python_server.infer("s", 1).status == 404
    python_server.wait_signal("stopped")
    python_server.wait_unloaded("s")


def test_a_client_of_events_that_leaves_stops_the_model(python_server):
    python_server.add("s", SENDER, DECOUPLED)
    (python_server.signals / "stopped").unlink(missing_ok=True)
    client = http.client.HTTPConnection("127.0.0.1", python_server.port, timeout=10)
    client.request("POST", "/v2/models/s/generate_stream", json.dumps({"X": [10]}))
    answer = client.getresponse()
    assert answer.readline().startswith(b"data: ")
    answer.close()
    client.close()

    python_server.wait_signal("stopped", 1)


def test_a_slow_reader_blocks_only_itself(python_server):
    python_server.add("s", SENDER, DECOUPLED + instances(2))
    with socket.socket() as slow, GrpcStream(python_server) as other:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", python_server.port))
        body = json.dumps({"X": [11]}).encode()
        head = f"POST /v2/models/s/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body)
        for number in range(20, 60):
            other.ask("s", number)
            assert other.take(5) == [number]
            time.sleep(0.01)
        assert python_server.is_live()


# Whose answer is whose


OWN = """
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.callee = config.get("parameters", {}).get("callee", {}).get("string_value")
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
    def execute(self, requests):
        responses = []
        for request in requests:
            x = x_of(request)
            if self.callee:
                response = pass_on(ask(self.callee, x))
            else:
                response = reply(x * 2)
            if self.is_decoupled:
                sender = request.get_response_sender()
                sender.send(response)
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            responses.append(response)
        return None if self.is_decoupled else responses
"""


def array(size: int, number: int) -> np.ndarray:
    return (np.arange(size) % 977 + number).astype(np.float32)


async def ask_own(client, name: str, number: int, dice: random.Random) -> bool:
    """Ask once; whether it was answered and not cancelled."""
    x = array(int(2 ** dice.uniform(0, 18)), number)
    item = grpc_client.InferInput("X", [x.size], "FP32")
    item.set_data_from_numpy(x)
    call = asyncio.ensure_future(client.infer(name, [item], request_id=str(number)))
    if dice.random() < 0.2:
        await asyncio.sleep(dice.uniform(0, 0.02))
        call.cancel()
    try:
        result = await call
    except asyncio.CancelledError:
        return False
    assert result.get_response().id == str(number)
    np.testing.assert_array_equal(result.as_numpy("Y"), x * 2)
    return True


async def stream_own(client, name: str, number: int, dice: random.Random) -> None:
    """Ask a decoupled model several times on a stream; leave it, at times, before all has come."""
    arrays = {f"{number}-{part}": array(int(2 ** dice.uniform(0, 16)), number + part) for part in range(5)}

    async def questions():
        for request_id, x in arrays.items():
            item = grpc_client.InferInput("X", [x.size], "FP32")
            item.set_data_from_numpy(x)
            yield {"model_name": name, "inputs": [item], "request_id": request_id}

    answers = client.stream_infer(questions())
    most = dice.choice([3, 10, 10])
    num_seen = 0
    async for result, error in answers:
        assert error is None, error
        x = arrays[result.get_response().id]
        np.testing.assert_array_equal(result.as_numpy("Y"), x * 2)
        num_seen += 1
        if num_seen == most:
            if most < 10:
                answers.cancel()
            break


async def ask_all(address: str, num_clients: int, num_rounds: int, seed: int) -> int:
    async with grpc_client.InferenceServerClient(address) as client:

        async def one(number: int) -> int:
            dice = random.Random(f"{seed}-{number}")
            num_answered = 0
            for turn in range(num_rounds):
                kind = dice.choice(["own", "own-calls", "own-stream", "own-chain"])
                if kind == "own-stream":
                    await stream_own(client, kind, number * 100 + turn, dice)
                else:
                    num_answered += await ask_own(client, kind, number * 100 + turn, dice)
            return num_answered

        return sum(await asyncio.gather(*map(one, range(num_clients))))


def test_a_hundred_clients_get_their_own_answers_and_nothing_grows(python_server):
    python_server.add("own", OWN, instances(2))
    python_server.add("own-calls", OWN, instances(2) + calls_of("own"))
    python_server.add("own-chain", OWN, calls_of("own-calls"))
    python_server.add("own-stream", OWN, DECOUPLED + calls_of("own"))
    address = python_server.grpc_address

    def figures() -> dict[int, tuple[int, int]]:
        pids = [python_server.popen.pid, *python_server.workers()]
        return {pid: (num_descriptors(pid), memory_kb(pid)) for pid in pids}

    assert asyncio.run(ask_all(address, 100, 3, 0)) > 100
    time.sleep(1.5)
    before = figures()
    assert asyncio.run(ask_all(address, 100, 3, 1)) > 100
    time.sleep(1.5)
    after = figures()

    assert after.keys() == before.keys()
    for pid, (num_before, kb_before) in before.items():
        assert after[pid][0] <= num_before + 2
        assert after[pid][1] < kb_before * 1.2 + 20_000


def calls_of(callee: str) -> str:
    return f'\nparameters {{ key: "callee" value {{ string_value: "{callee}" }} }}'
