"""What models import, by the names that they know."""

import importlib
import sys

import pytest

from bireme.backends.python import pb_utils

# Every name of Triton's two modules that models may use.
NAMES = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "InferenceResponseSender",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "MemoryType",
    "MetricKind",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITON_STRING_TO_NUMPY",
    "deserialize_bytes_tensor",
    "serialize_byte_tensor",
    "get_input_config_by_name",
    "get_output_config_by_name",
    "get_input_tensor_by_name",
    "get_output_tensor_by_name",
    "get_model_dir",
    "is_model_ready",
    "load_model",
    "unload_model",
    "numpy_to_triton_type",
    "triton_to_numpy_type",
    "triton_string_to_numpy",
    "using_decoupled_model_transaction_policy",
]


@pytest.mark.parametrize("module", ["triton_python_backend_utils", "c_python_backend_utils"])
def test_models_find_it(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    pb_utils.install()

    assert importlib.import_module(module) is pb_utils
    assert [name for name in NAMES if not hasattr(pb_utils, name)] == []
    assert set(NAMES) <= set(pb_utils.__all__)
