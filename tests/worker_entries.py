"""Entries of worker processes, for tests: what the process at the other end of a channel does."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bireme.ipc.channel import Channel
from bireme.ipc.ledger import Ledger
from bireme.ipc.messages import Call, Cancel, Execute, Executed, LogLine, ResponseData


def say(channel: Channel, text: str) -> None:
    channel.send(LogLine(20, text, "", 0))


def echo(channel: Channel, ledger: Ledger) -> None:
    """Answer each batch with its first request's inputs; or with copies of them, if its id is ``copy``.

    One whose id is ``keep`` is kept. A `Cancel` is a command, by its number.
    """
    kept = []
    while True:
        message = channel.receive()
        if type(message) is Cancel:
            COMMANDS[message.request](channel)
        elif type(message) is not Execute:
            return
        else:
            request = message.requests[0]
            tensors = [ledger.adopt(data) for data in request.inputs]
            ledger.take_back(message.released)
            if request.id == "keep":
                kept += tensors
            if request.id == "copy":
                for tensor in tensors:
                    tensor._array = tensor.to_numpy().copy()
            outputs = [ledger.export(tensor) for tensor in tensors]
            del tensors
            channel.send(
                Executed(message.number, 0, 0, [ResponseData(outputs)], None, ledger.take_released())
            )


def die(channel: Channel) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(channel: Channel) -> None:
    say(channel, "bye")
    sys.exit(3)


def fail(channel: Channel) -> None:
    raise ZeroDivisionError("a test's")


def hang_up(channel: Channel) -> None:
    channel.close()
    time.sleep(60)


def fork_and_leave(channel: Channel) -> None:
    """End, while a fork that holds all descriptors lives on."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    say(channel, str(pid))
    os._exit(5)


def describe(channel: Channel) -> None:
    """Tell what a program that is started here gets to see."""
    descriptors = subprocess.run(
        [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
        capture_output=True,
        check=True,
        text=True,
    )
    program = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    handling = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    channel.send(
        Call(
            1,
            "facts",
            {
                "descriptors": int(descriptors.stdout),
                "heeds_sigterm": handling.stdout.strip() == "True",
                "path": sys.path[-1],
                "cwd_is_on_path": "" in sys.path or str(Path.cwd()) in sys.path,
                "variable": os.environ.get("BIREME_TEST", ""),
            },
        )
    )


def babble(channel: Channel) -> None:
    channel._socket.send(b"\xc1 what is no message")
    time.sleep(60)


def interrupt(channel: Channel) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    say(channel, "still here")


def hold_the_gil(channel: Channel) -> None:
    say(channel, "stuck")
    ctypes.PyDLL(None).sleep(60)


COMMANDS = dict(
    enumerate([die, leave, fail, hang_up, fork_and_leave, describe, babble, interrupt, hold_the_gil])
)
NUMBERS = {command.__name__: number for number, command in COMMANDS.items()}
