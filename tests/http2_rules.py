"""Rules of HTTP/2 as data: what a client sends, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bireme.wire.http2 import ErrorCode
from http2_peer import SMALL, START, Peer, check_sequence


@dataclass(frozen=True)
class Ends:
    """The connection ends with ``code``; all calls are told so."""

    code: ErrorCode

    def check(self, peer, replies, *, is_answered):
        assert peer.goaway_code() == self.code
        assert not peer.connection.streams
        for call in peer.calls.values():
            assert len(call.resets) == (0 if is_answered and call.has_ended else 1)


@dataclass(frozen=True)
class Fails:
    """One stream ends with ``code``; the call, if there is one, is told so, and the connection goes on."""

    code: ErrorCode
    stream_id: int = 1
    is_opened: bool = True

    def check(self, peer, replies, *, is_answered):
        assert {self.stream_id: self.code} == peer.resets_sent()
        assert self.is_opened == (self.stream_id in peer.calls)
        if self.is_opened:
            assert peer.calls[self.stream_id].resets == [self.code]
        assert self.stream_id not in peer.connection.streams
        assert peer.is_alive()


@dataclass(frozen=True)
class Cancels:
    """The client's reset reaches the call. Nothing is sent, least of all another RST_STREAM."""

    code: int
    stream_id: int = 1

    def check(self, peer, replies, *, is_answered):
        assert not replies
        assert peer.calls[self.stream_id].resets == [self.code]
        assert self.stream_id not in peer.connection.streams
        assert peer.is_alive()


@dataclass(frozen=True)
class Ignored:
    """Nothing happens; the connection goes on."""

    def check(self, peer, replies, *, is_answered):
        assert not replies
        assert not any(call.resets for call in peer.calls.values())
        assert peer.is_alive()


@dataclass(frozen=True)
class Taken:
    """A whole request has come."""

    body: bytes = b""
    stream_id: int = 1
    is_ended: bool = True

    def check(self, peer, replies, *, is_answered):
        call = peer.calls[self.stream_id]
        assert self.body == call.body
        assert self.is_ended == call.has_ended
        assert not call.resets
        assert not peer.resets_sent()
        assert peer.is_alive()


@dataclass(frozen=True)
class Rule:
    """A rule of the RFC, or a corner of one."""

    section: str
    title: str
    sent: bytes
    outcome: Ends | Fails | Cancels | Ignored | Taken
    start: bytes = START
    """What comes before; its replies are not looked at."""
    is_answered: bool = False
    """Whether requests are answered as soon as they have ended."""


def as_parameters(rules):
    return [pytest.param(rule, id=f"{rule.section} {rule.title}") for rule in rules]


def check(rule, chunk_size):
    """Check a rule with bytes that arrive ``chunk_size`` at a time."""
    peer = Peer(SMALL, start=b"")
    if rule.is_answered:
        peer.answer_all()
    peer.exchange(rule.start)
    peer.feed(rule.sent, chunk_size)
    rule.outcome.check(peer, peer.take_frames(), is_answered=rule.is_answered)
    check_sequence(peer.frames)
    peer.connection.connection_lost()
    assert not peer.connection.streams
