"""Run an example in one go: build, serve on free ports, run its client, stop.

    python examples/python/demo.py [NAME...]

Without names: all of them. The exit status is 0 when every client worked and every server stopped cleanly.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import build

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share
import serving

HERE = Path(__file__).resolve().parent
CLIENTS = {
    "add_sub": ("http", "grpc"),
    "page_upright": ("http",),
    "cascade": ("http",),
    "repeat": ("http", "grpc"),
    "fan_out": ("http",),
    "speech": ("http", "grpc"),
}
"""The examples, and which of the server's ports their clients want to know."""


def run(name: str) -> None:
    """Serve the example and run its client.

    Raises:
        SystemExit: the server did not start or stop well, or the client failed; the server's log is in the text.
    """
    build.build([name])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with serving.served(HERE / name / "models", log) as addresses:
            urls = [f"--{protocol}={getattr(addresses, protocol)}" for protocol in CLIENTS[name]]
            try:
                subprocess.run([sys.executable, HERE / name / "client.py", *urls], check=True)
            except subprocess.CalledProcessError as error:
                raise SystemExit(f"error: {error}; the server's log:\n{log.read_text()}") from error


def main() -> None:
    """Run the examples that the command line names."""
    for name in sys.argv[1:] or CLIENTS:
        print(f"\n── {name}", flush=True)
        run(name)


if __name__ == "__main__":
    main()
