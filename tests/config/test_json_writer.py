"""Configs out as JSON and as text, in the form that Triton's clients know."""

import json

import pytest

from bireme.config import (
    ModelConfig,
    complete_backend,
    normalise,
    normalise_instance_groups,
    parse_text,
    to_json,
    to_text,
)
from bireme.config.model_config import HistogramOptions, MetricControl, ModelMetrics

# Configs with unusual fields, and what a real Triton 2.51 server answered on /v2/models/{name}/config for them.
FULL = """
name: "full" backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [16, -1] reshape { shape: [4, 4, -1] } optional: true }
output { name: "y" data_type: TYPE_STRING dims: [1] label_filename: "labels.txt" }
optimization {
  cuda { graphs: true graph_spec { batch_size: 2 input { key: "x" value { dim: 5 } } } }
  execution_accelerators {
    cpu_execution_accelerator { name: "openvino" parameters { key: "a" value: "b" } }
  }
  graph { level: 1 }
}
dynamic_batching {
  max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 1
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 18446744073709551615 }
  priority_queue_policy { key: 2 value { max_queue_size: 3 } }
}
instance_group {
  count: 1 kind: KIND_CPU secondary_devices { device_id: 5 }
  rate_limiter { resources { name: "R" global: true count: 0 } priority: 2 }
}
metric_tags { key: "a" value: "b" }
cc_model_filenames { key: "7.5" value: "m" }
parameters { key: "p" value { string_value: "é\\n\\"x" } } parameters { key: "a" value {} }
model_warmup {
  name: "w" batch_size: 0 inputs { key: "x" value { data_type: TYPE_FP32 dims: [4, 16] zero_data: true } }
}
model_transaction_policy { decoupled: false } response_cache {} model_operations { }
version_policy { specific { versions: [1] } }
"""
FULL_JSON = r"""
{"name":"full","platform":"","backend":"python","runtime":"","version_policy":{"specific":{"versions":[1]}},
"max_batch_size":8,"input":[{"name":"x","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[16,-1],
"reshape":{"shape":[4,4,-1]},"is_shape_tensor":false,"allow_ragged_batch":false,"optional":true,
"is_non_linear_format_io":false}],"output":[{"name":"y","data_type":"TYPE_STRING","dims":[1],
"label_filename":"labels.txt","is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],
"batch_output":[],"optimization":{"graph":{"level":1},"priority":"PRIORITY_DEFAULT","cuda":{"graphs":true,
"busy_wait_events":false,"graph_spec":[{"batch_size":2,"input":{"x":{"dim":["5"]}}}],"output_copy_stream":false},
"execution_accelerators":{"gpu_execution_accelerator":[],"cpu_execution_accelerator":[{"name":"openvino",
"parameters":{"a":"b"}}]},"input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},
"gather_kernel_buffer_threshold":0,"eager_batching":false},"dynamic_batching":{"preferred_batch_size":[8],
"max_queue_delay_microseconds":100,"preserve_ordering":false,"priority_levels":2,"default_priority_level":1,
"default_queue_policy":{"timeout_action":"DELAY","default_timeout_microseconds":18446744073709551615,
"allow_timeout_override":false,"max_queue_size":0},"priority_queue_policy":{"2":{"timeout_action":"REJECT",
"default_timeout_microseconds":0,"allow_timeout_override":false,"max_queue_size":3}}},"instance_group":[{
"name":"full_0","kind":"KIND_CPU","count":1,"rate_limiter":{"resources":[{"name":"R","global":true,"count":0}],
"priority":2},"gpus":[],"secondary_devices":[{"kind":"KIND_NVDLA","device_id":"5"}],"profile":[],"passive":false,
"host_policy":""}],"default_model_filename":"model.py","cc_model_filenames":{"7.5":"m"},"metric_tags":{"a":"b"},
"parameters":{"p":{"string_value":"é\n\"x"},"a":{"string_value":""}},"model_warmup":[{"name":"w","batch_size":0,
"inputs":{"x":{"data_type":"TYPE_FP32","dims":[4,16],"zero_data":true}},"count":0}],"model_operations":{
"op_library_filename":[]},"model_transaction_policy":{"decoupled":false},"response_cache":{"enable":false}}
"""
SEQUENCES = """
backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [1] } output { name: "y" data_type: TYPE_FP32 dims: [1] }
sequence_batching {
  direct { minimum_slot_utilization: 0.3 }
  control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
  control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  state {
    input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: [-1, 2]
    initial_state { data_type: TYPE_FP32 dims: [1, 2] zero_data: false name: "z" }
  }
}
"""
SEQUENCES_JSON = """
{"name":"seq","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},
"max_batch_size":4,"input":[{"name":"x","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[1],
"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{
"name":"y","data_type":"TYPE_FP32","dims":[1],"label_filename":"","is_shape_tensor":false,
"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"optimization":{"priority":"PRIORITY_DEFAULT",
"input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,
"eager_batching":false},"sequence_batching":{"direct":{"max_queue_delay_microseconds":0,
"minimum_slot_utilization":0.3},"max_sequence_idle_microseconds":1000000,"control_input":[{"name":"S","control":[{
"kind":"CONTROL_SEQUENCE_START","int32_false_true":[],"fp32_false_true":[0,1],"bool_false_true":[],
"data_type":"TYPE_INVALID"}]},{"name":"C","control":[{"kind":"CONTROL_SEQUENCE_CORRID","int32_false_true":[],
"fp32_false_true":[],"bool_false_true":[],"data_type":"TYPE_UINT64"}]}],"state":[{"input_name":"i",
"output_name":"o","data_type":"TYPE_FP32","dims":[-1,2],"initial_state":[{"data_type":"TYPE_FP32","dims":["1","2"],
"name":"z","zero_data":false}],"use_same_buffer_for_input_output":false,"use_growable_memory":false}],
"iterative_sequence":false},"instance_group":[{"name":"seq","kind":"KIND_CPU","count":1,"gpus":[],
"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.py",
"cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}
"""


