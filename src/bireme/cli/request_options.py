"""What `bireme infer` and `bireme trace` have in common: the words that make up a request, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:  # numpy and the wire code load when a request is really sent
    from bireme.cli.targets import Call, Target

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SCALINGS = ("auto", "none", "unit", "signed", "imagenet")
"""Value ranges: 0…255, 0…1, -1…1, ImageNet's mean and deviation; auto is unit for floats and none for integers."""


class PictureSize(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Width and height, written 640x480."""

    name = "WxH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return both numbers."""
        width, _, height = str(value).partition("x")
        if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
            self.fail(f"expected WIDTHxHEIGHT in pixels, such as 640x480, got {value!r}", param, ctx)
        return int(width), int(height)


_PARAMETERS = (
    click.argument("model"),
    click.argument("inputs", nargs=-1, metavar="[INPUT]..."),
    click.option(
        "-u",
        "--url",
        default="http://localhost:8000",
        show_default=True,
        metavar="URL",
        help="The server to ask.",
    ),
    click.option(
        "-m",
        "--model-repository",
        metavar="PATH",
        help="Load the model from this repository into this process, instead of asking a server.",
    ),
    click.option(
        "--version", type=int, default=-1, metavar="N", help="Version of the model. Default: the latest."
    ),
    click.option(
        "-o", "--output", "outputs", multiple=True, metavar="NAME", help="Ask for this output only."
    ),
    click.option(
        "-s",
        "--scale",
        type=click.Choice(_SCALINGS),
        metavar="|".join(_SCALINGS),
        default="auto",
        show_default=True,
        help="Values of a picture: none 0…255, unit 0…1, signed -1…1, imagenet normalised; auto is unit for float "
        "inputs and none for integer ones.",
    ),
    click.option(
        "--size",
        type=PictureSize(),
        metavar="WxH",
        help="Size of a picture where the input leaves it open. Default: the picture's own.",
    ),
    click.option(
        "-P", "--parameter", "parameters", multiple=True, metavar="KEY=VALUE", help="A request parameter."
    ),
    click.option("--id", "request_id", default="", metavar="TEXT", help="Id of the request."),
    click.option(
        "--sequence-id",
        metavar="ID",
        help="The sequence that the request belongs to: a number above 0, or a text (one of digits in quotes: '\"7\"').",
    ),
    click.option("--sequence-start", is_flag=True, help="The request is the first of its sequence."),
    click.option("--sequence-end", is_flag=True, help="The request is the last of its sequence."),
    click.option(
        "--timeout", "timeout_s", default=60.0, show_default=True, metavar="S", help="Seconds to wait."
    ),
)


def request_options(command: _Command) -> _Command:
    """Give a command the arguments and options that describe a request: the fields of `GivenRequest`."""
    for parameter in reversed(_PARAMETERS):
        command = parameter(command)
    return command


@dataclass(frozen=True, slots=True)
class GivenRequest:
    """A request as written on the command line."""

    model: str
    inputs: tuple[str, ...]
    url: str
    model_repository: str | None
    version: int
    outputs: tuple[str, ...]
    scale: str
    size: tuple[int, int] | None
    parameters: tuple[str, ...]
    request_id: str
    sequence_id: str | None
    sequence_start: bool
    sequence_end: bool
    timeout_s: float

    @contextmanager
    def open_target(self, load: tuple[str, ...]) -> Iterator[Target]:
        """Connect to the server, or load the repository's models ``load``; ``*`` are all."""
        from bireme.cli.targets import LocalRepository, RemoteServer

        is_url_given = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
        if is_url_given and self.model_repository is not None:
            raise click.UsageError(
                "--url asks a server, --model-repository does without one: give one of them"
            )
        if self.model_repository is None:
            with closing(RemoteServer(self.url, self.timeout_s)) as server:
                yield server
        else:
            with LocalRepository.open(self.model_repository, load) as local:
                yield local

    def make_call(self, target: Target, num_classes: int = 0) -> Call:
        """Return the request, with inputs that fit the model of ``target``."""
        from bireme.cli.inputs import GivenInputs, ModelSpec
        from bireme.cli.targets import Call, SequencePlace

        sequence = None
        if self.sequence_id is not None:
            sequence = SequencePlace(_sequence_id(self.sequence_id), self.sequence_start, self.sequence_end)
        elif self.sequence_start or self.sequence_end:
            raise click.UsageError("--sequence-start and --sequence-end need a --sequence-id")
        spec = ModelSpec.from_config(target.config(self.model, self.version))
        given = GivenInputs(spec, self.scale, self.size)
        for word in self.inputs:
            given.add(word)
        return Call(
            self.model,
            self.version,
            given.tensors(),
            self.outputs or spec.outputs,
            num_classes,
            dict(_parameter(text) for text in self.parameters),
            self.request_id,
            sequence,
        )


def _sequence_id(text: str) -> int | str:
    """Return a number, or a text, as the protocols tell them apart.

    Raises:
        BadParameter: it is 0 or empty, which stands for no sequence, or above 64 bits.
    """
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    found = text[1:-1] if quoted else int(text) if text.isdecimal() else text
    if not found or (isinstance(found, int) and found >= 1 << 64):
        raise click.BadParameter(
            f"expected a number from 1 to 2^64 - 1 or a text, got {text!r}", param_hint="--sequence-id"
        )
    return found


def _parameter(text: str) -> tuple[str, bool | int | float | str]:
    """Return ``KEY=VALUE`` as key and value: JSON numbers and booleans are those, anything else is a text."""
    import orjson

    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint="--parameter")
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError:
        return key, value
    return key, parsed if isinstance(parsed, bool | int | float | str) else value
