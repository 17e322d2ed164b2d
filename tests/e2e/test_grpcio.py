"""grpcio itself, the library below the official Python clients: compression, sizes, deadlines, keep-alive, health, reflection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from bireme.frontend.grpc.options import GrpcOptions
from bireme.wire.grpc import message_class
from e2e_server import fake_config, wait_until
from grpc_calls import INFER, STREAM_INFER, A, B, array_of, infer_message
from grpc_socket import GRPC, GrpcSocket, framed

UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
COMPRESSIONS = [grpc.Compression.NoCompression, grpc.Compression.Deflate, grpc.Compression.Gzip]


def infer_of(channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable:
    return channel.unary_unary(
        INFER,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelInferResponse.FromString,
    )


def stream_infer_of(channel: grpc.Channel) -> grpc.StreamStreamMultiCallable:
    return channel.stream_stream(
        STREAM_INFER,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


@pytest.fixture
def channel(server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_address, options=UNLIMITED) as made:
        yield made


def status_of(
    call: Callable[..., object], *arguments: object, **settings: object
) -> tuple[grpc.StatusCode, str]:
    """Make a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **settings)
    return caught.value.code(), caught.value.details()


# Compression


@pytest.mark.parametrize("of_channel", COMPRESSIONS)
@pytest.mark.parametrize("of_call", [None, *COMPRESSIONS])
def test_compression(server, of_channel, of_call):
    values = np.arange(5000, dtype=np.float32)
    with grpc.insecure_channel(server.grpc_address, compression=of_channel) as channel:
        for model in ("plus_one", "plus_one"):
            answer = infer_of(channel)(infer_message(model, X=values), compression=of_call)
            np.testing.assert_array_equal(array_of(answer), values + 1)
        requests = iter([infer_message("plus_one", X=values)] * 2)
        for message in stream_infer_of(channel)(requests, compression=of_call):
            np.testing.assert_array_equal(array_of(message.infer_response), values + 1)


@pytest.mark.parametrize("level", ["low", "medium", "high"])
def test_answers_are_compressed_for_those_who_accept_it(start_server, repository, level):
    own = start_server(
        repository, grpc=GrpcOptions(response_compression_level=level), load_model=("plus_one",)
    )
    message = infer_message("plus_one", X=np.zeros(50_000, np.float32)).SerializeToString()
    with GrpcSocket(own.grpc_address) as client:
        plain = client.call(INFER, message)
        assert "grpc-encoding" not in plain.headers
        assert len(plain.data) > 200_000
        for accepted in ("gzip", "deflate", "identity,deflate,gzip"):
            answer = client.call(INFER, message, (*GRPC, ("grpc-accept-encoding", accepted)))
            assert answer.status == 0
            assert answer.headers["grpc-encoding"] in accepted
            assert answer.data[0] == 1
            assert len(answer.data) < 10_000


def test_an_unknown_encoding_is_refused_with_those_that_are_known(server):
    with GrpcSocket(server.grpc_address) as client:
        stream = client.open(INFER, (*GRPC, ("grpc-encoding", "br")))
        client.send(stream, framed(b"1234", is_compressed=True), is_end=True)
        answer = client.wait(stream)

    assert answer.status == grpc.StatusCode.UNIMPLEMENTED.value[0]
    assert {"gzip", "deflate"} <= set(answer.headers["grpc-accept-encoding"].replace(" ", "").split(","))


# Sizes


@pytest.mark.slow
def test_64_mb_both_ways(channel):
    values = np.arange(16 << 20, dtype=np.float32)
    answer = infer_of(channel)(infer_message("plus_one", X=values), timeout=30)

    assert np.array_equal(array_of(answer), values + 1)


def test_an_answer_that_the_client_does_not_take_hurts_nobody(server):
    values = np.zeros(1_500_000, np.float32)
    with grpc.insecure_channel(server.grpc_address) as channel:  # takes 4 MB, as by default
        infer = infer_of(channel)
        code, _ = status_of(infer, infer_message("plus_one", X=values))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert infer(infer_message("plus_one", X=A)).model_name == "plus_one"


