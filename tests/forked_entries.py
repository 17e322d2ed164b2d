"""Entries of forked workers, for tests: what such a process gets to see, and ways in which it ends. They talk JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from bireme.ipc.channel import Channel
from bireme.ipc.ledger import Ledger


def say(channel: Channel, word: object) -> None:
    channel._socket.send(json.dumps(word).encode())


def tell(channel: Channel, _ledger: Ledger) -> None:
    """Tell of itself; end when the connection is closed."""
    main = sys.modules["__main__"]
    say(
        channel,
        {
            "pid": os.getpid(),
            "group": os.getpgrp(),
            "parent": os.getppid(),
            "random": [random.random(), np.random.random()],  # noqa: NPY002
            "environment": dict(os.environ),
            "descriptors": sorted(
                str(fd.readlink()).split(":")[0] for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()
            ),
            "input": sys.stdin.read(),
            "main": sorted(name for name in vars(main) if not name.startswith("_")),
            "main_file": getattr(main, "__file__", None),
            "path": sys.path,
            "heeds_sigterm": _heeds_sigterm(),
            "threads": threading.active_count(),
            "title": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode(),
        },
    )
    channel._socket.recv(1)


def _heeds_sigterm() -> bool:
    program = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    return result.stdout.strip() == "True"


def leave(_channel: Channel, _ledger: Ledger) -> None:
    sys.exit(3)


def fail(_channel: Channel, _ledger: Ledger) -> None:
    raise ZeroDivisionError("a test's")


def die(_channel: Channel, _ledger: Ledger) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def sleep(channel: Channel, _ledger: Ledger) -> None:
    say(channel, os.getpid())
    time.sleep(60)


def leave_orphans(channel: Channel, _ledger: Ledger) -> None:
    """Start what outlives what started it: a daemon that ends by itself soon, in a session of its own."""
    pids = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            time.sleep(0.05)
        else:
            os.write(pids[1], str(pid).encode())
        os._exit(0)
    os.wait()
    say(channel, int(os.read(pids[0], 20)))
    channel._socket.recv(1)
