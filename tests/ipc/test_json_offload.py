"""JsonOffload with its real worker process: results, errors, death and the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import orjson
import pytest

from bireme.ipc import json_offload
from bireme.ipc.json_offload import JsonOffload
from bireme.ipc.segment import Segment
from bireme.types import InvalidArgument, Unavailable
from bireme.wire.http import Limits, decode_infer_request

VALUES = np.arange(1000, dtype=np.float32)
BODY = orjson.dumps(
    {
        "id": "r",
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [1000], "data": VALUES.tolist()}],
    }
)


def run(scenario, limits=None):
    async def with_offload():
        offload = JsonOffload(limits or Limits())
        try:
            await scenario(offload)
        finally:
            await offload.stop()
        return offload

    return asyncio.run(with_offload())


def decode(body, json_length):
    return decode_infer_request(
        body, json_length, model_name="m", respond=lambda request, response: None, limits=Limits()
    )


def in_segment(body: bytes) -> memoryview:
    segment = Segment.allocate(len(body))
    segment.fill(body)
    return memoryview(segment)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, in_segment])
def test_the_rewritten_body_means_the_same(wrap):
    async def scenario(offload):
        request = decode(*await offload.rewrite(wrap(BODY), None, "m"))
        assert request.id == "r"
        np.testing.assert_array_equal(request.inputs["X"].to_numpy(), VALUES)

    run(scenario)


def test_jobs_come_back_in_order_through_one_worker():
    async def scenario(offload):
        assert offload.pid is None
        results = await asyncio.gather(*(offload.rewrite(BODY, None, "m") for _ in range(5)))
        pid = offload.pid
        await offload.rewrite(BODY, None, "m")
        assert len(results) == 5
        assert pid is not None
        assert offload.pid == pid

    run(scenario)


@pytest.mark.parametrize(
    ("body", "limits", "text"),
    [
        (BODY[:-1], Limits(), "failed to parse the request JSON buffer"),
        (b"[]", Limits(), "must be a JSON object"),
        (BODY.replace(b"999.0", b'"x"'), Limits(), "input 'X' of type FP32 expects a number"),
        (BODY, Limits(max_input_size=100), "exceeds the maximum allowed input size of 100 bytes"),
    ],
)
def test_errors_are_those_of_decoding(body, limits, text):
    async def scenario(offload):
        with pytest.raises(InvalidArgument, match=text):
            await offload.rewrite(body, None, "m")
        if limits == Limits():
            await offload.rewrite(BODY, None, "m")  # the worker is none the worse for it

    run(scenario, limits)


def test_death_of_the_worker_fails_its_job_and_the_next_has_another(caplog):
    async def scenario(offload):
        await offload.rewrite(BODY, None, "m")
        first_pid = offload.pid
        os.kill(first_pid, signal.SIGSTOP)  # so that it dies within the job
        job, waiting = [asyncio.ensure_future(offload.rewrite(in_segment(BODY), None, "m")) for _ in range(2)]
        await asyncio.sleep(0)
        os.kill(first_pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="ended unexpectedly"):
            await job
        decode(*await waiting)
        assert offload.pid not in {None, first_pid}

    run(scenario)
    assert "ended unexpectedly with status -9" in caplog.text


def test_stop_ends_the_worker_and_fails_what_waits():
    async def scenario(offload):
        await offload.rewrite(BODY, None, "m")
        pid = offload.pid
        os.kill(pid, signal.SIGSTOP)
        jobs = [asyncio.ensure_future(offload.rewrite(in_segment(BODY), None, "m")) for _ in range(2)]
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(offload.stop())
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        await stopping
        for job in jobs:
            with pytest.raises(Unavailable, match="stopping"):
                await job
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(Unavailable, match="stopping"):
            await offload.rewrite(BODY, None, "m")

    run(scenario)


def test_the_worker_ignores_the_signals_of_a_terminal():
    async def scenario(offload):
        await offload.rewrite(BODY, None, "m")
        os.kill(offload.pid, signal.SIGINT)
        os.kill(offload.pid, signal.SIGTERM)
        await offload.rewrite(BODY, None, "m")

    run(scenario)


def test_a_worker_that_cannot_be_started_is_unavailable(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)

    async def scenario(offload):
        with pytest.raises(Unavailable, match="no more processes"):
            await offload.rewrite(BODY, None, "m")

    run(scenario)


def test_a_body_that_cannot_be_handed_over_is_unavailable(monkeypatch):
    def refuse(*args):
        raise OSError("too many open files")

    monkeypatch.setattr(json_offload.Segment, "allocate", refuse)

    async def scenario(offload):
        with pytest.raises(Unavailable, match="too many open files"):
            await offload.rewrite(BODY, None, "m")

    run(scenario)


def test_a_job_whose_caller_left_is_passed_over():
    async def scenario(offload):
        await offload.rewrite(BODY, None, "m")
        jobs = [asyncio.ensure_future(offload.rewrite(in_segment(BODY), None, "m")) for _ in range(3)]
        await asyncio.sleep(0)
        jobs[0].cancel()
        jobs[1].cancel()
        decode(*await jobs[2])

    run(scenario)


def test_nothing_stays_open():
    gc.collect()  # what earlier tests left to the collector does not count
    before = len(list(Path("/proc/self/fd").iterdir()))

    async def scenario(offload):
        for _ in range(3):
            await offload.rewrite(BODY, None, "m")

    run(scenario)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
