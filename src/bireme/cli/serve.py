"""``bireme serve``: the server, its start and its stop.

Start: flags, then ports (a taken port must not cost the minutes that large models load), then models. Stop: not ready
at once, in-flight requests finish, exit status 0; a second signal, or the end of ``--exit-timeout-secs``, ends the
process at once with exit status 1.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.flags import FLAGS
from bireme.cli.options import FlagCommand, given_flags

if TYPE_CHECKING:  # these floors load numpy and more: only when a server really starts
    from bireme.cli.settings import Settings

_STARTED_NS = time.monotonic_ns()


def _serve(**variables: Any) -> int:
    from bireme.cli.settings import make_settings

    values = {name: variables[name.replace("-", "_")] for name in FLAGS}
    settings = make_settings(values, given_flags(click.get_current_context()))
    return run(settings)


serve = FlagCommand(
    name="serve",
    callback=_serve,
    short_help="Serve the models of a repository over HTTP.",
    help="Serve the models of a repository. Takes tritonserver's flags, as --flag=value or --flag value.\n\n"
    "Example: bireme serve -m ./models -p 8000",
)


def run(settings: Settings) -> int:
    """Serve until a signal; return the exit status."""
    from bireme.cli.serving import Serving

    return Serving(settings, started_ns=_STARTED_NS).run()