def test_a_request_above_the_limit_is_refused(start_server, repository):
    own = start_server(repository, grpc=GrpcOptions(max_message_size=100_000), load_model=("plus_one",))
    with grpc.insecure_channel(own.grpc_address, options=UNLIMITED) as channel:
        infer = infer_of(channel)
        for compression in COMPRESSIONS:
            message = infer_message("plus_one", X=np.zeros(100_000, np.float32))
            code, details = status_of(infer, message, compression=compression)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "100000" in details
            assert infer(infer_message("plus_one", X=A), compression=compression)


# What is no call of ours


@pytest.mark.parametrize(
    "path",
    [
        "/inference.GRPCInferenceService/Nothing",
        "/inference.Nothing/ModelInfer",
        "/nothing",
        "/inference.GRPCInferenceService/modelinfer",
    ],
)
def test_an_unknown_method_is_unimplemented(channel, path):
    code, details = status_of(channel.unary_unary(path), b"")

    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert details


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/grp", ""])
def test_another_content_type_is_415(server, content_type):
    extra = [("content-type", content_type)] if content_type else []
    with GrpcSocket(server.grpc_address) as client:
        answer = client.call(INFER, b"", extra)
        assert answer.headers[":status"] == "415"
        assert client.call("/inference.GRPCInferenceService/ServerLive").status == 0


@pytest.mark.parametrize("content_type", ["application/grpc+proto", "application/grpc;charset=utf-8"])
def test_these_content_types_are_grpc(server, content_type):
    with GrpcSocket(server.grpc_address) as client:
        path = "/inference.GRPCInferenceService/ServerLive"
        assert client.call(path, b"", [("content-type", content_type), ("te", "trailers")]).status == 0


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\x7fshort", b"\x12"])
def test_garbage_for_a_message_is_an_error_of_its_call_alone(channel, garbage):
    code, details = status_of(channel.unary_unary(INFER), garbage)
    assert code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT}
    assert details

    np.testing.assert_array_equal(
        array_of(infer_of(channel)(infer_message("add", INPUT0=A, INPUT1=B))), A + B
    )


def test_a_unary_call_without_a_message_or_with_two_is_an_error(channel):
    call = channel.stream_unary(INFER, request_serializer=service_pb2.ModelInferRequest.SerializeToString)
    message = infer_message("add", INPUT0=A, INPUT1=B)
    for messages in ([], [message, message]):
        code, details = status_of(call, iter(messages), timeout=5)
        assert code in {
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.INVALID_ARGUMENT,
        }
        assert details


# Metadata, deadlines, readiness


def test_metadata_of_every_kind_is_taken(channel):
    metadata = (
        ("x-text", "value"),
        ("x-many", "1"),
        ("x-many", "2"),
        ("x-bin", bytes(range(256))),
        ("x-long", "y" * 5000),
    )
    answer, call = infer_of(channel).with_call(infer_message("add", INPUT0=A, INPUT1=B), metadata=metadata)

    np.testing.assert_array_equal(array_of(answer), A + B)
    assert call.code() is grpc.StatusCode.OK


def test_a_text_of_an_error_survives_in_any_alphabet(channel):
    code, details = status_of(infer_of(channel), infer_message("mödel 100% ✓", X=A))

    assert code is grpc.StatusCode.NOT_FOUND
    assert "'mödel 100% ✓' is not found" in details


def test_a_deadline_ends_the_call_and_the_queued_request(start_fake):
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    model = server.engine.model("slow")
    with grpc.insecure_channel(server.grpc_address) as channel:
        infer = infer_of(channel)
        running = infer.future(infer_message("slow", X=A), timeout=30)
        assert backend.started.acquire(timeout=5)
        codes = {status_of(infer, infer_message("slow", X=A), timeout=0.02)[0] for _ in range(3)}
        wait_until(lambda: model.num_in_flight == 1)
        backend.gate.set()
        np.testing.assert_array_equal(array_of(running.result(timeout=10)), A)

    assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert len(backend.batches) == 1


