"""The command line: one file per command. Imports of a command stand inside it, so that help is instant."""

from bireme.cli.main import main

__all__ = ["main"]
