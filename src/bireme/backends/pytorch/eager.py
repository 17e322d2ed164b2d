"""Eager models: a class in a ``model.py``, and its weights in a ``.pt`` of the same name beside it.

Source: Triton ``pytorch_backend`` ``src/model.py`` (the runtime ``model.py``), which runs such a model in a Python process, calls
it with the inputs in the config's order, and always compiles it.
"""

from __future__ import annotations

import inspect
import sys
import threading
import typing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

from bireme.backends.interface import ModelContext
from bireme.backends.pytorch.compilation import Compile
from bireme.backends.pytorch.errors import one_line
from bireme.backends.pytorch.interface import ANY, DICTIONARY, TENSOR, Argument, Interface
from bireme.backends.pytorch.modules import Modules
from bireme.backends.pytorch.program import Forward
from bireme.backends.pytorch.runtime import log, quiet, torch
from bireme.backends.pytorch.settings import MODULE_CLASS
from bireme.backends.signature import Signature, quoted
from bireme.config.faults import near_name
from bireme.types import BiremeError, InvalidArgument

_TYPES: Final[dict[Any, str]] = {int: "int", float: "float", bool: "bool", str: "str", torch.Tensor: TENSOR}
_importing: Final = threading.Lock()


class EagerProgram:
    """A ``torch.nn.Module`` that a ``model.py`` defines. Its code may do anything, so it never runs on the loop thread."""

    signature: Signature | None = None
    max_rows: int | None = None
    may_run_inline = False

    def __init__(
        self, ctx: ModelContext, path: Path, class_name: str, device: Any, compiles: Compile | None
    ) -> None:
        """Import the file, make the module on ``device`` and load its weights; None: where its code puts it.

        Raises:
            InvalidArgument: the code, the class or the weights are wrong.
        """
        self._module_name = f"bireme_pytorch_{ctx.name}_{ctx.version}_{id(self)}"
        self._compiles = compiles
        try:
            module = self._make(ctx, path, class_name, device)
        except BaseException:
            sys.modules.pop(self._module_name, None)
            raise
        self.interface = read_signature(module)
        self._modules = Modules(module, device, lambda module, device: module.to(device))

    def place(self, device: Any, *, sharing: bool | None) -> Forward:
        """Return the module, as called through its hooks; see `Program`."""
        module = self._modules.place(device, sharing=sharing)
        forward: Forward = module if self._compiles is None else self._compiles(module)
        return forward

    def close(self) -> None:
        """Let go of the weights and of the code."""
        self._modules.close()
        sys.modules.pop(self._module_name, None)

    def _make(self, ctx: ModelContext, path: Path, class_name: str, device: Any) -> Any:
        code = _import_file(ctx.name, path, self._module_name)
        module = _make_module(ctx.name, path, code, class_name)
        weights = path.with_suffix(".pt")
        if weights.is_file():
            _load_weights(ctx.name, module, weights, device)
        else:
            log.info(
                "model '%s': there is no '%s', so its weights are what '%s' makes", ctx.name, weights, path
            )
        module.eval().requires_grad_(requires_grad=False)
        return module if device is None else module.to(device)


def _import_file(model: str, path: Path, module_name: str) -> Any:
    """Run the file as a module. It may import what lies beside it."""
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"model '{model}': '{path}' is no Python file")
    code = module_from_spec(spec)
    folder = str(path.parent)
    with _importing:
        sys.modules[module_name] = code  # where torch.compile and pickle look for it
        sys.path.insert(0, folder)
        try:
            spec.loader.exec_module(code)
        except Exception as error:
            raise InvalidArgument(
                f"unable to load model '{model}': importing '{path}' failed: {type(error).__name__}: {one_line(error)}"
            ) from error
        finally:
            sys.path.remove(folder)
    return code


def _make_module(model: str, path: Path, code: Any, class_name: str) -> Any:
    """Make an object of the named class; of the only one that the file defines; else of the first by name that can be."""
    classes = {
        name: value
        for name, value in sorted(vars(code).items())
        if isinstance(value, type) and issubclass(value, torch.nn.Module)
    }
    own = {name: value for name, value in classes.items() if value.__module__ == code.__name__} or classes
    if class_name:
        if class_name not in classes:
            near = near_name(class_name, classes)
            hint = f"; did you mean '{near}'?" if near else ""
            raise InvalidArgument(
                f"model '{model}': parameter {MODULE_CLASS}: '{path}' has no class '{class_name}' of torch.nn.Module, it has "
                f"{quoted(classes)}{hint}"
            )
        own = {class_name: classes[class_name]}
    if not own:
        raise InvalidArgument(f"model '{model}': '{path}' defines no subclass of torch.nn.Module")
    makeable = [value for value in own.values() if _needs_nothing(value)] or list(own.values())
    chosen = makeable[0]
    if len(own) > 1:
        log.info(
            "model '%s': '%s' defines %s; '%s' is served (parameter %s chooses another)",
            model,
            path,
            quoted(own),
            chosen.__name__,
            MODULE_CLASS,
        )
    try:
        return chosen()
    except BiremeError:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"unable to load model '{model}': {chosen.__name__}() of '{path}' failed: {type(error).__name__}: "
            f"{one_line(error)}"
        ) from error


def _needs_nothing(kind: type) -> bool:
    """Whether objects of the class can be made without arguments."""
    parameters = inspect.signature(kind).parameters.values()
    return all(
        parameter.default is not parameter.empty
        or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in parameters
    )


def _load_weights(model: str, module: Any, path: Path, device: Any) -> None:
    from bireme.backends.model_file import explain_failure

    try:
        with quiet():
            state = torch.load(str(path), map_location=device, weights_only=True)
        module.load_state_dict(state)
    except Exception as error:
        is_code = isinstance(error, UnpicklingError)  # whose text asks to run it
        reason = "it holds more than tensors, such as pickled classes" if is_code else one_line(error)
        reason = explain_failure(path, reason)
        raise InvalidArgument(
            f"unable to load model '{model}': the weights '{path}' don't fit {type(module).__name__}: {reason}; expected a "
            f"state dict, as torch.save(module.state_dict(), path) writes it"
        ) from error


def read_signature(module: Any) -> Interface:
    """Take over the signature of ``forward()``, with its annotations where it has any."""
    parameters = inspect.signature(module.forward).parameters.values()
    try:
        hints = typing.get_type_hints(module.forward)
    except Exception:  # noqa: BLE001 - annotations may be anything; they only help
        hints = {}
    arguments = tuple(
        _argument(parameter, hints.get(parameter.name))
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )
    required = [argument for argument in arguments if argument.is_required]
    return Interface(
        arguments,
        takes_dictionary=len(required) == 1 and arguments[0].type == DICTIONARY,
        takes_any=any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters),
    )


def _argument(parameter: inspect.Parameter, hint: Any) -> Argument:
    required = parameter.default is parameter.empty
    kind = DICTIONARY if hint is dict or typing.get_origin(hint) is dict else _TYPES.get(hint, ANY)
    return Argument(
        names=(parameter.name,),
        type=kind,
        is_required=required,
        default=None if required else parameter.default,
        keyword=parameter.name if parameter.kind is parameter.KEYWORD_ONLY else "",
    )
