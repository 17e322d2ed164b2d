"""Flow control of what is sent: `h2` as a client with tiny and changing windows, which raises when one is exceeded.

Whatever client, front end and transport do in turn, the bytes of each answer arrive once and in order, its trailers last.
"""

from __future__ import annotations

import random

import h2.config
import h2.connection
import h2.events
import pytest
from h2.settings import SettingCodes
from hypothesis import given, strategies as st

from bireme.wire.http2 import ErrorCode, Http2Limits
from http2_client import REQUEST_HEADERS, RESPONSE_BLOCK, TRAILERS_BLOCK, Server

LEFT = 100
"""Bytes that the connection's window lets through at first."""
MAX_BURST = 500


NOISE = random.Random(0).randbytes(1 << 17)
"""Each answer is a part of it, so that bytes tell where in which answer they belong."""


class Answer:
    """What one stream is to carry, and what of it has arrived."""

    def __init__(self, call):
        self.call = call
        self.stream = call.stream
        self.sent = b""
        self.has_headers = False
        self.is_finished = False
        self.is_reset = False
        self.arrived = b""
        self.has_trailers = False

    def make(self, sizes):
        """Return pieces of the given sizes that continue the answer."""
        pieces = []
        for size in sizes:
            start = 31 * self.stream.id + len(self.sent)
            pieces.append(NOISE[start : start + size])
            self.sent += pieces[-1]
        return pieces


class Conversation:
    """A server that answers, a transport that may be paused, and a client that opens its windows by hand."""

    def __init__(self):
        self.server = Server(Http2Limits(max_output_burst=MAX_BURST))
        self.connection = self.server.connection
        self.client = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )
        self.settings = {"INITIAL_WINDOW_SIZE": 65_535, "MAX_FRAME_SIZE": 1 << 14}
        self.answers: list[Answer] = []
        self.client.initiate_connection()
        self.exchange()
        self.open()
        self.send(0, [65_535 - LEFT])
        self.finish(0)
        self.deliver()

    # The client

    def open(self):
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, list(REQUEST_HEADERS), end_stream=True)
        self.exchange()
        self.answers.append(Answer(self.server.handler.calls[stream_id]))

    def widen(self, slot, increment):
        answer = self.pick(slot)
        if not (answer.has_trailers or answer.is_reset):
            self.client.increment_flow_control_window(increment, answer.stream.id)

    def widen_all(self, increment):
        self.client.increment_flow_control_window(increment)

    def set_window(self, size):
        self.change_settings(INITIAL_WINDOW_SIZE=size)

    def set_frame_size(self, size):
        self.change_settings(MAX_FRAME_SIZE=size)

    def change_settings(self, **changes):
        # Always both: `h2` takes an acknowledgement for that of the oldest value of each setting.
        self.settings |= changes
        self.client.update_settings({SettingCodes[name]: value for name, value in self.settings.items()})

    def cancel(self, slot):
        answer = self.pick(slot)
        if not (answer.has_trailers or answer.is_reset):
            answer.is_reset = True
            self.client.reset_stream(answer.stream.id, ErrorCode.CANCEL)

    def exchange(self):
        """Let what each side has put out arrive at the other, the client's bytes first."""
        self.server.feed(self.client.data_to_send())
        self.deliver()

    def deliver(self):
        """Let the transport take what is put out, and the client look at it."""
        while output := self.connection.take_output():
            for event in self.client.receive_data(b"".join(output)):
                self.take(event)

    def take(self, event):
        if isinstance(event, h2.events.DataReceived):
            answer = self.find(event.stream_id)
            assert not answer.has_trailers
            answer.arrived += event.data
        elif isinstance(event, h2.events.TrailersReceived):
            answer = self.find(event.stream_id)
            assert not answer.has_trailers
            assert answer.arrived == answer.sent
            answer.has_trailers = True
        else:
            assert not isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated))

    # The server

    def send(self, slot, sizes):
        answer = self.pick(slot)
        if not answer.has_headers:
            answer.has_headers = True
            self.connection.send_headers(answer.stream, RESPONSE_BLOCK)
        if not answer.is_finished and not answer.is_reset:
            self.connection.send_data(answer.stream, answer.make(sizes), sum(sizes))

    def finish(self, slot):
        answer = self.pick(slot)
        if answer.has_headers and not answer.is_finished:
            answer.is_finished = True
            self.connection.finish(answer.stream, TRAILERS_BLOCK)

    def reply(self, slot, size):
        answer = self.pick(slot)
        if not answer.has_headers and not answer.is_reset:
            answer.has_headers = answer.is_finished = True
            self.connection.answer(answer.stream, RESPONSE_BLOCK, answer.make([size]), size, TRAILERS_BLOCK)

    def pause(self):
        self.connection.is_writable = False

    def resume(self):
        self.connection.resume()

    # What both know

    def pick(self, slot):
        return self.answers[slot % len(self.answers)]

    def find(self, stream_id):
        return next(answer for answer in self.answers if answer.stream.id == stream_id)

    def check(self):
        """Check what holds at any time."""
        for answer in self.answers:
            assert answer.sent.startswith(answer.arrived)
            if not answer.is_reset:
                num_under_way = len(answer.sent) - len(answer.arrived) - answer.stream.unsent_size
                assert num_under_way >= 0
                assert answer.stream.is_closed <= answer.is_finished

    def conclude(self):
        """Open all windows wide, and look whether all answers are complete."""
        self.exchange()
        self.resume()
        self.set_window(1 << 20)
        self.widen_all(1 << 20)
        for slot in range(len(self.answers)):
            self.send(slot, [])
            self.finish(slot)
        self.exchange()
        self.exchange()
        for answer in self.answers:
            if not answer.is_reset:
                assert answer.arrived == answer.sent
                assert answer.has_trailers
                assert answer.stream.unsent_size == 0
                assert answer.call.num_drained <= len(answer.sent)
        assert not self.connection.streams
        assert not self.connection.is_closed


