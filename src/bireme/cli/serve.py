"""``bireme serve``: from the flags to a running server (`bireme.cli.serving`)."""

from __future__ import annotations

import sys
from typing import Any

import click

from bireme.cli.flags import FLAGS
from bireme.cli.options import FlagCommand, given_flags

_PRELOAD = ("bireme.backends.python.model_process",)
"""What the fork server imports beside the server: most workers run a Python model."""


def _serve(**variables: Any) -> int:
    if sys.platform != "linux":
        return _run(variables)
    # This brings what workers need, numpy as well: they find it where the server has it. What only the server needs
    # is imported after the fork.
    from bireme.ipc import fork_server

    fork_server.start(_PRELOAD)
    try:
        return _run(variables)
    finally:
        fork_server.stop()


def _run(variables: dict[str, Any]) -> int:
    # These floors load much: only when a server really starts.
    from bireme.cli.serving import Serving
    from bireme.cli.settings import make_settings

    values = {name: variables[name.replace("-", "_")] for name in FLAGS}
    settings = make_settings(values, given_flags(click.get_current_context()))
    return Serving(settings).run()


serve = FlagCommand(
    name="serve",
    callback=_serve,
    short_help="Serve the models of a repository over HTTP and gRPC.",
    help="Serve the models of a repository. Takes tritonserver's flags, as --flag=value or --flag value.\n\n"
    "Example: bireme serve -m ./models -p 8000",
)
