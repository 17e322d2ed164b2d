"""The whole example in one go: build, serve, ask, stop. `make demo-vision` runs this.

The server listens on free loopback ports; what it writes is in ``server.log`` beside this file. The exit status is 0
when every step worked and the server stopped cleanly.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import build
import client

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
import serving

HERE = Path(__file__).resolve().parent
LOG = HERE / "server.log"

console = client.console


def step(number: int, text: str) -> None:
    """Announce a step."""
    console.print(f"\n[bold]{number}  {text}[/bold]")


def main() -> None:
    """Run all steps."""
    step(1, "Model repository: model files and pictures out of pip packages")
    if not build.build(lambda line: console.print(f"  {line}")):
        console.print("  everything is there already")

    step(2, "Server")
    console.print(f"  $ bireme serve --model-repository {os.path.relpath(build.MODELS)}", soft_wrap=True)
    start = time.monotonic()
    with serving.served(build.MODELS, LOG) as addresses:
        console.print(f"  ready after {time.monotonic() - start:.1f} s; its log is {os.path.relpath(LOG)}")

        step(3, "Pictures, sent with the official client (tritonclient.http)\n")
        client.main(["--url", addresses.http, "--metrics", addresses.metrics])

        step(4, "Stop: SIGTERM, in-flight requests finish, exit status 0")
    console.print(
        "  done. [bold]make serve[/bold] keeps it running; then, from another terminal:\n"
        "  [bold].venv/bin/python examples/vision/client.py YOUR_PICTURE[/bold]\n"
    )


if __name__ == "__main__":
    main()
