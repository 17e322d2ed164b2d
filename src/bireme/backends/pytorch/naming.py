"""Which argument of ``forward()`` an input of the config is, and which of its results an output is. Pure.

An input is found by the argument's name; else by the position after ``__`` in its name (``INPUT__0``); else, where that does
not find all of them, the inputs are the arguments in the config's order. Outputs likewise.

Stricter than Triton, which takes names that it does not know for positions: where some names are those of arguments and others
are like none, the order counts only if it agrees with the names that are known.

Source: Triton ``pytorch_backend`` ``src/pt/model_instance_state.cc`` (GetNamingConvention, ValidateInputs, ValidateOutputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bireme.backends.pytorch.interface import ANY, DICTIONARY, TEXTS, Argument, Interface
from bireme.backends.signature import quoted
from bireme.config import ModelConfig
from bireme.config.faults import near_name
from bireme.config.reshape import model_dims
from bireme.config.state_tensors import server_inputs, server_outputs, with_state_tensors
from bireme.types import InvalidArgument


@dataclass(frozen=True, slots=True)
class InputBinding:
    """One input of the config and the argument that it is."""

    name: str
    argument: Argument
    position: int


@dataclass(frozen=True, slots=True)
class OutputBinding:
    """One output of the config and where the results have it: at ``position``, or under ``key`` of a dictionary."""

    name: str
    position: int
    key: str | None = None
    by_order: bool = False
    """Whether only the config's order says so; a name that the results have goes first."""


@dataclass(frozen=True, slots=True)
class Bindings:
    """The tensors of a config, bound to ``forward()``."""

    inputs: tuple[InputBinding, ...]
    outputs: tuple[OutputBinding, ...]
    by_order: tuple[str, ...]
    """Inputs that were found by the config's order alone."""


def bind(config: ModelConfig, interface: Interface) -> Bindings:
    """Find every input and output of ``config``, implicit state, sequence controls and batch inputs included.

    Raises:
        InvalidArgument: tells all faults, and what ``forward()`` takes.
    """
    faults: list[str] = []
    inputs, by_order = _bind_inputs(config, interface, faults)
    outputs = _bind_outputs(config, interface, faults)
    if faults:
        raise InvalidArgument(
            f"unable to load model '{config.name}': {'; '.join(faults)}; the model file has {interface.describe()}"
        )
    return Bindings(inputs, outputs, by_order)


def position_in(name: str) -> int | None:
    """Return the position that a name such as ``INPUT__0`` gives; None: it gives none."""
    digits = name.partition("__")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else None


# Inputs


def _bind_inputs(
    config: ModelConfig, interface: Interface, faults: list[str]
) -> tuple[tuple[InputBinding, ...], tuple[str, ...]]:
    names = _input_names(config)
    if interface.takes_dictionary:
        entry = interface.arguments[0]
        return tuple(InputBinding(name, entry, index) for index, name in enumerate(names)), ()
    known = {name: index for index, each in enumerate(interface.arguments) for name in each.names}
    found = {name: _argument_index(name, known, interface) for name in names}
    by_order: tuple[str, ...] = ()
    strange = [name for name, position in found.items() if position is None]
    if strange and not interface.is_strict and _order_agrees(names, found, interface):
        found = {name: index for index, name in enumerate(names)}
        by_order = tuple(strange)
    faults.extend(_unknown_inputs(strange if not by_order else (), interface, known))
    positions = {name: position for name, position in found.items() if position is not None}
    faults.extend(_misplaced(positions, interface))
    if not by_order and not strange:
        faults.extend(_missing(positions, interface))
    bindings = tuple(
        InputBinding(name, *_argument(interface, position))
        for name, position in positions.items()
        if position < len(interface.arguments) or interface.takes_any
    )
    return bindings, by_order


def _input_names(config: ModelConfig) -> list[str]:
    """Return the names of all that the instance is given, those of the config's ``input`` first."""
    names = [tensor.name for tensor in with_state_tensors(config).input]
    controls = config.sequence_batching.control_input if config.sequence_batching is not None else ()
    names.extend(control.name for control in controls)
    names.extend(name for entry in config.batch_input for name in entry.target_name)
    return list(dict.fromkeys(names))


