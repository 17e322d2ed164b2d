"""The voice assistant: its own code, and the whole of it served, asked inside and behind a gateway."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

from bireme.cli.check import check_repositories
from bireme.engine.options import ServerOptions
from example_files import EXAMPLES, load

VOICE = EXAMPLES / "voice"
NOW = datetime(2026, 11, 30, 11, 5, tzinfo=UTC)


SPELLED = {"seven": "7", "six": "6", "fortytwo": "42"}


def letters(text: str) -> str:
    """Return what of a text can be heard: neither commas, nor whether a number is spelled out."""
    heard = re.sub(r"[^a-z0-9]", "", text.lower())
    for word, number in SPELLED.items():
        heard = heard.replace(word, number)
    return heard


def test_frames_begin_with_the_end_of_the_one_before(monkeypatch):
    frames = load("voice/models/frames/1/frames.py", monkeypatch)
    samples = np.arange(1, 1201, dtype=np.float32)

    found = frames.frames_of(samples)

    assert (3, 576) == found.shape
    assert [0, 1, 512] == found[0, [63, 64, 575]].tolist()
    assert [449, 512, 513, 1024] == found[1, [0, 63, 64, 575]].tolist()
    assert [1200, 0] == found[2, [239, 240]].tolist()


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "AUDIO has no samples"), (481_600, "AUDIO is 30.1 s long; expected at most 30 s")],
)
def test_a_recording_of_no_use_is_named(monkeypatch, length, text):
    frames = load("voice/models/frames/1/frames.py", monkeypatch)

    with pytest.raises(frames.BadRecording, match=text):
        frames.frames_of(np.zeros(length, np.float32))


def test_only_the_spoken_part_is_heard(monkeypatch):
    spoken = load("voice/models/hear/1/spoken.py", monkeypatch)
    speech = np.zeros(40, np.float32)
    speech[[10, 20]] = 0.9
    samples = np.arange(40 * 512, dtype=np.float32)

    middle = spoken.spoken_part(samples, speech)
    speech[[0, 39]] = 0.9
    everything = spoken.spoken_part(samples, speech)
    nothing_found = spoken.spoken_part(samples, np.zeros(40, np.float32))

    assert (4 * 512, 27 * 512 - 1) == (middle[0, 0], middle[0, -1])
    assert (1, 40 * 512) == everything.shape == nothing_found.shape


@pytest.mark.parametrize(
    ("intent", "heard", "reply"),
    [
        ("time", "What time is it in Tokyo?", "It is 20:05 in Tokyo."),
        ("time", "What time is it?", "It is 11:05."),
        ("time", "What time is it in San Marino?", "Sorry, I do not know what time it is in San Marino."),
        ("weather", "Is it raining in new york?", "In New York it is cloudy, with 19 degrees."),
        ("sum", "What is 7 times 6?", "7 times 6 is 42."),
        ("sum", "How much is twelve plus thirty?", "12 plus 30 is 42."),
        ("sum", "10 / 3", "10 divided by 3 is 3.33."),
        ("sum", "1 divided by zero", "Nothing can be divided by 0."),
        ("sum", "What is the sum of it?", "Sorry, I did not understand that."),
        ("switch", "Turn the radio off.", "I have turned off the radio."),
        ("switch", "Lamps on in the living room!", "I have turned on the lamp in the living room."),
        ("switch", "Turn on the fountain.", "Sorry, I did not understand that."),
        ("thanks", "Thanks.", "You are welcome."),
        ("unknown", "Bananas.", "Sorry, I did not understand that."),
    ],
)
def test_a_reply_has_what_the_sentence_names(monkeypatch, intent, heard, reply):
    replies = load("voice/models/understand/1/replies.py", monkeypatch)

    assert reply == replies.reply_to(intent, heard, NOW)


def test_the_nearest_example_decides_unless_it_is_far(monkeypatch):
    meaning = load("voice/models/understand/1/meaning.py", monkeypatch)
    examples = meaning.Examples(np.array(["time", "sum"]), np.eye(2, 3, dtype=np.float32))

    near, far = (np.array([[[a, b, c]] * 4], np.float32) for a, b, c in ((1, 9, 0), (1, 0, 9)))

    assert "sum" == meaning.nearest(near, examples)[0]
    assert "unknown" == meaning.nearest(far, examples)[0]


def test_a_tone_stays_the_same_at_another_rate(monkeypatch, tmp_path):
    sound = load("voice/sound.py", monkeypatch)
    recording = load("python/speech/models/transcribe/1/recording.py", monkeypatch)
    tone = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000).astype(np.float32)

    sound.write_wav(tmp_path / "new" / "tone.wav", sound.resampled(tone, 24_000, 16_000), 16_000)
    found = recording.read_wav((tmp_path / "new" / "tone.wav").read_bytes(), 16_000)

    assert np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000) == pytest.approx(found, abs=1e-3)
    assert (26_000,) == sound.with_silence(tone, 0.125, 8_000).shape


def test_packages_have_the_versions_of_the_other_examples(monkeypatch):
    pins = [
        set(
            re.findall(
                r"^(\S+==\S+)", (EXAMPLES / name / "requirements-models.txt").read_text(), re.MULTILINE
            )
        )
        for name in ("python", "voice")
    ]

    assert {"moonshine-voice==0.1.0"} == pins[0] & pins[1]


class Served(NamedTuple):
    """The repository, served."""

    demo: ModuleType
    http_url: str
    grpc_url: str

    def run(self, ask):
        """Return what ``ask(server)`` makes of a client."""

        async def connected():
            async with self.demo.triton_aio.InferenceServerClient(self.grpc_url) as server:
                return await ask(server)

        return asyncio.run(connected())


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        demo = load("voice/demo.py", patch)
        demo.build.build(len)
        log = tmp_path_factory.mktemp("voice") / "server.log"
        with demo.serving.served(demo.build.MODELS, log) as addresses:
            yield Served(demo, addresses.http, addresses.grpc)


@pytest.mark.slow
def test_the_configs_are_sound(served):
    options = ServerOptions(model_repository=(str(VOICE / "models"),))
    faults = [fault for report in check_repositories(options, opens_models=False) for fault in report.faults]

    assert [] == faults


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "intent", "reply"),
    [
        ("Please turn on the light in the kitchen.", "switch", "I have turned on the light in the kitchen."),
        ("What is seven times six?", "sum", "7 times 6 is 42."),
        ("My dog likes bananas.", "unknown", "Sorry, I did not understand that."),
    ],
)
def test_a_spoken_question_has_a_spoken_answer(served, question, intent, reply):
    demo = served.demo

    async def ask(server):
        inside, _ = await demo.client.ask(server, await demo.spoken(server, question))
        back = demo.sound.resampled(inside.reply_audio, demo.client.SPOKEN_PER_S, demo.client.HEARD_PER_S)
        return inside, await demo.client.ask(server, back)

    inside, (heard_back, _) = served.run(ask)

    assert letters(question) == letters(inside.heard)
    assert (intent, reply) == (inside.intent, inside.reply)
    assert letters(reply) == letters(heard_back.heard)  # the sound of the answer has its words


@pytest.mark.slow
def test_a_gateway_gives_the_same_answer(served):
    demo = served.demo

    async def ask(server):
        question = await demo.spoken(server, "Turn the radio off.")
        return (await demo.client.ask(server, question))[0], await demo.gateway.answer(server, question)

    inside, outside = served.run(ask)

    assert "I have turned off the radio." == inside.reply
    for one, other in zip(inside, outside, strict=True):
        np.testing.assert_array_equal(one, other) if isinstance(one, str) else np.testing.assert_allclose(
            one, other, atol=1e-3
        )


@pytest.mark.slow
def test_silence_has_no_answer_and_costs_two_steps(served):
    demo = served.demo
    silence = np.zeros(16_000, np.float32)

    async def ask(server):
        return *await demo.client.ask(server, silence, is_traced=True), await demo.gateway.answer(
            server, silence
        )

    inside, trace, outside = served.run(ask)

    assert (None,) * 5 == inside[1:] == outside[1:]
    assert ["frames", "voice_activity"] == [call["model"] for call in trace["calls"]]


@pytest.mark.slow
def test_a_question_too_long_is_the_callers_mistake(served):
    demo = served.demo

    with pytest.raises(Exception, match=r"step 0 \('frames'\): AUDIO is 31.0 s long; expected at most 30 s"):
        served.run(lambda server: demo.client.ask(server, np.zeros(31 * 16_000, np.float32)))


@pytest.mark.slow
def test_the_demo_tells_what_happens(served, monkeypatch, tmp_path, capfd):
    demo = served.demo
    monkeypatch.setattr(demo, "OUT", tmp_path)
    monkeypatch.setattr(demo, "NUM_ROUNDS", 1)

    asyncio.run(demo.talk(served.http_url, served.grpc_url, "What time is it in Paris?"))

    shown = capfd.readouterr().out
    for part in (
        "heard    What time is it in Paris?",
        "meant    time",
        "answers  It is",
        "speech_encoder",
        "only frames and voice_activity ran",
        "inside the server",
        "behind a gateway",
    ):
        assert part in shown
    assert {"answer.wav", "question.wav", "question.npy"} == {file.name for file in tmp_path.iterdir()}
