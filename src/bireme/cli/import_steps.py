"""What `bireme import` does: a model folder is made beside its place, loaded, run, and only then put there.

Until the last step nothing that is in the repository changes, and a server that polls it sees nothing: the folder in the making
has a hidden name. It is removed however the import ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from bireme.cli.import_config import Suggestion, suggest, with_fewer_rows
from bireme.cli.import_proof import BatchFailed, Proof, prove
from bireme.config import ModelConfig, complete_backend, parse_json, to_text
from bireme.config.model_config import ModelInput, ModelOutput
from bireme.engine import BlockingServer, Server, ServerOptions
from bireme.repository import check_model_name
from bireme.repository.file_content import torchscript_arguments
from bireme.repository.layout import CONFIG_FILE, is_leftover, is_model_candidate, list_versions
from bireme.repository.model_files import AOTI, TORCHSCRIPT, ModelFile, recognise
from bireme.types import AlreadyExists, BiremeError, InvalidArgument

T = TypeVar("T")

_LOAD_FAILED: Final = re.compile(r"^load failed for model '.*?': version \d+ is at UNAVAILABLE state: ")
_LACKS_TENSORS: Final = re.compile(
    r"list the outputs|must specify|doesn't tell|does not tell|config must list"
)
"""What the server says where the config has to name tensors."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asks for."""

    source: Path
    repository: Path
    name: str
    version: int | None = None
    """None: 1, of a new model."""
    backend: str = ""
    max_batch_size: int | None = None
    """None: as the file allows."""
    inputs: tuple[ModelInput, ...] = ()
    """Those that the file doesn't tell, as ``outputs``."""
    outputs: tuple[ModelOutput, ...] = ()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Of inputs, for the sample."""
    examples: tuple[str, ...] = ()
    is_linked: bool = False
    replaces: bool = False
    runs: bool = True
    keeps_nothing: bool = False
    """Only the config is wanted."""

    @property
    def model_dir(self) -> Path:
        """Where the model goes."""
        return self.repository / self.name

    @property
    def version_name(self) -> str:
        """The version's directory."""
        return str(self.version or 1)


@dataclass(frozen=True, slots=True)
class Imported:
    """What was made."""

    file: ModelFile
    config: ModelConfig
    config_text: str
    is_config_kept: bool
    """The model was there, and its config with it."""
    proof: Proof | None


def import_model(order: Order) -> Imported:
    """Make a model directory out of a file.

    Raises:
        InvalidArgument: the file is no model, or does not load or run; nothing was made.
        AlreadyExists: there is such a model, or version of it.
    """
    file = recognise(order.source, order.backend)
    _check_target(order)
    _check_tensors(order, file)
    with _named_errors(order), _staging(order) as staging:
        version_dir = staging / order.name / order.version_name
        version_dir.mkdir(parents=True)
        place(file, version_dir, is_linked=order.is_linked)
        kept_config = order.model_dir / CONFIG_FILE
        is_config_kept = kept_config.is_file() and not order.replaces and not order.keeps_nothing
        if is_config_kept:
            shutil.copyfile(kept_config, staging / order.name / CONFIG_FILE)
            config, proof = _with_model(order, staging, lambda *loaded: _final(order, *loaded))
            text = kept_config.read_text("utf-8")
        else:
            suggestion, proof = _settle(order, file, staging)
            config, text = suggestion.config, suggestion.to_text()
        if not order.keeps_nothing:
            _put_in_place(order, staging, with_config=not is_config_kept)
    return Imported(file, config, text, is_config_kept, proof)


def place(file: ModelFile, version_dir: Path, *, is_linked: bool) -> None:
    """Copy a model file, with what belongs to it, into a version directory, or link it there.

    Raises:
        OSError: that cannot be done.
    """
    if file.is_content:
        pieces = [(each, each.name) for each in file.path.iterdir() if not is_leftover(each.name)]
    else:
        pieces = [(file.path, file.format.filename), *file.companions]
    for source, name in pieces:
        target = version_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_linked:
            target.symlink_to(source.resolve(), target_is_directory=source.is_dir())
        elif source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)


def _check_target(order: Order) -> None:
    check_model_name(order.name)
    if not is_model_candidate(order.name):
        raise InvalidArgument(f"'{order.name}' cannot be a model's name: a server would ignore such a folder")
    if re.match(r"\w+:/", str(order.repository)):
        raise InvalidArgument(
            f"--to {order.repository}: expected a local folder; what is made there can be copied to an object store"
        )
    if order.repository.exists() and not order.repository.is_dir():
        raise InvalidArgument(f"--to {order.repository}: a file is there, expected a model repository")
    if order.keeps_nothing or order.replaces or not order.model_dir.exists():
        return
    if not order.model_dir.is_dir():
        raise AlreadyExists(f"'{order.model_dir}' is there already, and is no model directory")
    versions = list_versions(order.model_dir).versions
    there = (
        f"version{'s' * (len(versions) != 1)} {', '.join(map(str, versions))}" if versions else "no version"
    )
    if order.version is None or order.version in versions:
        what = f"version {order.version} of " if order.version in versions else ""
        raise AlreadyExists(
            f"{what}model '{order.name}' is in {order.repository} already (with {there}): add --version "
            f"{max(versions, default=0) + 1} for a new version of it, or replace it by --force"
        )


