"""``bireme infer``: one request, from files and values to a readable answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bireme.cli.request_options import GivenRequest, request_options

if TYPE_CHECKING:  # numpy and the wire code load when a request is really sent
    from bireme.cli.targets import Call, Target


@click.command()
@request_options
@click.option(
    "--load",
    multiple=True,
    metavar="NAME",
    help="With -m: load this model too, one that MODEL calls (BLS); '*' is all of the repository. Default: MODEL, with the "
    "steps of an ensemble.",
)
@click.option("-c", "--classes", default=0, metavar="K", help="Show the K highest values with their labels.")
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON on one line.")
def infer(load: tuple[str, ...], classes: int, *, as_json: bool, **words: Any) -> None:
    """Send one request to MODEL and print the answer.

    An INPUT is NAME=VALUE (JSON or text), NAME=@FILE, or a FILE for a model with one input: a picture, .npy, .json,
    or the bytes of a string input. A picture is resized to the input's shape. Several inputs of one name make a batch.

    \b
    Examples:
      bireme infer page_orientation page.png --scale imagenet --classes 4
      bireme infer add INPUT0='[1, 2, 3]' INPUT1=@values.npy --json
    """  # noqa: D301 - click's mark for a paragraph whose lines stay as they are
    request = GivenRequest(**words)
    with request.open_target(("*",) if "*" in load else (request.model, *load)) as target:
        _print(target, request.make_call(target, classes), as_json=as_json)


def _print(target: Target, call: Call, *, as_json: bool) -> None:
    from rich.console import Console

    from bireme.cli import answers

    answer = target.infer(call)
    if as_json:
        click.echo(answers.to_json(answer))
    else:
        answers.show(Console(), answer, is_classified=call.num_classes > 0)
