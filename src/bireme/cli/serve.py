"""``bireme serve``: from the flags to a running server (`bireme.cli.serving`)."""

from __future__ import annotations

from typing import Any

import click

from bireme.cli.flags import FLAGS
from bireme.cli.options import FlagCommand, given_flags


def _serve(**variables: Any) -> int:
    # These floors load numpy and more: only when a server really starts.
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
