"""Voice activity in streams: the graph, the rule for segments, and recordings streamed to the served model."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest.mock import MagicMock

import numpy as np
import onnxruntime
import pytest

from bireme.cli.check import check_repositories
from bireme.engine.options import ServerOptions
from e2e_server import RunningServer
from example_files import EXAMPLES, load

VAD = EXAMPLES / "vad"
SILENCE = np.zeros((1, 512), np.float32)


class Heard(NamedTuple):
    """A recording in frames, and what Silero's own file says of each."""

    frames: np.ndarray
    speech: list[float]


def opened(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a frame is too small for more
    return onnxruntime.InferenceSession(path, options)


def heard_by_the_file(build: ModuleType, frames: np.ndarray) -> list[float]:
    """Call Silero's own file as its package does."""
    session = opened(build.package_file("silero_vad", "data/silero_vad.onnx"))
    context, state = np.zeros((1, 64), np.float32), np.zeros((2, 1, 128), np.float32)
    found = []
    for frame in frames:
        heard = np.concatenate([context, frame[np.newaxis]], axis=1)
        output, state = session.run(None, {"input": heard, "state": state, "sr": np.array(16_000)})
        context = heard[:, -64:]
        found.append(output.item())
    return found


def segments_by_the_package(build: ModuleType, speech: list[float]) -> list[tuple[float, float]]:
    """Return what the streaming class of Silero's package makes of probabilities. It only looks as if it needed torch."""
    torch = MagicMock(no_grad=lambda: lambda function: function, is_tensor=lambda _frame: True)
    spec = importlib.util.spec_from_file_location(
        "utils_vad", build.package_file("silero_vad", "utils_vad.py")
    )
    package = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        spec.loader.exec_module(package)
    probabilities = iter(np.array(speech))
    model = MagicMock(side_effect=lambda _frame, _rate: next(probabilities))
    iterator = package.VADIterator(model)
    frame = MagicMock(__len__=lambda _frame: 512)
    marks = [mark for _ in speech if (mark := iterator(frame))]
    starts, ends = ([mark[kind] / 16_000 for mark in marks if kind in mark] for kind in ("start", "end"))
    return list(zip(starts, [*ends, len(speech) * 0.032], strict=False))


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The example's demo, with what it builds, and with its client."""
    with pytest.MonkeyPatch.context() as patch:
        demo = load("vad/demo.py", patch)
        demo.build.build(len)
        yield demo


@pytest.fixture(scope="module")
def beckett(example) -> Heard:
    frames = example.client.frames_of(example.client.read_wav(example.build.RECORDINGS / "beckett.wav"))
    return Heard(frames, heard_by_the_file(example.build, frames))


def test_the_file_gives_the_known_answer(beckett):
    """Without the 64 samples before each frame, it says 0 for everything."""
    whole = np.array(beckett.speech[:311])

    assert 312 == len(beckett.speech)  # the last one has silence at its end
    assert 141 == (whole > 0.5).sum()
    assert 0.4715 == pytest.approx(whole.mean(), abs=1e-4)
    assert [0.0325, 0.0156, 0.0083, 0.0060] == pytest.approx(beckett.speech[:4], abs=1e-4)


def test_the_graph_around_the_file_batches_streams_and_changes_nothing(example, beckett):
    session = opened(example.build.MODEL)
    context, memory = np.zeros((2, 64), np.float32), np.zeros((2, 2, 128), np.float32)
    found = []
    for frame in beckett.frames[:60]:
        both = np.stack([frame, SILENCE[0]])
        speech, context, memory = session.run(None, {"frame": both, "context": context, "memory": memory})
        found.append(speech[:, 0])

    assert beckett.speech[:60] == pytest.approx(np.array(found)[:, 0], abs=1e-5)
    assert heard_by_the_file(example.build, np.repeat(SILENCE, 60, 0)) == pytest.approx(
        np.array(found)[:, 1], abs=1e-5
    )


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_segments_are_those_of_the_package(example, beckett, seed):
    speech = beckett.speech
    if seed is not None:
        speech = np.random.default_rng(seed).uniform(0.1, 0.7, 400).tolist()
    segments = example.segments.Segments()

    found = [each for probability in speech if (each := segments.add(probability))]
    found += [last] if (last := segments.finish()) else []

    np.testing.assert_allclose(found, segments_by_the_package(example.build, speech))


def test_speech_from_the_first_frame_to_the_last_is_one_segment(example):
    segments = example.segments.Segments()

    assert [None] * 3 == [segments.add(0.9) for _ in range(3)]
    assert (0, 0.096) == pytest.approx(segments.finish())
    assert None is segments.finish()


def test_a_bar_shows_the_loudest_of_a_few_frames(example):
    assert "▁█▅" == example.segments.bar([0.0, 0.1, 0.05, 0, 0.2, 1, 0, 0, 0.5])


def test_a_recording_is_cut_into_frames_and_ends_with_silence(example):
    frames = example.client.frames_of(np.arange(513, dtype=np.float32))

    assert (2, 512) == frames.shape
    assert [512, 0] == frames[1, :2].tolist()
    assert (1, 512) == example.client.frames_of(np.zeros(0, np.float32)).shape


def test_packages_have_the_versions_of_the_other_examples():
    def pins(name):
        lines = (EXAMPLES / name / "requirements-models.txt").read_text().split()
        return {line for line in lines if "==" in line}

    assert pins("vad") <= pins("voice")


@pytest.fixture(scope="module")
def grpc_url(example) -> Iterator[str]:
    server = RunningServer(example.build.MODELS)
    try:
        yield server.grpc_address
    finally:
        server.stop()


def test_the_config_is_sound(monkeypatch):
    load("vad/build.py", monkeypatch).build(len)  # what is not there yet
    options = ServerOptions(model_repository=(str(VAD / "models"),))

    assert [] == [fault for report in check_repositories(options) for fault in report.faults]


def test_streams_side_by_side_each_hear_what_they_hear_alone(example, beckett, grpc_url):
    """Several recordings and silence, some begun later; the server keeps their states apart in shared batches."""
    client = example.client
    frames = beckett.frames
    streams = [frames, np.repeat(SILENCE, 100, 0), frames[40:140], frames[90:290], frames[:1]]

    async def heard(server, stream):
        return [speech async for speech in client.speech_in(server, stream)]

    async def stream_all():
        async with client.triton_aio.InferenceServerClient(grpc_url) as server:
            before = np.array(await example.count(server))
            found = await asyncio.gather(*(heard(server, stream) for stream in streams))
            return found, *(await example.count(server) - before)

    found, num_frames, num_runs = asyncio.run(stream_all())

    assert beckett.speech == pytest.approx(found[0], abs=1e-5)
    for stream, speech in zip(streams[1:], found[1:], strict=True):
        assert heard_by_the_file(example.build, stream) == pytest.approx(speech, abs=1e-5)
    assert sum(map(len, streams)) == num_frames > num_runs


def test_the_client_prints_segments_and_bars(example, beckett, grpc_url, capsys):
    path = example.build.RECORDINGS / "beckett.wav"

    asyncio.run(example.client.main(["--grpc", grpc_url, str(path)]))

    lines = capsys.readouterr().out.splitlines()
    first, *_, last = segments_by_the_package(example.build, beckett.speech)
    assert f"beckett.wav     {first[0]:6.2f} – {first[1]:5.2f} s" == lines[0]
    assert f"beckett.wav     {last[0]:6.2f} – {last[1]:5.2f} s" == lines[-2]
    assert f"beckett.wav     {example.segments.bar(beckett.speech)}" == lines[-1]


@pytest.mark.slow
def test_the_demo_tells_what_happens(example, monkeypatch, capfd):
    monkeypatch.setattr(example, "NUM_STREAMS", 3)

    example.main()

    shown = capfd.readouterr().out
    for part in (
        "clone-test.wav",
        "beckett.wav     ▁▁███████▇▁▁▁▁████",
        "executions",
        "each stream has the probabilities of step 3: yes",
        "done",
    ):
        assert part in shown
