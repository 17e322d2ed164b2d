"""Have eight slow calls made at once, and see how long that takes. Plain HTTP and JSON, no client library.

python examples/python/fan_out/client.py [--http localhost:8000]
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from typing import Any

DELAYS_MS = (100, 20, 50, 80, 100, 10, 60, 30)


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return what the model answers; generate takes plain JSON values by the inputs' names."""
    request = urllib.request.Request(f"http://{url}/v2/models/fan_out/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def main(argv: list[str] | None = None) -> None:
    """Ask once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", default="localhost:8000")
    args = parser.parse_args(argv)

    answer = ask(args.http, {"X": [1, 2, 3], "DELAYS_MS": DELAYS_MS})
    print(f"eight times the squares of 1, 2, 3: {answer['SUM']}")
    print(f"slowest call {max(DELAYS_MS)} ms, all calls {sum(DELAYS_MS)} ms: took {answer['TOOK_MS']:.1f} ms")


if __name__ == "__main__":
    main()