@pytest.mark.parametrize(
    ("name", "text", "answer"), [("full", FULL, FULL_JSON), ("seq", SEQUENCES, SEQUENCES_JSON)]
)
def test_config_goes_the_same_way_as_in_triton(name, text, answer):
    config = normalise_instance_groups(normalise(complete_backend(parse_text(text, "x"), name, None)))

    found = to_json(config)

    assert found == json.loads(answer)
    # Clients see the fields in Triton's order, except where a oneof's place within its message differs.
    assert [*found] == [*json.loads(answer)]


def test_json_of_an_empty_config_has_every_scalar_and_no_message():
    assert to_json(ModelConfig()) == {
        "name": "",
        "platform": "",
        "backend": "",
        "runtime": "",
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


def test_numbers_that_json_does_not_have_are_named():
    buckets = (-float("inf"), 0.5, float("inf"), float("nan"))
    config = ModelConfig(
        model_metrics=ModelMetrics((MetricControl(histogram_options=HistogramOptions(buckets)),))
    )

    options = to_json(config)["model_metrics"]["metric_control"][0]["histogram_options"]

    assert options == {"buckets": ["-Infinity", 0.5, "Infinity", "NaN"]}


def test_text_is_what_a_person_would_write():
    config = parse_text(
        'name: "m" max_batch_size: 8 input [ { name: "x\\t\\"" data_type: TYPE_FP32 dims: [ -1, 3 ] optional: true } ]'
        'dynamic_batching { } metric_tags { key: "a" value: "é\\001" } version_policy { all { } }'
        "model_metrics { metric_control { histogram_options { buckets: [ nan, inf, -inf ] } } }",
        "x",
    )

    assert to_text(config) == (
        'name: "m"\n'
        "version_policy {\n"
        "  all { }\n"
        "}\n"
        "max_batch_size: 8\n"
        "input {\n"
        '  name: "x\\t\\""\n'
        "  data_type: TYPE_FP32\n"
        "  dims: [ -1, 3 ]\n"
        "  optional: true\n"
        "}\n"
        "dynamic_batching { }\n"
        "metric_tags {\n"
        '  key: "a"\n'
        '  value: "é\\001"\n'
        "}\n"
        "model_metrics {\n"
        "  metric_control {\n"
        "    histogram_options {\n"
        "      buckets: [ nan, inf, -inf ]\n"
        "    }\n"
        "  }\n"
        "}\n"
    )