def _check_tensors(order: Order, file: ModelFile) -> None:
    """Refuse a file of torch without its tensors before it is copied; what its code says helps."""
    form = file.format
    if form not in (TORCHSCRIPT, AOTI) or (order.inputs and order.outputs):
        return
    if (order.model_dir / CONFIG_FILE).is_file() and not order.replaces and not order.keeps_nothing:
        return
    arguments = torchscript_arguments(file.path) if form is TORCHSCRIPT else []
    takes = ", ".join(f"{each.name}: {each.annotation}" for each in arguments)
    names = [each.name for each in arguments if each.annotation.startswith("Tensor")] or ["INPUT__0"]
    example = " ".join(f"--input {name}:FP32:3,224,224" for name in names)
    raise InvalidArgument(
        f"'{file.path}' ({form.title}) doesn't tell the types and shapes of its tensors"
        f"{f'; its forward() takes ({takes})' if takes else ''}. Say them, in the order of forward(): {example} --output "
        f"OUTPUT__0:FP32:1000. With --max-batch-size above 0 the dims have no batch dimension"
    )


def _settle(order: Order, file: ModelFile, staging: Path) -> tuple[Suggestion, Proof | None]:
    """Write a config that the model loads and runs with."""
    path = staging / order.name / CONFIG_FILE
    path.write_text(to_text(_first_config(order, file)), "utf-8")
    completed = _with_model(order, staging, lambda _server, config: config)
    if not (completed.input and completed.output):
        raise InvalidArgument(f"{file.format.title}: the config must list its inputs and outputs")
    suggestion = suggest(completed, file.format, order.source.name, order.max_batch_size)
    if _is_usual_name(suggestion.config, path.parent / order.version_name):
        suggestion = replace(suggestion, config=replace(suggestion.config, default_model_filename=""))
    while True:
        path.write_text(suggestion.to_text(), "utf-8")
        try:
            config, proof = _with_model(order, staging, lambda *loaded: _final(order, *loaded))
        except BatchFailed as error:
            if order.max_batch_size is not None:
                raise InvalidArgument(
                    f"--max-batch-size {order.max_batch_size}: {error.max_rows} at a time run, but not {error.message}"
                ) from error
            suggestion = with_fewer_rows(suggestion, error.max_rows, " ".join(error.message.split()))
        else:
            return replace(suggestion, config=replace(suggestion.config, name=config.name)), proof


def _is_usual_name(config: ModelConfig, version_dir: Path) -> bool:
    """Whether the server finds the model file without being told its name."""
    unnamed = replace(config, default_model_filename="")
    found = complete_backend(unnamed, config.name, version_dir).default_model_filename
    return found == config.default_model_filename


def _first_config(order: Order, file: ModelFile) -> ModelConfig:
    """Return what is known before the model is opened; the server completes it."""
    form = file.format
    return ModelConfig(
        name=order.name,
        backend=form.backend,
        platform=form.platform,
        default_model_filename=form.filename,
        max_batch_size=order.max_batch_size or 0,
        input=order.inputs,
        output=order.outputs,
    )


def _final(order: Order, server: BlockingServer, config: ModelConfig) -> tuple[ModelConfig, Proof | None]:
    return config, prove(server, config, order.shapes, order.examples) if order.runs else None


def _with_model(order: Order, staging: Path, use: Callable[[BlockingServer, ModelConfig], T]) -> T:
    """Load the model as a server does; return what ``use`` returns, given its config."""
    options = ServerOptions(
        model_repository=(str(staging),), model_control_mode="explicit", exit_on_error=False
    )
    with Server(options=options) as server:
        server.load_model(order.name)
        config = parse_json(json.dumps(server.model_config(order.name)), "config")
        return use(server, config)


@contextmanager
def _staging(order: Order) -> Iterator[Path]:
    """Give a folder beside the model's place, which is removed in the end; so is a repository that was made for nothing."""
    is_new = not order.repository.exists()
    order.repository.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".import-", dir=order.repository))
    try:
        yield staging.resolve()
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new and not any(order.repository.iterdir()):
            order.repository.rmdir()


@contextmanager
def _named_errors(order: Order) -> Iterator[None]:
    """Tell errors as the user sees things: no hidden folder, and what failed."""
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"cannot import '{order.source}' into {order.repository}: {error}") from error
    except BiremeError as error:
        raise InvalidArgument(f"cannot import '{order.source}': {_as_seen(order, error.message)}") from error


def _as_seen(order: Order, message: str) -> str:
    message = _LOAD_FAILED.sub("", message).rstrip("; \n")
    repository = str(order.repository.resolve())
    message = re.sub(rf"{re.escape(repository + os.sep)}\.import-\w+", repository, message)
    if _LACKS_TENSORS.search(message):
        message += "; here: by --input NAME:DTYPE:DIMS and --output NAME:DTYPE:DIMS"
    return message


def _put_in_place(order: Order, staging: Path, *, with_config: bool) -> None:
    made = staging / order.name
    if not order.model_dir.exists():
        made.rename(order.model_dir)
        return
    target, aside = order.model_dir / order.version_name, staging / "replaced"
    if target.exists():
        target.rename(aside)
    try:
        (made / order.version_name).rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    if with_config:
        (made / CONFIG_FILE).replace(order.model_dir / CONFIG_FILE)
