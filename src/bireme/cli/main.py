"""The ``bireme`` command: the group of all commands, and the one place where an error becomes an exit status.

Exit status: 0 when all is well, 1 after any error (usage errors included, as tritonserver has it), 130 after Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import bireme
from bireme.cli.import_model import import_model
from bireme.cli.infer import infer
from bireme.cli.repo import repo
from bireme.cli.serve import serve
from bireme.cli.trace import trace


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(bireme.__version__, prog_name="bireme")
def cli() -> None:
    """Serve models over Triton's protocols, ask them, make model folders out of files, and check repositories."""


cli.add_command(serve)
cli.add_command(infer)
cli.add_command(trace)
cli.add_command(import_model)
cli.add_command(repo)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (default: the process's own) and leave with its exit status."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; errors are printed to stderr."""
    try:
        status = cli.main(arguments, prog_name="bireme", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; the interpreter would complain once more when it flushes.
        sys.stdout = sys.stderr
        return 1
    except Exception as error:  # noqa: BLE001 - what is not ours is raised again
        _print_error(error)
        return 1
    return status if isinstance(status, int) else 0


def _print_error(error: Exception) -> None:
    """Print an error of ours as its message; anything else is a bug, and goes on with its traceback."""
    # Imported here, as it brings numpy along, which help and usage errors do without (0.1 s).
    from bireme.types.errors import BiremeError

    if not isinstance(error, BiremeError):
        raise error
    click.echo(f"Error: {error.message}", err=True)
