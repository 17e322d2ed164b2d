"""Lifeline: a child that ends with its server, whatever it does at that moment."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys

import pytest

CHILD = """
import ctypes, fcntl, os, sys
if {without}:
    del fcntl.F_SETSIG
from bireme.ipc import lifeline
fd = int(sys.argv[1])
if {early}:
    os.read(0, 1)
lifeline.hold(fd)
print("held", flush=True)
{busy}
"""
STUCK = "ctypes.PyDLL(None).sleep(60)"  # with the GIL
WAITING = "os.read(0, 1); os.read(0, 1)"


def start(*, busy: str = STUCK, without: bool = False, early: bool = False):
    from bireme.ipc.lifeline import make_lifeline

    theirs, ours = make_lifeline()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(busy=busy, without=without, early=early), str(theirs)],
        pass_fds=(theirs,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    os.close(theirs)
    return child, ours


def end(child) -> int:
    with child:
        try:
            return child.wait(5)
        finally:
            child.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("busy", "without"), [(STUCK, False), (WAITING, False), (WAITING, True)])
def test_the_child_is_killed_when_the_other_end_is_closed(busy, without):
    child, ours = start(busy=busy, without=without)
    assert child.stdout.readline() == b"held\n"
    assert child.poll() is None
    os.close(ours)

    assert end(child) == -9


@pytest.mark.slow
def test_a_child_whose_server_is_gone_already_is_killed_at_once():
    child, ours = start(early=True)
    os.close(ours)
    child.stdin.write(b"x")
    child.stdin.flush()

    assert end(child) == -9


def test_no_other_program_inherits_an_end():
    from bireme.ipc.lifeline import make_lifeline

    ends = make_lifeline()
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in ends)
    os.close(ends[1])
    assert select.select([ends[0]], [], [], 1)[0]
    os.close(ends[0])
