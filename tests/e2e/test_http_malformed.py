"""Case 8 of the users' list, and worse: whatever is sent, the answer is a 4xx that helps, and the server lives on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from e2e_server import fake_config
from http_fakes import Reply, parse_replies, post_infer, request

CLOSE = {"Connection": "close"}


def exchange(server, data: bytes) -> list[Reply]:
    """Send ``data``, close our side's sending end only after the answer, and return all answers."""
    with socket.create_connection(("127.0.0.1", server.http.port), timeout=10) as client:
        client.sendall(data)
        received = bytearray()
        while piece := client.recv(1 << 20):
            received += piece
    return list(parse_replies(bytes(received)))


def ask(server, model: str, document: object, *blobs: bytes, **headers) -> tuple[int, str]:
    path = f"/v2/models/{model}/infer"
    (reply,) = exchange(server, post_infer(document, *blobs, path=path, **CLOSE, **headers))
    body = json.loads(reply.body) if reply.headers["content-type"] == "application/json" else {}
    return reply.status, body.get("error", "")


@pytest.fixture
def _alive(server) -> Iterator[None]:
    yield
    (reply,) = exchange(server, request("/v2/health/live", headers=CLOSE))
    assert reply.status == 200


def json_input(shape: object, data: object, datatype: str = "INT32") -> dict:
    return {"inputs": [{"name": "X", "datatype": datatype, "shape": shape, "data": data}]}


def binary_input(shape: list[int], nbytes: int, datatype: str = "INT32") -> dict:
    item = {"name": "X", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": nbytes}}
    return {"inputs": [item]}


@pytest.mark.usefixtures("_alive")
@pytest.mark.parametrize(
    ("model", "document", "blobs", "text"),
    [
        ("identity_uint8", json_input([-1, 16], [1] * 16, "UINT8"), (), "'X'"),
        ("identity_int32", json_input([2], [1, [2, 3]]), (), "'X'"),
        ("identity_int32", b"", (), "failed to parse the request JSON buffer"),
        ("identity_int32", binary_input([2], 9), (bytes(9),), "'X'"),
        ("identity_int32", binary_input([2], 8), (bytes(7),), "'X'"),
        ("identity_int32", binary_input([2], 8), (bytes(9),), "additional input data"),
        ("identity_int32", binary_input([2**62], 8), (bytes(8),), "'X'"),
        ("identity_int32", json_input([1], ["1"]), (), "'X'"),
        ("identity_int32", json_input([1], [1], "INT33"), (), "INT33"),
        ("identity_int32", json_input([1, 1], [1]), (), "unexpected shape for input 'X'"),
        ("identity_int32", json_input("1", [1]), (), "'shape'"),
        ("identity_int32", {"inputs": []}, (), "expected 1 inputs but got 0"),
        ("identity_int32", {"inputs": {}}, (), "'inputs'"),
        ("identity_int32", {}, (), "'inputs'"),
        ("identity_int32", [], (), "object"),
        ("identity_bytes", binary_input([1], 4, "BYTES"), (b"\xff\xff\xff\xff",), "'X'"),
        ("identity_bytes", binary_input([2], 8, "BYTES"), (b"\4\0\0\0text",), "'X'"),
        ("identity_int32", b'{"inputs":' + b"[" * 100_000, (), "failed to parse"),
        ("identity_int32", {"id": 5} | json_input([1], [1]), (), "'id'"),
        ("identity_int32", json_input([1], [1]) | {"parameters": {"timeout": -1}}, (), "'timeout'"),
    ],
)
def test_wrong_bodies_are_a_400_that_names_what_is_wrong(server, model, document, blobs, text):
    status, error = ask(server, model, document, *blobs)

    assert status == 400
    assert text in error


@pytest.mark.usefixtures("_alive")
def test_a_good_body_with_a_form_content_type_succeeds(server):
    headers = {"Content_Type": "application/x-www-form-urlencoded"}

    assert ask(server, "identity_int32", json_input([1], [1]), **headers) == (200, "")


@pytest.mark.usefixtures("_alive")
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", 431),
        (b"POST /v2/models/add/infer HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 400),
        (b"POST /v2/models/add/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnot hex\r\n", 400),
        (
            b"POST /v2/models/add/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"1\r\nx\r\n" * 65_537,
            400,
        ),
    ],
)
def test_what_is_not_http_gets_a_json_error(server, data, status):
    (reply,) = exchange(server, data)

    assert reply.status == status
    assert json.loads(reply.body)["error"]
    assert reply.headers["connection"] == "close"