def test_a_deadline_is_kept_by_the_server_itself(start_fake):
    """A client whose clock stands still gets DEADLINE_EXCEEDED all the same."""
    server, backend = start_fake({"slow": fake_config("slow")})
    backend.gate.clear()
    message = infer_message("slow", X=A).SerializeToString()
    with GrpcSocket(server.grpc_address) as client:
        running = client.ask(INFER, message)
        assert backend.started.acquire(timeout=5)
        start_s = time.monotonic()
        answer = client.call(INFER, message, (*GRPC, ("grpc-timeout", "50m")))
        assert answer.status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert 0.04 < time.monotonic() - start_s < 2
        assert server.engine.model("slow").num_in_flight == 1
        backend.gate.set()
        assert client.wait(running).status == 0


@pytest.mark.slow
def test_a_client_may_wait_until_there_is_a_server(start_server, repository, free_port):
    options = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100))
    with grpc.insecure_channel(f"127.0.0.1:{free_port}", options=options) as channel:
        message = infer_message("add", INPUT0=A, INPUT1=B)
        assert status_of(infer_of(channel), message)[0] is grpc.StatusCode.UNAVAILABLE
        waiting = infer_of(channel).future(message, wait_for_ready=True, timeout=20)
        start_server(repository, load_model=("add",), grpc_port=free_port)
        np.testing.assert_array_equal(array_of(waiting.result(timeout=20)), A + B)


# Connections


@pytest.mark.slow
def test_fifty_connections_at_once(server):
    with ExitStack() as stack:
        calls = []
        for index in range(50):
            channel = grpc.insecure_channel(server.grpc_address, options=(OWN_CONNECTION, ("index", index)))
            infer = infer_of(stack.enter_context(channel))
            for factor in range(4):
                number = 10 * index + factor
                calls.append((number, infer.future(infer_message("plus_one", X=A * number), timeout=20)))
        for number, call in calls:
            np.testing.assert_array_equal(array_of(call.result()), A * number + 1)
        assert server.grpc.num_connections >= 50
    wait_until(lambda: not server.grpc.num_connections)


@pytest.mark.slow
def test_a_thousand_calls_on_one_connection(server, channel):
    infer = infer_of(channel)
    calls = [infer.future(infer_message("plus_one", X=A * factor)) for factor in range(1000)]

    for factor, call in enumerate(calls):
        np.testing.assert_array_equal(array_of(call.result(timeout=20)), A * factor + 1)
    assert {connection._num_expected for connection in server.grpc._listener.connections} == {0}


