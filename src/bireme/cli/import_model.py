"""``bireme import``: from a model file to a folder that is ready to be served."""

from __future__ import annotations

import json
import re
import shlex
import signal
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:  # loads every floor: only when something is really imported
    from bireme.cli.import_steps import Imported, Order

_MAX_SHOWN_ELEMENTS: Final = 16
_NOT_IN_URLS: Final = re.compile(r"[^A-Za-z0-9._-]+")


@click.command("import", short_help="Make a model folder out of a model file of any framework.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Name of the model. Default: the file's; of model.onnx and its like, the folder's.",
)
@click.option(
    "--to",
    "repository",
    default="models",
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The model repository; made if it is not there.",
)
@click.option(
    "--version",
    type=click.IntRange(min=1),
    metavar="N",
    help="Version; of a model that is there already, a new one beside the others, under its config. Default: 1.",
)
@click.option(
    "--backend",
    default="",
    metavar="NAME",
    help="Backend to serve it. Default: found out from the file's content.",
)
@click.option(
    "--max-batch-size",
    type=click.IntRange(min=0),
    metavar="N",
    help="Most rows in one run; 0: no batching. Default: by the size of a row, if the file has a batch dimension.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME:DTYPE:DIMS",
    help="An input that the file does not tell, such as x:FP32:3,224,224 (-1: any size). Repeatable.",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="NAME:DTYPE:DIMS",
    help="As --input, for an output. Repeatable.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME:DIMS",
    help="Sizes of an input for the trial run, without the batch. Repeatable.",
)
@click.option(
    "--example",
    "examples",
    multiple=True,
    metavar="NAME=VALUE",
    help="Values of an input for the trial run, as of infer. Repeatable. Default: random ones.",
)
@click.option("--link", is_flag=True, help="Link the file instead of copying it.")
@click.option("--force", is_flag=True, help="Replace this version and the config if they are there.")
@click.option("--no-run", is_flag=True, help="Load it, but run nothing.")
@click.option("--config-only", is_flag=True, help="Print the config; leave nothing in the repository.")
def import_model(
    file: Path,
    name: str,
    repository: Path,
    version: int | None,
    backend: str,
    max_batch_size: int | None,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    shapes: tuple[str, ...],
    examples: tuple[str, ...],
    *,
    link: bool,
    force: bool,
    no_run: bool,
    config_only: bool,
) -> None:
    """Make a model folder out of FILE: a model file of any framework, or a folder such as a SavedModel.

    Finds its backend, copies it to where a server looks for it, writes config.pbtxt, loads it and runs it once. If that
    fails, nothing is left behind.

    \b
    Examples:
      bireme import resnet50.onnx --to ./models
      bireme import net.pt --name net --input x:FP32:3,224,224 --output OUTPUT__0:FP32:1000 --max-batch-size 8
    """  # noqa: D301 - click's mark for a paragraph whose lines stay as they are
    from bireme.cli.import_config import read_dims, read_tensor
    from bireme.cli.import_steps import Order, import_model as carry_out
    from bireme.config.model_config import ModelInput, ModelOutput
    from bireme.types import InvalidArgument

    def shape_of(text: str) -> tuple[str, tuple[int, ...]]:
        input_name, colon, dims = text.rpartition(":")
        if not colon:
            raise InvalidArgument(f"--shape '{text}': expected NAME:DIMS, such as x:3,224,224")
        return input_name, read_dims(text, dims)

    order = Order(
        source=file,
        repository=repository,
        name=name or _default_name(file),
        version=version,
        backend=backend,
        max_batch_size=max_batch_size,
        inputs=tuple(ModelInput(*parts[:2], dims=parts[2]) for parts in map(read_tensor, inputs)),
        outputs=tuple(ModelOutput(*parts) for parts in map(read_tensor, outputs)),
        shapes=dict(map(shape_of, shapes)),
        examples=examples,
        is_linked=link,
        replaces=force,
        runs=not no_run,
        keeps_nothing=config_only,
    )
    with _ended_in_order():
        imported = carry_out(order)
    if config_only:
        click.echo(imported.config_text, nl=False)
    else:
        _print(order, imported)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM end this block as an exit does, which tidies up; SIGINT does so anyway."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _default_name(file: Path) -> str:
    """Return the file's name without its ending; of ``model.onnx`` and its like, the folder's.

    What may not stand in the path of a URL is left out: servers take paths as they come.
    """
    path = file.resolve()
    name = path.parent.name if path.stem in ("model", "saved_model") else path.stem
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return _NOT_IN_URLS.sub("_", plain).strip("_") or name


def _print(order: Order, imported: Imported) -> None:
    from bireme.cli.import_proof import show
    from bireme.types import datatypes

    config = imported.config
    batch = ("batch",) if config.max_batch_size else ()
    where = order.model_dir / order.version_name
    click.echo(
        f"{order.source.name}: {imported.file.format.title}, served by backend '{imported.file.format.backend}'"
    )
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            datatype = datatypes.from_config_name(tensor.data_type)
            sizes = ",".join(map(str, (*batch, *tensor.dims)))
            click.echo(f"  {kind:7} {tensor.name} {datatype}[{sizes}]")
    rows = (
        f"up to {config.max_batch_size} rows in one run"
        if config.max_batch_size > 1
        else "one request, one run"
    )
    click.echo(f"  batches {rows}")
    if imported.proof is not None:
        proof = imported.proof
        took, gave = (", ".join(map(show, tensors)) for tensors in (proof.inputs, proof.outputs))
        click.echo(f"  ran     {took} → {gave} in {proof.took_ms:.1f} ms")
        if proof.num_rows > 1:
            click.echo(
                f"          {proof.num_rows} rows in {proof.batch_took_ms:.1f} ms: {proof.batch_gain:.1f} × the rows a second"
            )
    kept = "kept, as it was there" if imported.is_config_kept else "written"
    click.echo(f"  made    {where}, {order.model_dir / 'config.pbtxt'} {kept}")
    click.echo("\nNext:")
    click.echo(f"  bireme serve -m {shlex.quote(str(order.repository))}")
    click.echo(f"  {_request(order.name, imported)}")


def _request(name: str, imported: Imported) -> str:
    """Return a command that asks the served model: the request that ran where that is short, else for its metadata."""
    from math import prod

    tensors = imported.proof.inputs if imported.proof is not None else ()
    num_elements = sum(prod(tensor.shape) for tensor in tensors)
    if not 0 < num_elements <= _MAX_SHOWN_ELEMENTS:
        return f"curl {shlex.quote(f'localhost:8000/v2/models/{name}')}"
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "data": ["text" if tensor.datatype == "BYTES" else 0] * prod(tensor.shape),
        }
        for tensor in tensors
    ]
    body = json.dumps({"inputs": inputs})
    return f"curl {shlex.quote(f'localhost:8000/v2/models/{name}/infer')} -d {shlex.quote(body)}"
