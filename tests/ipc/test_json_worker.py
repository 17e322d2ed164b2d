"""The JSON worker's own side, in this process: what goes wrong with one job is that job's answer."""

from __future__ import annotations

import os
import socket
import threading

import orjson
import pytest

from bireme.ipc import json_worker
from bireme.ipc.segment import Segment
from bireme.types import InvalidArgument

JOB = orjson.dumps([2, None, 1 << 20, 100, "m", None])


def answer(message: bytes = JOB, body: bytes = b"{}") -> list:
    segment = Segment.allocate(max(1, len(body)))
    segment.fill(body)
    reply, result = json_worker._answer(message, os.dup(segment.fd))
    assert result is None
    return orjson.loads(reply)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InvalidArgument("wrong"), "INVALID_ARG", "wrong"),
        (MemoryError(), "UNAVAILABLE", "not enough memory"),
        (ZeroDivisionError("a bug"), "INTERNAL", "ZeroDivisionError: a bug"),
    ],
)
def test_errors_are_answered(monkeypatch, error, code, text):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(json_worker, "rewrite_as_binary", fail)
    found_code, found_text = answer()

    assert found_code == code
    assert text in found_text


def test_a_segment_shorter_than_announced_is_an_error_and_its_descriptor_is_closed():
    code, _ = answer(orjson.dumps([100_000, None, 1 << 20, 100, "m", None]))

    assert code == "INTERNAL"


def test_long_errors_are_cut_to_fit_a_message(monkeypatch):
    def fail(*args, **kwargs):
        raise InvalidArgument("ü" * 1_000_000)

    monkeypatch.setattr(json_worker, "rewrite_as_binary", fail)
    _, text = answer()

    assert 1000 < len(text.encode()) < json_worker.MAX_MESSAGE


def test_it_ends_when_the_server_is_gone():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        worker = threading.Thread(target=json_worker.serve, args=(theirs,))
        worker.start()
        ours.close()
        worker.join(5)

        assert not worker.is_alive()