def _position(name: str, known: Mapping[str, int]) -> int | None:
    position = known.get(name)
    return position_in(name) if position is None else position


def _argument_index(name: str, known: Mapping[str, int], interface: Interface) -> int | None:
    """Return the index among the arguments; those of ``*args`` come after all that have names."""
    index = _position(name, known)
    if index is None or name in known or index < interface.num_positional or not interface.takes_any:
        return index
    return index + len(interface.arguments) - interface.num_positional


def _order_agrees(names: Sequence[str], found: Mapping[str, int | None], interface: Interface) -> bool:
    """Whether the inputs can be the arguments in the config's order."""
    num_required = sum(argument.is_required for argument in interface.arguments)
    fits = num_required <= len(names) <= len(interface.arguments) or interface.takes_any
    return fits and all(found[name] in (None, index) for index, name in enumerate(names))


def _argument(interface: Interface, index: int) -> tuple[Argument, int]:
    """Return an argument and the position at which it is given."""
    arguments = interface.arguments
    if index < len(arguments):
        return arguments[index], index
    position = index - len(arguments) + interface.num_positional
    return Argument((f"*args[{position - interface.num_positional}]",), ANY), position


def _unknown_inputs(names: Sequence[str], interface: Interface, known: Mapping[str, int]) -> Iterator[str]:
    for name in names:
        near = near_name(name, known)
        hint = f"; did you mean '{near}'?" if near else ""
        if not near and not interface.is_strict:
            hint = " and gives no position either, as INPUT__0 would"
        yield f"input '{name}' is in the config, but is no argument of forward(){hint}"


def _misplaced(positions: Mapping[str, int], interface: Interface) -> Iterator[str]:
    taken: dict[int, str] = {}
    num_arguments = len(interface.arguments)
    for name, position in positions.items():
        if position >= num_arguments and not interface.takes_any:
            count = f"{num_arguments} argument{'s' * (num_arguments != 1)}"
            yield f"input '{name}' is argument {position}, counted from 0, but forward() takes {count}"
        elif position in taken:
            yield f"inputs '{taken[position]}' and '{name}' are the same argument of forward()"
        taken[position] = name


def _missing(positions: Mapping[str, int], interface: Interface) -> Iterator[str]:
    given = set(positions.values())
    for index, argument in enumerate(interface.arguments):
        if index not in given and argument.is_required:
            yield (
                f"forward() needs argument '{argument.names[0]}' ({argument.type}), which the config does not list; it "
                f"lists {quoted(positions)}"
            )


# Outputs


def _bind_outputs(config: ModelConfig, interface: Interface, faults: list[str]) -> tuple[OutputBinding, ...]:
    names = [tensor.name for tensor in with_state_tensors(config).output]
    known = {name: index for index, each in enumerate(interface.outputs or ()) for name in each}
    found = {name: _position(name, known) for name in names}
    if interface.by_key:
        return tuple(
            OutputBinding(name, -1 if found[name] is None else found[name] or 0, name) for name in names
        )
    strange = [name for name, position in found.items() if position is None]
    if strange and interface.is_strict:
        faults.extend(_unknown_output(name, interface, known) for name in strange)
        return ()
    if strange:
        found = {name: index for index, name in enumerate(names)}
    bindings = tuple(
        OutputBinding(name, position, by_order=bool(strange))
        for name, position in found.items()
        if position is not None
    )
    faults.extend(_outputs_beyond(bindings, interface))
    return bindings


def _unknown_output(name: str, interface: Interface, known: Mapping[str, int]) -> str:
    near = near_name(name, known)
    hint = f"; did you mean '{near}'?" if near else ""
    usual = [each[0] for each in interface.outputs or () if each]
    return f"output '{name}' is in the config, but not in the model file, which has {quoted(usual)}{hint}"