@pytest.mark.usefixtures("_alive")
def test_one_byte_at_a_time(server):
    data = post_infer(json_input([2], [1, 2]), path="/v2/models/identity_int32/infer", **CLOSE)
    with socket.create_connection(("127.0.0.1", server.http.port), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(data)):
            client.sendall(data[index : index + 1])
        received = b""
        while piece := client.recv(65536):
            received += piece
    (reply,) = parse_replies(received)

    assert json.loads(reply.body)["outputs"][0]["data"] == [1, 2]


@pytest.mark.usefixtures("_alive")
def test_pipelined_requests_of_all_kinds_are_answered_in_order(server):
    paths = ["/v2", "/v2/health/live", "/v2/nothing", "/v2/models/add", "/v2/models/add/config"]
    infer = post_infer(json_input([1], [7]), path="/v2/models/identity_int32/infer")
    data = b"".join(request(path) + infer for path in paths) + request("/v2", headers=CLOSE)
    replies = exchange(server, data)

    assert [reply.status for reply in replies] == [200, 200, 200, 200, 404, 200, 200, 200, 200, 200, 200]
    assert all(b'"data":[7]' in reply.body for reply in replies[1:-1:2])


# Arbitrary input. Few examples each: the wire's own tests are where millions of them belong.

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.binary(max_size=300))
def test_arbitrary_bytes_after_a_request_line(server, tail):
    data = b"POST /v2/models/identity_int32/infer HTTP/1.1\r\nConnection: close\r\n" + tail + b"\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http.port), timeout=10) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        received = bytearray()
        while piece := client.recv(1 << 20):
            received += piece
    for reply in parse_replies(bytes(received)):
        assert reply.status < 500 or reply.status == 501


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "datatype", "shape", "data", "parameters", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["X", "Z"]) | VALUES,
        "datatype": st.sampled_from(["INT32", "FP32", "BYTES", "FP16"]) | VALUES,
        "shape": st.lists(st.integers(-2, 5), max_size=3) | VALUES,
        "data": st.lists(st.integers(-5, 5), max_size=6) | VALUES,
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_size", "shared_memory_region", "classification", "y"]),
            VALUES,
            max_size=3,
        )
        | VALUES,
    },
)
DOCUMENTS = VALUES | st.fixed_dictionaries(
    {"inputs": st.lists(INPUTS, max_size=3) | VALUES},
    optional={
        "id": VALUES,
        "outputs": st.lists(
            st.fixed_dictionaries({"name": st.just("Y") | VALUES}, optional={"parameters": VALUES}),
            max_size=2,
        )
        | VALUES,
        "parameters": VALUES,
    },
)


@FUZZ
@given(DOCUMENTS, st.binary(max_size=20))
def test_arbitrary_json_and_tail(server, document, tail):
    status, error = ask(server, "identity_int32", document, *([tail] if tail else []))

    # 404: a shared memory region was asked for
    assert status in {200, 400} or (status, "hared memory region" in error) == (404, True)


def test_every_answer_is_counted_by_its_status_refused_requests_included(start_fake) -> None:
    server, _ = start_fake({"m": fake_config("m")})
    for sent in (
        request("/v2/health/live", headers=CLOSE),
        request("/nowhere", headers=CLOSE),
        post_infer({"inputs": 1}, path="/v2/models/m/infer", **CLOSE),
        b"nonsense\r\n\r\n",
    ):
        exchange(server, sent)

    assert dict(server.engine.metrics.responses("http")) == {200: 1, 404: 1, 400: 2}
