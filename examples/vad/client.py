"""Stream recordings to the server frame by frame and print when somebody speaks, with the official client.

    python examples/vad/client.py [--grpc localhost:8001] [--live] [WAV …]

WAV: 16 kHz, 16-bit or float samples. Each file is a sequence on a gRPC stream of its own, all at once; ``--live`` sends them at the
pace of a microphone.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton_aio
from segments import FRAME_S, Segments, bar

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE / "recordings"
READER = HERE.parent / "python/speech/models/transcribe/1/recording.py"
SAMPLES_PER_S, FRAME = 16_000, 512


def read_wav(path: Path) -> np.ndarray:
    """Return a recording as FP32[N], 16 kHz."""
    spec = importlib.util.spec_from_file_location("recording", READER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.read_wav(path.read_bytes(), SAMPLES_PER_S)


def frames_of(samples: np.ndarray) -> np.ndarray:
    """Return a recording in frames, FP32[n, 512]; the last one ends with silence."""
    num_frames = max(1, -(-samples.size // FRAME))
    return np.pad(samples, (0, num_frames * FRAME - samples.size)).reshape(num_frames, FRAME)


async def speech_in(
    client: triton_aio.InferenceServerClient, frames: np.ndarray, *, pace_s: float = 0.0
) -> AsyncIterator[float]:
    """Yield how likely it is that each frame has speech, as the answers come; a frame is sent every ``pace_s``."""
    sequence = uuid.uuid4().hex

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for index, frame in enumerate(frames):
            tensor = triton_aio.InferInput("frame", [1, FRAME], "FP32").set_data_from_numpy(frame[np.newaxis])
            yield {
                "model_name": "voice_activity",
                "inputs": [tensor],
                "sequence_id": sequence,
                "sequence_start": index == 0,
                "sequence_end": index == len(frames) - 1,
            }
            await asyncio.sleep(pace_s)

    async for result, error in client.stream_infer(requests()):
        if error is not None:
            raise error
        yield float(result.as_numpy("speech")[0, 0])


async def listen(
    client: triton_aio.InferenceServerClient,
    name: str,
    samples: np.ndarray,
    *,
    report: Callable[[str], object] = print,
    pace_s: float = 0.0,
) -> list[float]:
    """Stream one recording; report each time that somebody has spoken, and return the probabilities."""
    segments, speech = Segments(), []
    async for probability in speech_in(client, frames_of(samples), pace_s=pace_s):
        speech.append(probability)
        show(segments.add(probability), name, report)
    show(segments.finish(), name, report)
    return speech


def show(segment: tuple[float, float] | None, name: str, report: Callable[[str], object]) -> None:
    """Report a segment, if there is one."""
    if segment is not None:
        report(f"{name:16}{segment[0]:6.2f} – {segment[1]:5.2f} s")


async def main(argv: list[str] | None = None) -> None:
    """Stream all recordings at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--grpc", default="localhost:8001")
    parser.add_argument("--live", action="store_true", help="at the pace of a microphone")
    parser.add_argument("wav", nargs="*", type=Path, default=sorted(RECORDINGS.glob("*.wav")))
    args = parser.parse_args(argv)

    pace_s = FRAME_S if args.live else 0.0
    recordings = {path.name: read_wav(path) for path in args.wav}
    async with triton_aio.InferenceServerClient(args.grpc) as client:
        found = await asyncio.gather(
            *(listen(client, name, samples, pace_s=pace_s) for name, samples in recordings.items())
        )
    for name, speech in zip(recordings, found, strict=True):
        print(f"{name:16}{bar(speech)}")


if __name__ == "__main__":
    asyncio.run(main())
