"""``bireme infer``: one request, from files and values to a readable answer."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:  # numpy and the wire code load when a request is really sent
    from bireme.cli.targets import Call, Target

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


@click.command()
@click.argument("model")
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option(
    "-u",
    "--url",
    default="http://localhost:8000",
    show_default=True,
    metavar="URL",
    help="The server to ask.",
)
@click.option(
    "-m",
    "--model-repository",
    metavar="PATH",
    help="Load the model from this repository into this process, instead of asking a server.",
)
@click.option(
    "--version", type=int, default=-1, metavar="N", help="Version of the model. Default: the latest."
)
@click.option("-o", "--output", "outputs", multiple=True, metavar="NAME", help="Ask for this output only.")
@click.option("-c", "--classes", default=0, metavar="K", help="Show the K highest values with their labels.")
@click.option(
    "-s",
    "--scale",
    type=click.Choice(_SCALINGS),
    metavar="|".join(_SCALINGS),
    default="auto",
    show_default=True,
    help="Values of a picture: none 0…255, unit 0…1, signed -1…1, imagenet normalised; auto is unit for float "
    "inputs and none for integer ones.",
)
@click.option(
    "--size",
    type=PictureSize(),
    metavar="WxH",
    help="Size of a picture where the input leaves it open. Default: the picture's own.",
)
@click.option(
    "-P", "--parameter", "parameters", multiple=True, metavar="KEY=VALUE", help="A request parameter."
)
@click.option("--id", "request_id", default="", metavar="TEXT", help="Id of the request.")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, metavar="S", help="Seconds to wait.")
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON on one line.")
def infer(
    model: str,
    inputs: tuple[str, ...],
    url: str,
    model_repository: str | None,
    version: int,
    outputs: tuple[str, ...],
    classes: int,
    scale: str,
    size: tuple[int, int] | None,
    parameters: tuple[str, ...],
    request_id: str,
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    """Send one request to MODEL and print the answer.

    An INPUT is NAME=VALUE (JSON or text), NAME=@FILE, or a FILE for a model with one input: a picture, .npy, .json,
    or the bytes of a string input. A picture is resized to the input's shape. Several inputs of one name make a batch.

    \b
    Examples:
      bireme infer page_orientation page.png --scale imagenet --classes 4
      bireme infer add INPUT0='[1, 2, 3]' INPUT1=@values.npy --json
    """  # noqa: D301 - click's mark for a paragraph whose lines stay as they are
    from bireme.cli.inputs import GivenInputs, ModelSpec
    from bireme.cli.targets import Call, LocalRepository, RemoteServer

    def ask(target: Target) -> None:
        spec = ModelSpec.from_config(target.config(model, version))
        given = GivenInputs(spec, scale, size)
        for word in inputs:
            given.add(word)
        call = Call(
            model,
            version,
            given.tensors(),
            outputs or spec.outputs,
            classes,
            dict(_parameter(text) for text in parameters),
            request_id,
        )
        _print(target, call, as_json=as_json)

    is_url_given = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
    if is_url_given and model_repository is not None:
        raise click.UsageError("--url asks a server, --model-repository does without one: give one of them")
    if model_repository is None:
        with closing(RemoteServer(url, timeout_s)) as server:
            ask(server)
    else:
        with LocalRepository.open(model_repository, model) as local:
            ask(local)


def _print(target: Target, call: Call, *, as_json: bool) -> None:
    from rich.console import Console

    from bireme.cli import answers

    answer = target.infer(call)
    if as_json:
        click.echo(answers.to_json(answer))
    else:
        answers.show(Console(), answer, is_classified=call.num_classes > 0)


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