slots = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("open")),
    st.tuples(st.just("send"), slots, st.lists(st.integers(0, 80), max_size=4)),
    st.tuples(st.just("send"), slots, st.lists(st.integers(0, 700), min_size=1, max_size=2)),
    st.tuples(st.just("finish"), slots),
    st.tuples(st.just("reply"), slots, st.integers(0, 200)),
    st.tuples(st.just("widen"), slots, st.integers(1, 60)),
    st.tuples(st.just("widen_all"), st.integers(1, 200)),
    st.tuples(st.just("set_window"), st.integers(0, 120)),
    st.tuples(st.just("set_frame_size"), st.sampled_from([1 << 14, 20_000, 1 << 17])),
    st.tuples(st.just("cancel"), slots),
    st.tuples(st.just("pause")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("exchange")),
    st.tuples(st.just("deliver")),
)


@pytest.mark.slow
@given(st.lists(steps, max_size=40))
def test_answers_arrive_once_and_in_order_through_any_windows(steps):
    conversation = Conversation()
    conversation.set_window(50)
    conversation.open()
    for name, *arguments in steps:
        getattr(conversation, name)(*arguments)
        conversation.check()
    conversation.conclude()


@pytest.mark.slow
@given(st.lists(st.integers(0, 400), min_size=1, max_size=5), st.integers(1, 40))
def test_answers_share_a_connection_window_that_opens_in_drops(sizes, increment):
    conversation = Conversation()
    for size in sizes:
        conversation.open()
        conversation.reply(len(conversation.answers) - 1, size)
    for _ in range(sum(sizes) // increment + 1):
        before = sum(len(answer.arrived) for answer in conversation.answers)
        conversation.widen_all(increment)
        conversation.exchange()
        assert sum(len(answer.arrived) for answer in conversation.answers) - before <= increment + LEFT

    assert all(answer.has_trailers for answer in conversation.answers)


def test_nothing_is_put_out_while_a_window_is_shut():
    conversation = Conversation()
    conversation.set_window(0)
    conversation.open()
    conversation.reply(1, 10)
    conversation.exchange()
    assert not conversation.answers[1].arrived
    assert conversation.answers[1].stream.unsent_size == 10

    for number in range(1, 11):
        conversation.widen(1, 1)
        conversation.exchange()
        assert len(conversation.answers[1].arrived) == number
    assert conversation.answers[1].has_trailers
    assert conversation.answers[1].call.num_drained == 1


def test_an_empty_answer_needs_no_window():
    conversation = Conversation()
    conversation.set_window(0)
    conversation.open()
    conversation.reply(1, 0)
    conversation.exchange()

    assert conversation.answers[1].has_trailers