@pytest.mark.slow
def test_keep_alive_pings_of_a_client_are_welcome_where_allowed(start_server, repository):
    own = start_server(
        repository,
        load_model=("add",),
        grpc=GrpcOptions(
            keepalive_permit_without_calls=True, http2_min_recv_ping_interval_without_data_ms=10
        ),
    )
    options = (
        OWN_CONNECTION,
        ("grpc.keepalive_time_ms", 50),
        ("grpc.keepalive_timeout_ms", 500),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    with grpc.insecure_channel(own.grpc_address, options=options) as channel:
        infer_of(channel)(infer_message("add", INPUT0=A, INPUT1=B))
        (connection,) = own.grpc._listener.connections
        time.sleep(0.5)  # about ten pings
        infer_of(channel)(infer_message("add", INPUT0=A, INPUT1=B))
        assert list(own.grpc._listener.connections) == [connection]


def test_too_many_pings_end_the_connection(server):
    with GrpcSocket(server.grpc_address) as client:
        assert client.call("/inference.GRPCInferenceService/ServerLive").status == 0
        for _ in range(4):
            client.h2.ping(b"12345678")
        client.flush()
        client.wait_closed()

    assert client.goaway is not None
    assert int(client.goaway.error_code) == 11  # ENHANCE_YOUR_CALM
    assert client.goaway.additional_data == b"too_many_pings"


@pytest.mark.slow
def test_a_client_that_answers_no_ping_is_cut(start_server, repository):
    options = GrpcOptions(
        keepalive_time_ms=100,
        keepalive_timeout_ms=100,
        keepalive_permit_without_calls=True,
        sweep_interval_s=0.05,
    )
    own = start_server(repository, grpc=options, load_model=())
    with GrpcSocket(own.grpc_address) as answering, GrpcSocket(own.grpc_address) as silent:
        answering.pump_for(1.0)
        assert not answering.is_closed
        silent.sock.settimeout(5)
        while silent.sock.recv(65536):
            pass


@pytest.mark.slow
def test_no_call_fails_when_connections_grow_old(start_server, repository):
    options = GrpcOptions(max_connection_age_ms=150, max_connection_age_grace_ms=2000, sweep_interval_s=0.02)
    own = start_server(repository, grpc=options, load_model=("plus_one",))
    seen = set()
    with grpc.insecure_channel(own.grpc_address, options=(OWN_CONNECTION,)) as channel:
        infer = infer_of(channel)
        end_s = time.monotonic() + 1.2
        while time.monotonic() < end_s:
            np.testing.assert_array_equal(array_of(infer(infer_message("plus_one", X=A))), A + 1)
            seen.update(map(id, list(own.grpc._listener.connections)))
    assert len(seen) >= 3


# Health and reflection


def health_call(channel: grpc.Channel, method: str):
    kind = channel.unary_unary if method == "Check" else channel.unary_stream
    return kind(
        f"/grpc.health.v1.Health/{method}",
        request_serializer=message_class("grpc.health.v1.HealthCheckRequest").SerializeToString,
        response_deserializer=message_class("grpc.health.v1.HealthCheckResponse").FromString,
    )


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "anything"])
def test_health_check(channel, service):
    request = message_class("grpc.health.v1.HealthCheckRequest")(service=service)

    assert health_call(channel, "Check")(request).status == 1


def test_health_watch_tells_of_the_stop(start_server, repository):
    own = start_server(repository, load_model=())
    request = message_class("grpc.health.v1.HealthCheckRequest")()

    async def announce_stop() -> None:
        own.engine.announce_stop()
        await own.grpc.retire(1)

    with grpc.insecure_channel(own.grpc_address) as channel:
        watch = health_call(channel, "Watch")(request)
        assert next(watch).status == 1
        own.call(announce_stop())
        assert next(watch).status == 2
        with pytest.raises(grpc.RpcError) as caught:
            next(watch)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_cancelled_watch_is_forgotten(server):
    request = message_class("grpc.health.v1.HealthCheckRequest")()
    with grpc.insecure_channel(server.grpc_address) as channel:
        watches = [health_call(channel, "Watch")(request) for _ in range(5)]
        assert [next(watch).status for watch in watches] == [1] * 5
        for watch in watches:
            watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(channel, version):
    package = f"grpc.reflection.{version}"
    request = message_class(f"{package}.ServerReflectionRequest")
    talk = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=request.SerializeToString,
        response_deserializer=message_class(f"{package}.ServerReflectionResponse").FromString,
    )
    questions = [
        request(list_services=""),
        request(file_containing_symbol="inference.GRPCInferenceService"),
        request(file_by_filename="grpc/health/v1/health.proto"),
        request(file_containing_symbol="no.such.Thing"),
    ]
    listed, symbol, named, missing = talk(iter(questions), timeout=10)

    services = {each.name for each in listed.list_services_response.service}
    assert {
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        f"{package}.ServerReflection",
    } <= services
    assert any(b"ModelStreamInfer" in each for each in symbol.file_descriptor_response.file_descriptor_proto)
    assert len(named.file_descriptor_response.file_descriptor_proto) == 1
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
