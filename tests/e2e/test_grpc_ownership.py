"""Who asked gets the answer: 200 clients at once, unary calls and streams mixed, calls given up at random.

Tensors carry the number of their client and call, ids do, too; batches mix clients. Afterwards nothing is left of it.
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from bireme.types import InferenceRequest
from e2e_server import RunningServer, fake_config, wait_until
from grpc_calls import INFER, STREAM_INFER, array_of, infer_message
from grpc_socket import GrpcSocket

NUM_UNARY, NUM_STREAMS, NUM_RAW = 110, 70, 20
NUM_CHANNELS = 50
CALLS_EACH = 10
DYNAMIC = "dynamic_batching { max_queue_delay_microseconds: 1000 }"
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))

pytestmark = [pytest.mark.slow]


class Client:
    """A client of the load: makes requests that no other makes, and knows their answers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.random = random.Random(number)
        self.num_answers = 0
        self.num_given_up = 0

    def request(self, call: int) -> service_pb2.ModelInferRequest:
        size = self.random.choice((1, 3, 200, 20_000, 60_000))
        values = np.full(size, self.number * 1000 + call, np.float32)
        model = self.random.choice(("direct", "batched"))
        if model == "batched":
            values = np.resize(values, (self.random.randint(1, 3), 4))
        return infer_message(model, id=f"{self.number}-{call}", X=values)

    def check(self, request: service_pb2.ModelInferRequest, answer: service_pb2.ModelInferResponse) -> None:
        assert (answer.id, answer.model_name) == (request.id, request.model_name)
        assert list(answer.outputs[0].shape) == list(request.inputs[0].shape)
        _, call = request.id.split("-")
        assert np.all(array_of(answer) == self.number * 1000 + int(call))
        self.num_answers += 1

    @property
    def gives_up(self) -> bool:
        return self.random.random() < 0.15


async def ask_one_by_one(client: Client, channel: grpc.aio.Channel) -> None:
    infer = channel.unary_unary(
        INFER,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelInferResponse.FromString,
    )
    for number in range(CALLS_EACH):
        request = client.request(number)
        timeout_s = client.random.choice((0.002, 0.02)) if client.gives_up else 30
        call = infer(request, timeout=timeout_s)
        if client.gives_up:
            await asyncio.sleep(client.random.random() * 0.02)
            call.cancel()
        try:
            client.check(request, await call)
        except asyncio.CancelledError:
            client.num_given_up += 1
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error  # noqa: PT017
            assert timeout_s < 1
            client.num_given_up += 1


async def ask_on_a_stream(client: Client, channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(
        STREAM_INFER,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )(timeout=30)
    requests = [client.request(number) for number in range(CALLS_EACH)]
    num_wanted = client.random.randrange(CALLS_EACH) if client.gives_up else CALLS_EACH
    for request in requests:
        await call.write(request)
    for request in requests[:num_wanted]:
        message = await call.read()
        assert not message.error_message
        client.check(request, message.infer_response)
    if num_wanted < CALLS_EACH:
        call.cancel()
        client.num_given_up += 1
    else:
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


def ask_all_at_once(client: Client, address: str) -> None:
    """Have all calls open on one connection, resetting some."""
    with GrpcSocket(address, timeout_s=30) as connection:
        requests = [client.request(number) for number in range(CALLS_EACH)]
        streams = [connection.ask(INFER, request.SerializeToString()) for request in requests]
        given_up = {stream for stream in streams if client.gives_up}
        for stream in given_up:
            if not connection.answers[stream].is_complete:
                connection.h2.reset_stream(stream, 8)
                connection.flush()
        client.num_given_up += len(given_up)
        for request, stream in zip(requests, streams, strict=True):
            if stream not in given_up:
                answer = connection.wait(stream)
                assert answer.status == 0
                (message,) = answer.messages
                client.check(request, service_pb2.ModelInferResponse.FromString(message))


def run_threads(clients: list[Client], address: str) -> tuple[list[threading.Thread], list[BaseException]]:
    errors: list[BaseException] = []

    def run(client: Client) -> None:
        try:
            ask_all_at_once(client, address)
        except BaseException as error:  # noqa: BLE001 (told to the test)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    return threads, errors


async def run_tasks(unary: list[Client], streams: list[Client], address: str) -> None:
    channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(NUM_CHANNELS)]
    await asyncio.gather(
        *(ask_one_by_one(client, channels[client.number % NUM_CHANNELS]) for client in unary),
        *(ask_on_a_stream(client, channels[client.number % NUM_CHANNELS]) for client in streams),
    )
    for channel in channels:
        await channel.close()


def num_requests_alive() -> int:
    gc.collect()
    return sum(type(each) is InferenceRequest for each in gc.get_objects())


def test_every_answer_is_the_client_s_own_and_nothing_is_left(start_fake):
    server: RunningServer
    server, _ = start_fake(
        {
            "direct": fake_config("direct", more="instance_group { count: 2 kind: KIND_CPU }"),
            "batched": fake_config("batched", dims="[4]", max_batch_size=16, more=DYNAMIC),
        }
    )
    before = num_requests_alive()
    clients = [Client(number) for number in range(NUM_UNARY + NUM_STREAMS + NUM_RAW)]
    unary, streams, raw = clients[:NUM_UNARY], clients[NUM_UNARY:-NUM_RAW], clients[-NUM_RAW:]
    threads, errors = run_threads(raw, server.grpc_address)
    asyncio.run(run_tasks(unary, streams, server.grpc_address))
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(clients) == 200
    assert sum(client.num_answers for client in clients) > 1200
    assert sum(client.num_given_up for client in clients) > 50
    wait_until(lambda: not server.grpc.num_connections)
    for name in ("direct", "batched"):
        model = server.engine.model(name)
        wait_until(lambda model=model: model.num_in_flight == 0)
    wait_until(lambda: num_requests_alive() <= before)
    assert server.grpc._listener.memory.num_held == 0
