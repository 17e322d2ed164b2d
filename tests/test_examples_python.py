"""The examples of Python models: their own code, and each of them served and asked by its client."""

from __future__ import annotations

import asyncio
import base64
import struct

import numpy as np
import pytest

from bireme.cli.check import check_repositories
from bireme.engine.options import ServerOptions
from example_files import EXAMPLES, load

PYTHON = EXAMPLES / "python"
NAMES = ("add_sub", "page_upright", "cascade", "repeat", "fan_out", "speech")


def wav(samples: np.ndarray, *, rate: int = 16_000, num_channels: int = 1) -> bytes:
    """Return a WAV file of 16-bit or float samples, with a chunk of odd length that nobody needs."""
    tag, data = (3 if samples.dtype == np.float32 else 1), samples.tobytes()
    size = samples.itemsize
    head = struct.pack(
        "<HHIIHH", tag, num_channels, rate, rate * size * num_channels, size * num_channels, 8 * size
    )
    chunks = ((b"fmt ", head), (b"LIST", b"abc\0"[:3]), (b"data", data))
    body = b"".join(
        struct.pack("<4sI", name, len(each)) + each + b"\0" * (len(each) % 2) for name, each in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


@pytest.fixture
def recording(monkeypatch):
    return load("python/speech/models/transcribe/1/recording.py", monkeypatch)


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
@pytest.mark.parametrize("encode", [bytes, base64.b64encode])
def test_a_wav_file_is_read_as_it_is_and_in_base64(recording, dtype, encode):
    samples = np.array([0, 16_384, -32_768])
    stored = samples.astype(dtype) if dtype == np.int16 else (samples / 32_768).astype(dtype)

    found = recording.read_wav(encode(wav(stored)), 16_000)

    assert np.float32 == found.dtype
    assert [0, 0.5, -1] == found.tolist()


def test_channels_are_mixed(recording):
    stereo = np.array([[0.5, -0.5], [1, 0]], np.float32)

    assert [0, 0.5] == recording.read_wav(wav(stereo, num_channels=2), 16_000).tolist()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"RIFF", "it has no format, or no samples"),
        (b"/etc/passwd", "neither a WAV file nor one in base64"),
        (b"", "it has no format, or no samples"),
        (
            wav(np.zeros(4, np.int16), rate=8000),
            "WAV has 8000 samples of 16 bits a second, format 1; expected 16000",
        ),
        (wav(np.zeros(4, np.uint8)), "of 8 bits"),
        (wav(np.zeros(4, np.int16), num_channels=0), "expected 16000"),
    ],
)
def test_a_recording_that_cannot_be_used_is_named(recording, content, text):
    with pytest.raises(recording.BadRecording, match=text):
        recording.read_wav(content, 16_000)


def test_pieces_of_words_are_read_with_lengths_of_one_byte_and_two(monkeypatch):
    words = load("python/speech/models/transcribe/1/words.py", monkeypatch)

    long = b"x" * 300
    assert [b"ab", long, b""] == words.read_pieces(
        b"\x02ab" + bytes([128 + 300 % 128, 300 // 128]) + long + b"\0"
    )


def test_words_are_whole_when_they_are_given_out(monkeypatch, tmp_path):
    words = load("python/speech/models/transcribe/1/words.py", monkeypatch)
    file = tmp_path / "tokenizer.bin"
    pieces = ["▁caf".encode(), b"\xc3", b"\xa9", b",", "▁au".encode()]
    file.write_bytes(b"".join(bytes([len(piece)]) + piece for piece in pieces))

    async def tokens():
        for token in (0, 1, 2, 3, 4):
            yield token

    async def collect():
        return [word async for word in words.in_words(tokens(), words.Vocabulary(file))]

    assert [" café,", " au"] == asyncio.run(collect())


@pytest.mark.parametrize("name", NAMES)
def test_the_configs_are_sound(name):
    options = ServerOptions(model_repository=(str(PYTHON / name / "models"),))
    faults = [
        fault
        for report in check_repositories(options, opens_models=False)
        for fault in report.faults
        if "version" not in fault  # those come with build.py
    ]

    assert [] == faults


def test_every_example_is_listed_and_has_a_client(monkeypatch):
    demo = load("python/demo.py", monkeypatch)
    index = (PYTHON / "README.md").read_text()

    assert set(NAMES) == set(demo.CLIENTS)
    for name in NAMES:
        assert f"[{name}]({name})" in index
        assert (PYTHON / name / "README.md").is_file()
        assert (PYTHON / name / "client.py").is_file()


EXPECTED = {
    "add_sub": [
        "tritonclient.http: sum [6.0, 8.0, 10.0, 12.0], difference [4.0, 4.0, 4.0, 4.0]",
        "tritonclient.grpc: sum [6.0, 8.0, 10.0, 12.0], difference [4.0, 4.0, 4.0, 4.0]",
        "a mistake: INPUT0 has shape [1, 4] and INPUT1 [1, 3]: they must be the same",
    ],
    "page_upright": [
        *(f"turned by {turn:3}: the server says {turn:3} (0.92)" for turn in (0, 90, 180)),
        "turned by 270: the server says 270 (0.93)",
        "a mistake: PICTURE: these 10 bytes are no picture file that can be read",
    ],
    "cascade": [
        "'TOTAL: 129.50 EUR'",
        "'Invoice No. 4711'",
        "read_light has run 4 times",
        "read_heavy has run 1 times",
    ],
    "repeat": [
        "gRPC: request 0, response 2:  3",
        "gRPC: request 1, response 2: 30",
        "square of 4: [4, 4, 4, 4]",
        "event: 2: 9",
    ],
    "fan_out": ["eight times the squares of 1, 2, 3: [8.0, 32.0, 72.0]"],
    "speech": [
        f"{way}: Ever tried, ever failed, no matter, try again, fail again, fail better."
        for way in ("gRPC", "SSE")
    ],
}
"""Parts of what the clients print."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name, monkeypatch, capfd):
    demo = load("python/demo.py", monkeypatch)

    demo.run(name)

    shown = capfd.readouterr().out
    for line in EXPECTED[name]:
        assert line in shown
