"""``grpc.health.v1``: Check and Watch."""

from __future__ import annotations

import asyncio

import pytest

from bireme.engine import ServerState
from bireme.frontend.grpc.health import NOT_SERVING, SERVING, HealthWatch
from bireme.types import Unavailable
from bireme.wire.grpc import message_class
from bireme.wire.grpc.status import Status
from grpc_handlers import FakeApi, ask, ask_later, open_stream
from http_fakes import FakeServer
from model_dirs import until

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
ENDED = (Status.UNAVAILABLE, "Server exiting")


@pytest.fixture
def server():
    return FakeServer()


def test_the_statuses_are_those_of_the_proto():
    status = message_class("grpc.health.v1.HealthCheckResponse").ServingStatus

    assert (status.Value("SERVING"), status.Value("NOT_SERVING")) == (SERVING, NOT_SERVING)


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "m", "no such service"])
def test_check_answers_for_the_whole_server_whatever_the_name(server, service):
    assert ask(server, CHECK, service=service).status == SERVING
    server.is_ready = False
    assert ask(server, CHECK, service=service).status == NOT_SERVING


def test_check_asks_models_that_have_a_say(server):
    async def scenario():
        server.asks_models = True
        server.hook = asyncio.get_running_loop().create_future()
        server.hook.set_result(False)
        assert (await ask_later(server, CHECK)).status == NOT_SERVING

    asyncio.run(scenario())


@pytest.mark.parametrize("state", [ServerState.EXITING, ServerState.STOPPED])
def test_check_is_an_error_while_the_server_stops(server, state):
    server.state = state

    with pytest.raises(Unavailable, match=r"^Server exiting$"):
        ask(server, CHECK)


class Watchers:
    """Watch calls of one server; its timer fires only when it is told to."""

    def __init__(self, server, interval_s=3600.0):
        self.api = FakeApi(server)
        self.api.health_watch = HealthWatch(server, interval_s)

    def open(self, service=""):
        handler, stream = open_stream(self.api, WATCH)
        handler.take(message_class("grpc.health.v1.HealthCheckRequest")(service=service))
        handler.end()
        return handler, stream


def statuses(stream):
    return [message.status for message in stream.sent]


def test_a_watcher_hears_the_status_at_once_and_then_each_change(server):
    async def scenario():
        watchers = Watchers(server)
        early, early_stream = watchers.open()
        assert statuses(early_stream) == [SERVING]
        watchers.api.health_watch.refresh()
        assert statuses(early_stream) == [SERVING]

        server.is_ready = False
        watchers.api.health_watch.refresh()
        late, late_stream = watchers.open("m")
        server.is_ready = True
        watchers.api.health_watch.refresh()

        assert statuses(early_stream) == [SERVING, NOT_SERVING, SERVING]
        assert statuses(late_stream) == [NOT_SERVING, SERVING]
        assert early_stream.ending is late_stream.ending is None
        early.cancel()
        late.cancel()

    asyncio.run(scenario())


def test_a_new_watcher_brings_the_others_up_to_date(server):
    async def scenario():
        watchers = Watchers(server)
        _, first = watchers.open()
        server.is_ready = False
        _, second = watchers.open()

        assert (statuses(first), statuses(second)) == ([SERVING, NOT_SERVING], [NOT_SERVING])

    asyncio.run(scenario())


def test_readiness_is_looked_at_while_anyone_watches(server):
    async def scenario():
        watchers = Watchers(server, interval_s=0.0005)
        handler, stream = watchers.open()
        for is_ready, expected in ((False, NOT_SERVING), (True, SERVING)):
            server.is_ready = is_ready
            await until(lambda expected=expected: statuses(stream)[-1] == expected)
        handler.cancel()
        server.is_ready = False
        handler, late = watchers.open()
        assert statuses(late) == [NOT_SERVING]
        assert statuses(stream) == [SERVING, NOT_SERVING, SERVING]
        handler.cancel()

    asyncio.run(scenario())


def test_no_timer_is_left_without_watchers(server):
    async def scenario():
        watchers = Watchers(server)
        loop = asyncio.get_running_loop()
        num_before = len(loop._scheduled)
        handlers = [watchers.open()[0] for _ in range(3)]
        timers = loop._scheduled[num_before:]
        assert len(timers) == 1
        for handler in handlers:
            handler.cancel()
            handler.cancel()
        assert timers[0].cancelled()

    asyncio.run(scenario())


def test_watchers_end_when_the_server_stops(server):
    async def scenario():
        watchers = Watchers(server)
        _, serving = watchers.open()
        server.is_ready = False
        server.state = ServerState.EXITING
        watchers.api.health_watch.refresh()
        watchers.api.health_watch.refresh()
        _, late = watchers.open()

        assert (statuses(serving), serving.ending) == ([SERVING, NOT_SERVING], ENDED)
        assert (statuses(late), late.ending) == ([NOT_SERVING], ENDED)

    asyncio.run(scenario())


def test_the_timer_finds_that_the_server_stops(server):
    async def scenario():
        _, stream = Watchers(server, interval_s=0.0005).open()
        server.state = ServerState.EXITING
        await until(lambda: stream.ending)

        assert stream.ending == ENDED

    asyncio.run(scenario())


def test_a_watcher_that_was_not_served_hears_no_second_time_of_it(server):
    async def scenario():
        server.is_ready = False
        watchers = Watchers(server)
        _, stream = watchers.open()
        server.state = ServerState.EXITING
        watchers.api.health_watch.refresh()

        assert (statuses(stream), stream.ending) == ([NOT_SERVING], ENDED)

    asyncio.run(scenario())


def test_a_watch_takes_one_request(server):
    async def scenario():
        watchers = Watchers(server)
        handler, stream = watchers.open()
        handler.take(message_class("grpc.health.v1.HealthCheckRequest")())
        assert statuses(stream) == [SERVING]
        handler.cancel()

        handler, stream = open_stream(watchers.api, WATCH)
        handler.end()
        assert stream.sent == []
        assert stream.ending == (Status.UNIMPLEMENTED, "Watch takes exactly one request message, got none")

    asyncio.run(scenario())
