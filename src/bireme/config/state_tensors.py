"""The tensors of a model that only the server itself sees: what it makes for the model, and what it carries for it."""

from __future__ import annotations

from dataclasses import replace

from bireme.config.model_config import ModelConfig, ModelInput, ModelOutput


def with_state_tensors(config: ModelConfig) -> ModelConfig:
    """Return ``config`` with the tensors of implicit state among the inputs and outputs: what the model file must have.

    Instances take and return them like any other; clients do not see those that ``config`` itself does not list.
    """
    states = config.sequence_batching.state if config.sequence_batching is not None else ()
    if not states:
        return config
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    return replace(
        config,
        input=config.input
        + tuple(
            ModelInput(name=state.input_name, data_type=state.data_type, dims=state.dims)
            for state in states
            if state.input_name not in inputs
        ),
        output=config.output
        + tuple(
            ModelOutput(name=state.output_name, data_type=state.data_type, dims=state.dims)
            for state in states
            if state.output_name not in outputs
        ),
    )


def server_inputs(config: ModelConfig) -> frozenset[str]:
    """Return the names of the inputs that the server makes: sequence controls and implicit state."""
    batching = config.sequence_batching
    if batching is None:
        return frozenset()
    return frozenset(
        [
            *(control.name for control in batching.control_input),
            *(state.input_name for state in batching.state),
        ]
    )


def server_outputs(config: ModelConfig) -> frozenset[str]:
    """Return the names of the outputs that the server keeps: implicit state."""
    batching = config.sequence_batching
    return frozenset() if batching is None else frozenset(state.output_name for state in batching.state)
