"""Have a recording transcribed, and print each word when it comes: over gRPC, then as server-sent events over plain HTTP.

python examples/python/speech/client.py [--http localhost:8000] [--grpc localhost:8001] [WAV]
"""

from __future__ import annotations

import argparse
import base64
import json
import queue
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton

RECORDINGS = Path(__file__).resolve().parent / "recordings"


def over_grpc(url: str, wav: bytes) -> Iterator[str]:
    """Yield the words; the file travels as it is."""
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    tensor = triton.InferInput("WAV", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([wav], np.object_))
    with triton.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer("transcribe", [tensor], enable_empty_final_response=True)
        is_final = False
        while not is_final:
            result, error = arrived.get(timeout=60)
            if error is not None:
                raise error
            is_final = result.get_response().parameters["triton_final_response"].bool_param
            words = result.as_numpy("TEXT")
            if words is not None:
                yield words[0].decode()


def over_http(url: str, wav: bytes) -> Iterator[str]:
    """Yield the words; the file travels as base64."""
    body = json.dumps({"WAV": base64.b64encode(wav).decode()}).encode()
    with urllib.request.urlopen(f"http://{url}/v2/models/transcribe/generate_stream", body, 60) as reply:
        for line in reply:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise SystemExit(f"error: {event['error']}")
                yield event["TEXT"]


def show(label: str, words: Iterable[str]) -> None:
    """Print words as they come, and how long the first one and all took."""
    start = time.perf_counter()
    after_ms = []
    print(f"{label}:", end="", flush=True)
    for word in words:
        after_ms.append(1e3 * (time.perf_counter() - start))
        print(word, end="", flush=True)
    if after_ms:
        print(f"   [first word after {after_ms[0]:.0f} ms, {len(after_ms)} words in {after_ms[-1]:.0f} ms]")
    else:
        print("   [no words]")


def main(argv: list[str] | None = None) -> None:
    """Ask both ways."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", default="localhost:8000")
    parser.add_argument("--grpc", default="localhost:8001")
    parser.add_argument("wav", nargs="?", type=Path, default=RECORDINGS / "beckett.wav")
    args = parser.parse_args(argv)

    wav = args.wav.read_bytes()
    show("gRPC", over_grpc(args.grpc, wav))
    show("SSE", over_http(args.http, wav))


if __name__ == "__main__":
    main()
