"""Ground floor: tensors, data types, requests, responses and errors. Imports nothing of ours."""

from bireme.types import datatypes
from bireme.types.errors import (
    AlreadyExists,
    BackendFailed,
    BiremeError,
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    QueueFull,
    RequestTimedOut,
    Unavailable,
    Unsupported,
)
from bireme.types.request import Execution, InferenceRequest, InferenceResponse, Parameter, Respond, Way
from bireme.types.sequence import SequenceSlot
from bireme.types.tensor import Array, Buffer, Tensor, decode_bytes, encode_bytes
from bireme.types.trace import Sample, Span

__all__ = [
    "AlreadyExists",
    "Array",
    "BackendFailed",
    "BiremeError",
    "Buffer",
    "Cancelled",
    "DeadlineExceeded",
    "Execution",
    "InferenceRequest",
    "InferenceResponse",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "Parameter",
    "QueueFull",
    "RequestTimedOut",
    "Respond",
    "Sample",
    "SequenceSlot",
    "Span",
    "Tensor",
    "Unavailable",
    "Unsupported",
    "Way",
    "datatypes",
    "decode_bytes",
    "encode_bytes",
]
