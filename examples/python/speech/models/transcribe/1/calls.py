"""Calls to other models of this server (BLS), arrays in and arrays out."""

import triton_python_backend_utils as pb_utils


class Failed(Exception):
    """A model that was called answered with an error."""


async def call(model, inputs, outputs):
    """Ask a model; return the arrays of the outputs that are named, by name. Nothing is copied on the way."""
    request = pb_utils.InferenceRequest(
        model_name=model,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        requested_output_names=outputs,
    )
    answer = await request.async_exec()
    if answer.has_error():
        raise Failed(answer.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
