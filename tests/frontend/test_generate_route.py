"""The generate routes over a fake engine: one object or events, statuses, order, backpressure and leaving."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from bireme.frontend.http import Restriction
from bireme.frontend.http.connection import CLIENT_LEFT
from bireme.frontend.http.event_stream import EventStream
from bireme.types import Internal, InvalidArgument, QueueFull, Tensor
from bireme.wire.encoded import MAX_SLICE_ELEMENTS
from http_fakes import Client, FakeServer, Owner, Reply, Scene, request, tensor, until

GENERATE = "/v2/models/m/generate"
STREAM = "/v2/models/m/generate_stream"
LIVE = request("/v2/health/live")
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
META = {"model_name": "m", "model_version": "1"}


def post(path, body=None, **headers) -> bytes:
    text = (
        body if isinstance(body, bytes) else json.dumps(body if body is not None else {"text": "hi"}).encode()
    )
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request(path, text, method="POST", headers=named)


def make_scene(**settings) -> Scene:
    server = FakeServer()
    server.models["m"].inputs = {
        "text": SimpleNamespace(name="text", datatype="BYTES", shape=(-1, 1)),
        "numbers": SimpleNamespace(name="numbers", datatype="FP32", shape=(-1,)),
    }
    server.holds = True
    return Scene(server, **settings)


@pytest.fixture
def scene():
    return make_scene()


def open_request(scene, data):
    """Send a request and return it as the engine has it."""
    num_before = len(scene.server.held)
    scene.client.send(data)
    (held,) = scene.server.held[num_before:]
    return held


def token(text: str, name: str = "out") -> list[Tensor]:
    return [tensor(name, np.array([text.encode()], object))]


def end(scene, held) -> None:
    """Answer with the mark alone that there are no more responses."""
    scene.server.answer(held, [], final=True, flag_only=True)


def last(scene) -> Reply:
    return scene.client.replies[-1]


# One response


def test_an_ordinary_model_answers_with_an_object(scene):
    scene.server.holds = False
    reply = scene.ask(post(GENERATE, {"text": "hi", "id": "r1"}))

    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.body == b'{"id":"r1","model_name":"m","model_version":"1","text":"hi"}'


def test_the_request_reaches_the_engine(scene):
    held = open_request(scene, post("/v2/models/m/versions/3/generate", {"text": "hi", "id": "r", "n": 1}))

    assert (held.model_name, held.model_version, held.id, held.parameters) == (
        "m",
        3,
        "r",
        {"id": "r", "n": 1},
    )


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_an_empty_body_is_an_empty_object(scene, path):
    held = open_request(scene, request(path, method="POST"))

    assert (held.inputs, held.parameters) == ({}, None)


def test_one_response_and_the_end_apart_are_one_response(scene):
    held = open_request(scene, post(GENERATE))
    scene.server.answer(held, token("a"), final=False)
    assert not scene.client.replies
    end(scene, held)

    assert (scene.client.reply().status, json.loads(scene.client.reply().body)) == (200, META | {"out": "a"})


def test_no_response_is_an_error(scene):
    end(scene, open_request(scene, post(GENERATE)))

    assert (scene.client.reply().status, json.loads(scene.client.reply().body)) == (500, {"error": NOT_ONE})


def test_a_second_response_is_an_error_at_once_and_the_rest_is_cancelled(scene):
    held = open_request(scene, post(GENERATE))
    scene.server.answer(held, token("a"), final=False)
    scene.server.answer(held, token("b"), final=False)

    assert (scene.client.reply().status, json.loads(scene.client.reply().body)) == (500, {"error": NOT_ONE})
    assert scene.server.cancelled == [held]
    scene.server.answer(held, token("c"), final=False)
    end(scene, held)
    assert scene.client.reply()


def test_a_second_and_last_response_is_an_error(scene):
    held = open_request(scene, post(GENERATE))
    scene.server.answer(held, token("a"), final=False)
    scene.server.answer(held, token("b"))

    assert json.loads(scene.client.reply().body) == {"error": NOT_ONE}
    assert scene.server.cancelled == []


@pytest.mark.parametrize("is_split", [False, True])
def test_an_error_response_keeps_its_status(scene, is_split):
    held = open_request(scene, post(GENERATE))
    scene.server.answer(held, [], error=QueueFull("full"), final=not is_split)
    if is_split:
        end(scene, held)

    assert (scene.client.reply().status, json.loads(scene.client.reply().body)) == (503, {"error": "full"})
    assert scene.client.reply().headers["retry-after"] == "1"


# What is refused before the engine has it


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"{", {}, 400, "failed to parse the request JSON buffer:"),
        (b"[]", {}, 400, "the request must be a JSON object"),
        (b'{"text": 1}', {}, 400, "expects a string"),
        (
            b"{}",
            {"Content_Encoding": "gzip"},
            400,
            "Unsupported content-encoding, only 'identity' is supported.",
        ),
        (
            b"{}",
            {"Content_Encoding": "br"},
            400,
            "Unsupported content-encoding, only 'identity' is supported.",
        ),
    ],
)
def test_faults_are_json_errors(scene, path, body, headers, status, text):
    reply = scene.ask(post(path, body, **headers))

    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    assert text in json.loads(reply.body)["error"]


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_refusals_of_the_engine_are_json_errors(scene, path):
    scene.server.submit_error = InvalidArgument("expected 2 inputs but got 1")
    reply = scene.ask(post(path))

    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    assert json.loads(reply.body) == {"error": "expected 2 inputs but got 1"}


def test_an_unknown_model_comes_first(scene):
    assert scene.ask(post("/v2/models/x/generate", b"{", Content_Encoding="gzip")).status == 404
    assert scene.ask(post("/v2/models/m/versions/99999999999999999999/generate_stream")).status == 400


def test_identity_is_no_encoding(scene):
    scene.server.holds = False

    assert scene.ask(post(GENERATE, Content_Encoding="Identity")).status == 200


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_bodies_are_limited(path):
    reply = make_scene(max_input_size=1000).ask(post(path, {"text": "x" * 1000}))

    assert reply.status == 400
    assert "bytes exceeds the maximum allowed input size of" in json.loads(reply.body)["error"]


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_the_inference_category_restricts_both(path):
    scene = make_scene(restricted_apis=(Restriction(("inference",), "X-Key", "sesame"),))
    scene.server.holds = False

    assert scene.ask(post(path)).status == 403
    assert scene.ask(post(path, X_Key="sesame")).status == 200


def test_headers_are_not_forwarded():
    scene = make_scene(header_forward_pattern="^x-.*")

    assert open_request(scene, post(GENERATE, X_Tenant="t")).parameters is None


def test_chunked_bodies_are_taken(scene):
    head = request(STREAM, method="POST", headers={"Transfer-Encoding": "chunked"})
    held = open_request(scene, head + b'7\r\n{"text"\r\n6\r\n:"hi"}\r\n0\r\n\r\n')

    assert held.inputs["text"].to_numpy().tolist() == [[b"hi"]]


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_large_bodies_are_parsed_by_another_process(path):
    async def scenario():
        scene = make_scene(offload_size=1000)
        scene.server.models["m"].validator = SimpleNamespace(check_bytes=lambda request: None)
        values = list(range(5000))
        text = "x" * 100_000
        scene.client.send(post(path, {"numbers": values, "text": text, "id": "r", "priority": 1}))
        await until(lambda: scene.server.held)
        (held,) = scene.server.held
        assert held.inputs["numbers"].to_numpy().tolist() == values
        assert held.inputs["text"].to_numpy().tolist() == [[text.encode()]]
        assert (held.id, held.parameters, held.priority) == ("r", {"id": "r", "priority": 1}, 0)
        scene.server.answer(held, token("done"))
        assert scene.client.reply().status == 200
        bad = await scene.ask_later(post(path, {"numbers": ["x"] * 5000}))
        assert (bad.status, bad.headers["content-type"]) == (400, "application/json")
        assert "expects a number" in json.loads(bad.body)["error"]
        await scene.api.stop()

    asyncio.run(scenario())


def test_large_answers_are_encoded_in_turns():
    async def scenario():
        scene = make_scene()
        held = open_request(scene, post(GENERATE))
        values = np.arange(4 * MAX_SLICE_ELEMENTS)
        scene.server.answer(held, [tensor("n", values)])
        assert not scene.client.replies
        await until(lambda: scene.client.replies)
        assert json.loads(scene.client.reply().body)["n"] == values.tolist()
        await scene.api.stop()

    asyncio.run(scenario())


# Streams


def test_every_response_is_an_event_as_soon_as_it_comes(scene):
    held = open_request(scene, post(STREAM, {"text": "hi", "id": "r"}))
    assert scene.client.transport.written == b""
    for number, word in enumerate(("a", "b", "c"), 1):
        scene.server.answer(held, token(word), final=False)
        assert len(scene.client.transport.writes) == number
        reply = scene.client.reply()
        assert reply.events == [META | {"id": "r", "out": each} for each in "abc"[:number]]
        assert not reply.is_complete
    end(scene, held)
    reply = scene.client.reply()

    assert reply.is_complete
    assert len(reply.events) == 3
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["transfer-encoding"] == "chunked"
    assert scene.client.transport.written.endswith(b"\r\n0\r\n\r\n")
    assert scene.client.connection.is_idle


def test_a_last_response_ends_the_stream_in_the_same_write(scene):
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, token("a"))

    assert scene.client.reply().is_complete
    assert scene.client.reply().events == [META | {"out": "a"}]
    assert len(scene.client.transport.writes) == 1


def test_an_ordinary_model_streams_its_one_response(scene):
    scene.server.holds = False

    assert scene.ask(post(STREAM)).events == [META | {"text": "hi"}]


def test_no_response_is_a_stream_without_events(scene):
    end(scene, open_request(scene, post(STREAM)))
    reply = scene.client.reply()

    assert (reply.status, reply.body, reply.is_complete) == (200, b"", True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_a_first_response_that_is_an_error_sets_the_status(scene):
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, [], error=QueueFull("full"))
    reply = scene.client.reply()

    assert (reply.status, reply.events, reply.is_complete) == (503, [{"error": "full"}], True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["retry-after"] == "1"


def test_a_later_error_is_an_event_and_the_stream_goes_on(scene):
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, token("a"), final=False)
    scene.server.answer(held, [], error=Internal("no luck"), final=False)
    scene.server.answer(held, token("b"))
    reply = scene.client.reply()

    assert (reply.status, reply.is_complete) == (200, True)
    assert reply.events == [META | {"out": "a"}, {"error": "no luck"}, META | {"out": "b"}]


def test_a_response_that_cannot_be_encoded_is_an_error_event(scene, caplog):
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, token("a"), final=False)
    scene.server.answer(held, [Tensor("out", "FP32", (1,), np.array([object()]))], final=False)
    scene.server.answer(held, token("b"))
    events = scene.client.reply().events

    assert [*events[1]] == ["error"]
    assert "internal error" in events[1]["error"]
    assert events[2]["out"] == "b"
    assert "Traceback" in caplog.text


def test_large_events_keep_their_place():
    async def scenario():
        scene = make_scene()
        held = open_request(scene, post(STREAM))
        values = np.arange(4 * MAX_SLICE_ELEMENTS)
        scene.server.answer(held, token("a"), final=False)
        scene.server.answer(held, [tensor("n", values)], final=False)
        scene.server.answer(held, token("b"), final=False)
        scene.server.answer(held, [tensor("n", values)], final=False)
        end(scene, held)
        await until(lambda: scene.client.reply().is_complete)
        first, second, third, fourth = scene.client.reply().events
        assert (first["out"], third["out"]) == ("a", "b")
        assert second["n"] == fourth["n"] == values.tolist()
        assert scene.client.connection.is_idle
        await scene.api.stop()

    asyncio.run(scenario())


def test_a_large_last_event_ends_the_stream():
    async def scenario():
        scene = make_scene()
        scene.server.answer(
            open_request(scene, post(STREAM)), [tensor("n", np.arange(4 * MAX_SLICE_ELEMENTS))]
        )
        await until(lambda: scene.client.replies)
        assert scene.client.reply().is_complete
        assert len(scene.client.reply().events) == 1
        await scene.api.stop()

    asyncio.run(scenario())


# Order on the connection


def test_requests_behind_a_stream_wait_for_its_end(scene):
    held = open_request(scene, post(STREAM))
    scene.client.send(LIVE + LIVE)
    scene.server.answer(held, token("a"), final=False)
    assert len(scene.client.replies) == 1
    scene.server.answer(held, token("b"))

    assert [reply.status for reply in scene.client.replies] == [200, 200, 200]
    assert len(scene.client.replies[0].events) == 2


def test_a_stream_behind_a_request_waits_with_its_events(scene):
    first = open_request(scene, post(GENERATE))
    second = open_request(scene, post(STREAM))
    scene.client.send(LIVE)
    scene.server.answer(second, token("a"), final=False)
    scene.server.answer(second, token("b"), final=False)
    assert scene.client.transport.written == b""
    scene.server.answer(first, token("x"))
    _, stream = scene.client.replies
    assert ([event["out"] for event in stream.events], stream.is_complete) == (["a", "b"], False)
    scene.server.answer(second, token("c"), final=False)
    end(scene, second)

    _, stream, live = scene.client.replies
    assert [event["out"] for event in stream.events] == ["a", "b", "c"]
    assert (stream.is_complete, live.status) == (True, 200)
    assert scene.client.connection.is_idle


def test_a_stream_that_is_over_waits_whole(scene):
    first, second, third = (open_request(scene, post(path)) for path in (STREAM, STREAM, GENERATE))
    scene.server.answer(second, token("a"), final=False)
    end(scene, second)
    scene.server.answer(third, token("b"))
    assert scene.client.transport.written == b""
    end(scene, first)

    assert [reply.is_complete for reply in scene.client.replies] == [True] * 3
    assert len(scene.client.replies[1].events) == 1


def test_a_connection_that_is_to_close_does_so_behind_the_stream(scene):
    held = open_request(scene, post(STREAM, Connection="close"))
    scene.server.answer(held, token("a"), final=False)
    assert scene.client.reply().headers["connection"] == "close"
    assert not scene.client.transport.is_closed
    end(scene, held)

    assert scene.client.reply().is_complete
    assert scene.client.transport.is_closed


def test_a_stream_in_flight_survives_the_drain(scene):
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, token("a"), final=False)
    scene.client.connection.drain()
    scene.server.answer(held, token("b"), final=False)
    assert not scene.client.transport.is_closed
    end(scene, held)

    assert len(scene.client.reply().events) == 2
    assert scene.client.transport.is_closed
    assert not scene.client.transport.is_aborted


def test_a_stream_that_begins_while_draining_says_that_it_is_the_last(scene):
    held = open_request(scene, post(STREAM))
    scene.client.connection.drain()
    scene.server.answer(held, token("a"))

    assert scene.client.reply().headers["connection"] == "close"
    assert scene.client.transport.is_closed


# Clients that know no chunks


def old(data: bytes) -> bytes:
    return data.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\n", 1)


@pytest.mark.parametrize("keep_alive", [False, True])
def test_for_http_1_0_the_end_of_the_connection_is_that_of_the_stream(scene, keep_alive):
    headers = {"Connection": "keep-alive"} if keep_alive else {}
    held = open_request(scene, old(post(STREAM, **headers)))
    scene.server.answer(held, token("a"), final=False)
    scene.client.send(LIVE)
    assert not scene.client.transport.is_closed
    scene.server.answer(held, token("b"), final=False)
    end(scene, held)
    head, _, body = bytes(scene.client.transport.written).partition(b"\r\n\r\n")

    assert scene.client.transport.is_closed
    assert head.count(b"\r\nConnection: close") == 1
    assert b"keep-alive" not in head
    assert b"Transfer-Encoding" not in head
    assert Reply(200, {}, body).events == [META | {"out": "a"}, META | {"out": "b"}]


def test_requests_behind_a_stream_of_http_1_0_are_given_up(scene):
    held = open_request(scene, old(post(STREAM, Connection="keep-alive")))
    behind = open_request(scene, post(GENERATE))
    scene.server.answer(held, token("a"), final=False)
    end(scene, held)

    assert scene.client.transport.is_closed
    assert scene.server.cancelled == [behind]
    scene.server.answer(behind, token("x"))
    assert scene.client.transport.written.count(b"HTTP/1.1 200") == 1


def test_a_stream_of_http_1_0_that_waited_closes_too(scene):
    first = open_request(scene, old(post(GENERATE, Connection="keep-alive")))
    second = open_request(scene, old(post(STREAM, Connection="keep-alive")))
    third = open_request(scene, old(post(GENERATE, Connection="keep-alive")))
    scene.server.answer(second, token("a"), final=False)
    end(scene, second)
    scene.server.answer(third, token("c"))
    assert not scene.client.transport.is_closed
    scene.server.answer(first, token("b"))

    assert scene.client.transport.is_closed
    assert scene.client.transport.written.count(b"HTTP/1.1 200") == 2
    assert scene.client.transport.written.endswith(b"}\n\n")


# Clients that leave, and clients that do not read


@pytest.mark.parametrize("num_events", [0, 1, 2])
def test_a_client_that_leaves_cancels_its_request(scene, num_events):
    held = open_request(scene, post(STREAM))
    for _ in range(num_events):
        scene.server.answer(held, token("a"), final=False)
    scene.client.leave()

    assert scene.server.cancelled == [held]
    scene.server.answer(held, token("b"), final=False)
    end(scene, held)
    assert scene.client.listener.statuses == {CLIENT_LEFT: 1}


def test_a_client_that_leaves_while_an_event_is_encoded_cancels_its_request():
    async def scenario():
        scene = make_scene()
        held = open_request(scene, post(STREAM))
        scene.server.answer(held, [tensor("n", np.arange(4 * MAX_SLICE_ELEMENTS))], final=False)
        scene.client.leave()
        scene.server.answer(held, token("b"))
        await scene.api.stop()
        assert scene.server.cancelled == [held]
        assert scene.client.transport.written == b""

    asyncio.run(scenario())


def test_a_client_that_does_not_read_loses_its_request_and_its_connection(caplog):
    scene = make_scene(max_unsent_bytes=2000)
    held = open_request(scene, post(STREAM))
    behind = open_request(scene, post(GENERATE))
    scene.server.answer(held, token("x" * 3000), final=False)
    scene.client.transport.num_unsent = 2000
    scene.server.answer(held, token("y"), final=False)
    assert scene.server.cancelled == []
    scene.client.transport.num_unsent = 2001
    with caplog.at_level(logging.WARNING):
        scene.server.answer(held, token("z"), final=False)

    assert scene.server.cancelled == [held, behind]
    assert scene.client.transport.is_aborted
    assert "more than 2000 bytes" in caplog.text
    num_written = len(scene.client.transport.written)
    scene.server.answer(held, token("z"), final=False)
    scene.server.answer(behind, token("z"))
    assert len(scene.client.transport.written) == num_written
    scene.client.connection.connection_lost(None)
    assert scene.server.cancelled == [held, behind]


def test_a_client_that_is_behind_makes_the_model_wait_until_it_has_read():
    scene = make_scene(max_unsent_bytes=4000)
    held = open_request(scene, post(STREAM))
    owner = Owner(held)
    connection, transport = scene.client.connection, scene.client.transport
    scene.server.answer(held, token("x" * 2000), final=False)
    transport.num_unsent = 1001
    scene.server.answer(held, token("x"), final=False)
    scene.server.answer(held, token("x"), final=False)
    assert owner.events == ["hold"]
    transport.num_unsent = 600
    connection.pause_writing()
    connection.resume_writing()
    assert owner.events == ["hold"]
    transport.num_unsent = 500
    connection.pause_writing()
    connection.resume_writing()
    connection.resume_writing()

    assert owner.events == ["hold", "resume"]
    end(scene, held)
    assert scene.client.reply().is_complete


def test_a_model_waits_for_answers_before_its_own():
    scene = make_scene(max_unsent_bytes=4000)
    first = open_request(scene, post(GENERATE))
    held = open_request(scene, post(STREAM))
    owner = Owner(held)
    scene.server.answer(held, token("x" * 2000), final=False)
    assert owner.events == ["hold"]
    scene.server.answer(first, token("y"))

    assert owner.events == ["hold", "resume"]
    end(scene, held)
    assert [reply.is_complete for reply in scene.client.replies] == [True, True]


@pytest.mark.parametrize("how", ["leave", "end"])
def test_nothing_is_left_of_a_wait(how):
    scene = make_scene(max_unsent_bytes=4000)
    held = open_request(scene, post(STREAM))
    owner = Owner(held)
    exchange = scene.client.connection._queue[0]
    scene.server.answer(held, token("x" * 2000), final=False)
    scene.client.transport.num_unsent = 2000
    scene.server.answer(held, token("x"), final=False)
    assert exchange.on_room is not None
    if how == "leave":
        scene.client.leave()
    else:
        end(scene, held)

    assert exchange.on_room is None
    assert owner.events == ["hold"]


def test_responses_that_wait_for_a_large_one_make_the_model_wait():
    async def scenario():
        scene = make_scene(max_unsent_bytes=80_000)
        held = open_request(scene, post(STREAM))
        owner = Owner(held)
        scene.server.answer(held, [tensor("n", np.arange(4 * MAX_SLICE_ELEMENTS))], final=False)
        for _ in range(3):
            scene.server.answer(held, token("x" * 10_000), final=False)
        assert owner.events == ["hold"]
        await until(lambda: owner.events == ["hold", "resume"])
        end(scene, held)
        await scene.api.stop()

    asyncio.run(scenario())


def test_what_is_unsent_of_earlier_answers_is_not_the_streams():
    scene = make_scene(max_unsent_bytes=2000)
    scene.client.transport.num_unsent = 1_000_000
    held = open_request(scene, post(STREAM))
    for _ in range(5):
        scene.server.answer(held, token("x"), final=False)

    assert not scene.client.transport.is_closed


def test_the_end_alone_costs_nobody_the_connection():
    scene = make_scene(max_unsent_bytes=2000)
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, token("x" * 3000), final=False)
    scene.client.transport.num_unsent = 3000
    end(scene, held)

    assert scene.client.reply().is_complete


def test_events_that_wait_for_an_earlier_answer_are_counted():
    scene = make_scene(max_unsent_bytes=2000)
    open_request(scene, post(GENERATE))
    held = open_request(scene, post(STREAM))
    for _ in range(40):
        scene.server.answer(held, token("x" * 100), final=False)

    assert scene.client.transport.is_aborted
    assert held in scene.server.cancelled


def test_responses_that_wait_for_a_large_one_are_counted():
    async def scenario():
        scene = make_scene(max_unsent_bytes=20_000)
        held = open_request(scene, post(STREAM))
        scene.server.answer(held, [tensor("n", np.arange(4 * MAX_SLICE_ELEMENTS))], final=False)
        for _ in range(3):
            scene.server.answer(held, token("x" * 10_000), final=False)
            assert not scene.client.transport.is_closed
        scene.server.answer(held, [tensor("n", np.zeros(10))], final=False)
        assert scene.client.transport.is_aborted
        await scene.api.stop()

    asyncio.run(scenario())


def test_a_stalled_reader_is_cut_when_the_model_is_done(scene):
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, token("x"), final=False)
    for _ in range(100):
        scene.client.connection.sweep()
    assert not scene.client.transport.is_closed  # the model may take its time
    end(scene, held)
    scene.client.transport.num_unsent = 5
    for _ in range(100):
        scene.client.connection.sweep()

    assert scene.client.transport.is_aborted


def test_a_bug_behind_the_first_event_cuts_the_stream(scene, monkeypatch, caplog):
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, token("a"), final=False)
    monkeypatch.setattr(EventStream, "_send_waiting", lambda self: 1 / 0)
    scene.server.answer(held, token("b"), final=False)

    assert scene.client.transport.is_aborted
    assert not scene.client.reply().is_complete
    assert "ZeroDivisionError" in caplog.text


# Bookkeeping


def test_a_stream_is_logged_once_with_its_whole_size():
    entries = []
    scene = make_scene()
    scene.client = Client(
        scene.client.listener.resolve,
        cancel=scene.server.cancel,
        log_access=lambda *entry: entries.append(entry),
    )
    held = open_request(scene, post(STREAM))
    scene.server.answer(held, token("a"), final=False)
    assert not entries
    scene.server.answer(held, [], error=Internal("no luck"), final=False)
    end(scene, held)
    ((exchange, size),) = entries

    assert size == len(scene.client.transport.written)
    assert (exchange.status, exchange.error) == (200, "no luck")
    assert scene.client.listener.statuses == {200: 1}


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_nothing_is_left_for_the_garbage_collector(scene, path):
    def serve():
        held = open_request(scene, post(path))
        scene.server.answer(held, token("a"), final=False)
        end(scene, held)
        scene.server.held.clear()
        scene.server.submitted.clear()

    serve()
    gc.collect()
    gc.disable()
    try:
        serve()
        num_found = gc.collect()
    finally:
        gc.enable()

    assert num_found == 0
    assert last(scene).is_complete
