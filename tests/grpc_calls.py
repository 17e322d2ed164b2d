"""What the gRPC tests share: tensors as the official client wants them, and messages for raw calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import tritonclient.grpc as client_library
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

A = np.arange(16, dtype=np.float32)
B = np.full(16, 2, dtype=np.float32)

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
SERVER_LIVE = "/inference.GRPCInferenceService/ServerLive"


def inputs(**arrays: np.ndarray) -> list[client_library.InferInput]:
    """Return tensors for any of the official gRPC clients."""
    made = []
    for name, array in arrays.items():
        item = client_library.InferInput(name, list(array.shape), datatype_of(array))
        item.set_data_from_numpy(array)
        made.append(item)
    return made


def outputs(*names: str, **settings: Any) -> list[client_library.InferRequestedOutput]:
    return [client_library.InferRequestedOutput(name, **settings) for name in names]


def datatype_of(array: np.ndarray) -> str:
    return np_to_triton_dtype(array.dtype)


def infer_message(model: str, *, id: str = "", **arrays: np.ndarray) -> service_pb2.ModelInferRequest:  # noqa: A002
    """Return a request for a raw call, its tensors in ``raw_input_contents``."""
    message = service_pb2.ModelInferRequest(model_name=model, id=id)
    for name, array in arrays.items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        is_bytes = array.dtype == np.object_
        message.raw_input_contents.append(
            serialize_byte_tensor(array).item() if is_bytes else np.ascontiguousarray(array).tobytes()
        )
    return message


def array_of(response: service_pb2.ModelInferResponse, index: int = 0) -> np.ndarray:
    """Return an output of a raw answer."""
    output, data = response.outputs[index], response.raw_output_contents[index]
    if output.datatype == "BYTES":
        return deserialize_bytes_tensor(data).reshape(output.shape)
    return np.frombuffer(data, triton_to_np_dtype(output.datatype)).reshape(output.shape)