def _outputs_beyond(bindings: Sequence[OutputBinding], interface: Interface) -> Iterator[str]:
    if interface.outputs is None:
        return
    count = len(interface.outputs)
    for binding in bindings:
        if binding.position >= count:
            yield (
                f"output '{binding.name}' in the config refers to output {binding.position}, counted from 0, which doesn't "
                f"exist: forward() returns {count} output{'s' * (count != 1)}"
            )


# Types


def find_type_faults(config: ModelConfig, bindings: Bindings, interface: Interface) -> list[str]:
    """Return where the config's data types contradict what ``forward()`` is declared with.

    Source: Triton ``pytorch_backend`` (strings are lists, of one dimension).
    """
    config = with_state_tensors(config)
    inputs = {tensor.name: tensor for tensor in config.input}
    outputs = {tensor.name: tensor for tensor in config.output}
    faults: list[str] = []
    for binding in bindings.inputs:
        tensor = inputs.get(binding.name)
        if tensor is not None:
            given = TEXTS if tensor.data_type == "TYPE_STRING" else "Tensor"
            faults.extend(_argument_fault(binding, tensor.data_type, given))
            faults.extend(_text_fault(config, "input", tensor.name, tensor.data_type, model_dims(tensor)))
    for output in bindings.outputs:
        listed = outputs[output.name]
        faults.extend(_text_fault(config, "output", listed.name, listed.data_type, model_dims(listed)))
        declared = (
            interface.output_types[output.position : output.position + 1] if output.position >= 0 else ()
        )
        if (
            declared
            and (declared[0] == TEXTS) != (listed.data_type == "TYPE_STRING")
            and declared[0] in (TEXTS, "Tensor")
        ):
            faults.append(
                f"output '{listed.name}': the config's data_type is {listed.data_type}, but forward() returns {declared[0]}"
            )
    return faults


def _argument_fault(binding: InputBinding, data_type: str, given: str) -> Iterator[str]:
    wanted = binding.argument.type
    is_text = wanted in (TEXTS, "str")
    if wanted == DICTIONARY and given == TEXTS:
        yield f"input '{binding.name}': a dictionary of tensors holds no strings"
    elif wanted not in (DICTIONARY, ANY) and is_text != (given == TEXTS):
        yield (
            f"input '{binding.name}': the config's data_type is {data_type}, but argument '{binding.argument.names[0]}' of "
            f"forward() is a {wanted}"
        )


def _text_fault(
    config: ModelConfig, kind: str, name: str, data_type: str, dims: Sequence[int]
) -> Iterator[str]:
    if data_type == "TYPE_STRING" and len(dims) + (config.max_batch_size > 0) > 1:
        advice = "dims: [ 1 ] reshape { shape: [ ] }" if config.max_batch_size > 0 else "dims: [ -1 ]"
        yield (
            f"{kind} '{name}': strings are lists (List[str]) in PyTorch, so they have one dimension, the batch included; "
            f"write {advice}"
        )


# A config to write


def describe_missing(config: ModelConfig, interface: Interface) -> str:
    """Return what a config that lists no inputs or no outputs has to have, for an error."""
    missing = [
        name
        for name, has in (("input", config.input or config.batch_input), ("output", config.output))
        if not has
    ]
    own = server_inputs(config) | server_outputs(config)
    inputs = [argument.names[0] for argument in interface.arguments if argument.names[0] not in own]
    if interface.takes_dictionary:
        inputs = ["<key>"]
    outputs = [
        each[0] if each else f"OUTPUT__{index}" for index, each in enumerate(interface.outputs or ((),))
    ]
    if interface.by_key:
        outputs = ["<key>"]
    entries = {"input": inputs, "output": outputs}
    text = " ".join(
        f'{kind} [ {", ".join(f"""{{ name: "{name}" data_type: TYPE_FP32 dims: [ ... ] }}""" for name in entries[kind])} ]'
        for kind in missing
    )
    return (
        f"model '{config.name}': the config lists no {' and no '.join(missing)}, and the model file does not tell the data "
        f"types and shapes of tensors; it has {interface.describe()}. Write to config.pbtxt, with the types and dims that "
        f"are right: {text}"
    )
