"""A spoken question and its answer in one go: build, serve, ask, stop. `make demo-voice` runs this.

    python examples/voice/demo.py [QUESTION]

The question is spoken by the model that also speaks the answers. The server listens on free loopback ports; what it writes
is in ``out/server.log``. The exit status is 0 when every step worked and the server stopped cleanly.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import build
import client
import gateway
import numpy as np
import sound
import tritonclient.grpc.aio as triton_aio

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
import serving
from telling import console, step

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
LOG = OUT / "server.log"
QUESTION = "Please turn on the light in the kitchen."
SILENCE_S = 0.5
NUM_ROUNDS = 5


async def spoken(server: triton_aio.InferenceServerClient, text: str) -> np.ndarray:
    """Return the text as a question, 16 kHz, with silence around it."""
    samples = await gateway.say(gateway.Caller(server), text)
    samples = sound.resampled(samples, client.SPOKEN_PER_S, client.HEARD_PER_S)
    return sound.with_silence(samples, SILENCE_S, client.HEARD_PER_S)


def saved(name: str, samples: np.ndarray, rate: int) -> str:
    """Write a WAV file; return what to say of it."""
    sound.write_wav(OUT / name, samples, rate)
    return f"{os.path.relpath(OUT / name)}, {samples.size / rate:.1f} s"


async def took_ms(work: Awaitable[Any]) -> float:
    """Return how long the work takes, in milliseconds."""
    start = time.perf_counter()
    await work
    return (time.perf_counter() - start) * 1e3


async def compare(server: triton_aio.InferenceServerClient, question: np.ndarray) -> None:
    """Print what the cascade takes inside the server and behind a gateway, in turns, so that both meet the same machine."""
    inside_ms, outside_ms = [], []
    for _ in range(NUM_ROUNDS):
        inside_ms.append(await took_ms(client.ask(server, question)))
        call = gateway.Caller(server)
        outside_ms.append(await took_ms(gateway.answer_by(call, question)))
    answer, _ = await client.ask(server, question)
    inside_mb = (question.nbytes + answer.speech.nbytes + answer.reply_audio.nbytes) / 1e6
    for label, times, num_calls, size_mb in (
        ("inside the server", inside_ms, 1, inside_mb),
        ("behind a gateway", outside_ms, call.num_calls, call.nbytes / 1e6),
    ):
        calls = f"{num_calls} request{'s' if num_calls > 1 else ''}"
        console.print(
            f"  {label:18}{sorted(times)[NUM_ROUNDS // 2]:6.0f} ms   {calls:11}  {size_mb:5.1f} MB over the network"
        )


def show_waterfall(http_url: str, question: np.ndarray) -> None:
    """Have the question asked by the command that shows where the time of a request goes."""
    file = OUT / "question.npy"
    np.save(file, question)
    command = ["trace", "assistant", f"AUDIO=@{os.path.relpath(file)}", "--runs", str(NUM_ROUNDS)]
    console.print(f"  $ bireme {' '.join(command)}\n")
    environment = {**os.environ, "COLUMNS": str(console.width)}
    subprocess.run([sys.executable, "-m", "bireme", *command, "--url", http_url], env=environment, check=True)


async def talk(http_url: str, grpc_url: str, text: str) -> None:
    """Ask the served assistant, and print what it says."""
    async with triton_aio.InferenceServerClient(grpc_url) as server:
        question = await spoken(server, text)
        await client.ask(server, question)  # the first request of all finds nothing warm

        step(3, "A question, spoken by the model that also speaks the answers")
        answer, _ = await client.ask(server, question)
        console.print(f"  asked    {text}", style="cyan")
        console.print(f"           {saved('question.wav', question, client.HEARD_PER_S)}", style="dim")
        if answer.heard is None:
            sys.exit("error: nobody was heard to speak")
        console.print(f"  heard    {answer.heard}")
        console.print(f"  meant    {answer.intent}, similarity {answer.similarity:.2f}")
        console.print(f"  answers  {answer.reply}", style="green")
        console.print(
            f"           {saved('answer.wav', answer.reply_audio, client.SPOKEN_PER_S)}", style="dim"
        )

        step(4, "Where the time goes in that request")
        show_waterfall(http_url, question)

        step(5, "Two seconds of silence")
        answer, trace = await client.ask(server, np.zeros(2 * client.HEARD_PER_S, np.float32), is_traced=True)
        ran = " and ".join(call["model"] for call in trace["calls"])
        console.print(
            f"  speech   {answer.speech.max():.2f} at most, 0.50 is needed\n"
            f"  answers  {'nothing' if answer.reply is None else answer.reply}: only {ran} ran"
        )

        step(6, f"The same steps called one by one over the network: median of {NUM_ROUNDS}, in turns")
        await compare(server, question)


def main() -> None:
    """Run all steps."""
    text = " ".join(sys.argv[1:]) or QUESTION
    step(1, "Model repository: model files out of pip packages")
    if not build.build(lambda line: console.print(f"  {line}")):
        console.print("  everything is there already")

    step(2, "Server")
    console.print(f"  $ bireme serve --model-repository {os.path.relpath(build.MODELS)}")
    start = time.monotonic()
    with serving.served(build.MODELS, LOG) as addresses:
        console.print(f"  ready after {time.monotonic() - start:.1f} s; its log is {os.path.relpath(LOG)}")
        asyncio.run(talk(addresses.http, addresses.grpc, text))

        step(7, "Stop: SIGTERM, in-flight requests finish, exit status 0")
    console.print('  done. Another question: make demo-voice SAY="What time is it in Tokyo?"\n')


if __name__ == "__main__":
    main()
