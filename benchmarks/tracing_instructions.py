"""How many machine instructions the tests for tracing cost a request over HTTP while it is off, on any machine.

    python -m benchmarks.tracing_instructions [--requests N] [--repeats N]

Needs valgrind. An interpreter that serves requests in-process, without sockets or threads, runs under ``callgrind``, which counts
once it is warm; once with one request and once with many. The same again with code from which every test for tracing was taken
out as it was loaded: what is above that is what tracing costs while it is off. Where objects come to lie differs from run to run,
and with it the steps of hash tables, by 0.1 % in the sum; the smallest of the repeats counts. Two cores need 2 minutes.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib.machinery
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import CodeType
from typing import Final

sys.path.pop(0)  # benchmarks/http.py must not stand in for the standard library's http

_TEST: Final = re.compile(r"\b_?tracing\b|\.trace is not None|\.trace_context is not None")
_WARM_UP: Final = 300
ROWS: Final = {
    "code without tests for tracing": ("--without",),
    "off": (),
    "on, nothing is sampled": ("--sampling",),
}


class _WithoutTracing(ast.NodeTransformer):
    """Takes out what asks whether there is a trace, or whether there are any."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if not _is_test(node.test):
            return node
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or):
            rest = [each for each in node.test.values if not _is_test(each)]
            if rest:
                node.test = rest[0] if len(rest) == 1 else ast.BoolOp(ast.Or(), rest)
                return node
        return node.orelse or ast.Pass()

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self._without_fields(node, node.targets[0])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return self._without_fields(node, node.target)

    def _without_fields(self, node: ast.stmt, target: ast.expr) -> ast.AST:
        is_field = isinstance(target, ast.Attribute) and target.attr in ("trace", "trace_context")
        return ast.Pass() if is_field and ast.unparse(target).startswith("self.") else node


def _is_test(test: ast.expr) -> bool:
    return _TEST.search(ast.unparse(test)) is not None


def load_without_tracing() -> None:
    """Let modules that are imported from now on have no tests for tracing."""
    loader = importlib.machinery.SourceFileLoader
    original = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        if not name.startswith(("bireme.engine", "bireme.frontend", "bireme.types.request")):
            return original(self, name)
        tree = ast.parse(Path(self.path).read_bytes(), self.path)
        return compile(ast.fix_missing_locations(_WithoutTracing().visit(tree)), self.path, "exec")

    loader.get_code = get_code  # type: ignore[method-assign]


async def serve(num_requests: int, settings: tuple[str, ...]) -> None:
    """Answer so many requests of one connection without a socket."""
    from benchmarks.tracing import BODY, CONFIG

    from bireme.engine import Server, ServerOptions
    from bireme.frontend.http import HttpFrontend, HttpOptions
    from bireme.telemetry.tracing import TraceOptions
    from bireme.testing import FakeBackend

    with tempfile.TemporaryDirectory() as name:
        models = Path(name)
        (models / "same" / "1").mkdir(parents=True)
        (models / "same" / "config.pbtxt").write_text(CONFIG, "utf-8")
        options = ServerOptions(model_repository=(name,), tracing=TraceOptions.parse(settings))
        backend = FakeBackend(may_run_inline=True)
        async with Server(options=options, backends={"fake": backend}) as server:
            server.model("same")._inline = AlwaysInline()
            frontend = HttpFrontend(server, HttpOptions(address="127.0.0.1", port=0))
            connection = frontend._listener.make_connection()
            transport = Answers()
            connection.connection_made(transport)
            message = b"POST /v2/models/same/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (
                len(BODY),
                BODY,
            )
            for number in range(-_WARM_UP, num_requests):
                if number == 0:
                    switch("on")
                connection.get_buffer(-1)[: len(message)] = message
                transport.num_expected += 1
                connection.buffer_updated(len(message))
                while transport.num_expected:  # noqa: ASYNC110 (the loop itself is what is measured)
                    await asyncio.sleep(0)
            switch("off")
            connection.connection_lost(None)


def switch(state: str) -> None:
    """Have instructions counted from now on, or no longer."""
    command = ["callgrind_control", f"--instr={state}", str(os.getpid())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class AlwaysInline:
    """Stands for the policy of a model, which would find it slow under valgrind and give it a thread."""

    inline = True

    def observe(self, took_ns: int, cpu_ns: int) -> None:
        pass


class Answers(asyncio.Transport):
    """Counts the answers, and throws them away."""

    def __init__(self) -> None:
        self.num_expected = 0

    def write(self, data: object) -> None:
        self.num_expected -= 1

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


def count(words: tuple[str, ...], num_requests: int) -> int:
    """Return the instructions of an interpreter that answers so many requests."""
    command = [sys.executable, "-m", "benchmarks.tracing_instructions", "--child", *words]
    found = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--instr-atstart=no",
            *command,
            f"--requests={num_requests}",
        ],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    collected = re.search(r"Collected : (\d+)", found.stderr)
    if found.returncode or collected is None:
        sys.exit(f"{found.stderr}\nthe server under valgrind has failed")
    return int(collected[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    for word in ("--child", "--without", "--sampling"):
        parser.add_argument(word, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.without:
            load_without_tracing()
        sampling = ("level=TIMESTAMPS", f"triton,file={os.devnull}", "rate=1000000000")
        asyncio.run(serve(options.requests, sampling if options.sampling else ()))
        return
    base = None
    for row, words in ROWS.items():
        one, many = (
            min(count(words, num_requests) for _ in range(options.repeats))
            for num_requests in (1, options.requests + 1)
        )
        each = (many - one) / options.requests
        base = base or each
        print(
            f"{row:32}{each:12,.0f} instructions a request {each - base:+8,.0f}  {(each / base - 1) * 100:+.2f} %"
        )


if __name__ == "__main__":
    main()
