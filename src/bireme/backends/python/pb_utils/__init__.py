"""What models import as ``triton_python_backend_utils``: Triton's API for models written in Python.

The classes wrap those of `bireme.types`; what needs the server goes through `bireme.backends.python.runtime`. Nothing
here knows whether the model runs in a process or in a thread.

Source: Triton's Python backend, ``triton_python_backend_utils.py`` and the bindings in ``pb_stub.cc``.
"""

from bireme.backends.python.pb_utils.datatypes import (
    TRITON_STRING_TO_NUMPY,
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    MemoryType,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from bireme.backends.python.pb_utils.errors import ErrorCode, TritonError, TritonModelException
from bireme.backends.python.pb_utils.installation import install
from bireme.backends.python.pb_utils.logger import Logger
from bireme.backends.python.pb_utils.lookup import (
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_output_config_by_name,
    get_output_tensor_by_name,
    using_decoupled_model_transaction_policy,
)
from bireme.backends.python.pb_utils.metrics import Metric, MetricFamily, MetricKind
from bireme.backends.python.pb_utils.model_config import ModelConfig
from bireme.backends.python.pb_utils.model_control import (
    get_model_dir,
    is_model_ready,
    load_model,
    unload_model,
)
from bireme.backends.python.pb_utils.request import InferenceRequest, Served
from bireme.backends.python.pb_utils.request_arguments import InferenceTrace, PreferredMemory
from bireme.backends.python.pb_utils.response import InferenceResponse
from bireme.backends.python.pb_utils.response_iterator import ResponseIterator
from bireme.backends.python.pb_utils.response_sender import InferenceResponseSender
from bireme.backends.python.pb_utils.tensor import Tensor

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "ErrorCode",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Served",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "install",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
