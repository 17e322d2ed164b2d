"""Every rule on a config: what violates it, and what is said then."""

from dataclasses import replace

import pytest

from bireme.config import (
    NO_GPUS,
    ModelConfig,
    UsableGpus,
    complete_backend,
    find_faults,
    normalise,
    parse_text,
    validate,
)
from bireme.config.model_config import (
    ModelDynamicBatching,
    ModelSequenceBatching,
    StrategyDirect,
    StrategyOldest,
)
from bireme.types import InvalidArgument

IO = """
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def faults_of(
    text: str, *, name: str = "m", require_io: bool = True, gpus: UsableGpus = NO_GPUS
) -> list[str]:
    config = normalise(complete_backend(parse_text(text, "config.pbtxt"), name, None))
    return find_faults(config, name=name, require_io=require_io, gpus=gpus)


VALID = [
    'backend: "python"' + IO,
    'backend: "python" max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 1, 8 ] }' + IO,
    'backend: "pytorch" platform: "libtorch"' + IO,
    'backend: "pytorch" platform: "torch_aoti"' + IO,
    'backend: "dali" platform: "anything"' + IO,
    'backend: "python" max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 2'
    " priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 5 } } }"
    + IO,
    'backend: "python" max_batch_size: 8 dynamic_batching { preserve_ordering: true priority_levels: 1'
    " default_priority_level: 1 default_queue_policy { timeout_action: DELAY } }" + IO,
    'backend: "python" response_cache { enable: true }' + IO,
    'backend: "python" parameters { key: "deadline_us" value { string_value: "1500" } }' + IO,
    'backend: "python" sequence_batching { direct { minimum_slot_utilization: 0 }'
    ' control_input { name: "S" control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } }'
    ' control_input { name: "E" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }'
    ' control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }'
    ' control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
    ' state { input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: [ -1, 2 ] initial_state {'
    ' name: "z" data_type: TYPE_FP32 dims: [ 5, 2 ] data_file: "f" } } }' + IO,
    'backend: "python" max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 2 } }' + IO,
    'backend: "python" instance_group [ { kind: KIND_CPU }, { kind: KIND_MODEL }, { gpus: [ 0 ] } ]' + IO,
    (
        'backend: "tensorrt" instance_group { profile: [ "0", "12" ] }'
        ' input { name: "x" data_type: TYPE_FP32 dims: [ 1, 2, 3 ] is_shape_tensor: true is_non_linear_format_io: true }'
    ),
    'backend: "python" max_batch_size: 1 input { name: "x" data_type: TYPE_FP32 dims: 1 reshape { } }',
    'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] } }',
    'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [ 3, 2, 2 ] format: FORMAT_NCHW }',
    'backend: "python" batch_input { kind: BATCH_ITEM_SHAPE target_name: "s" data_type: TYPE_INT32 source_input: "x" }'
    ' batch_output { target_name: "y" source_input: "x" }' + IO,
    'backend: "python" model_warmup { name: "w" batch_size: 1 inputs {'
    ' key: "x" value { data_type: TYPE_FP32 dims: [ 0, 4 ] random_data: true } } }' + IO,
    'backend: "python" model_warmup { name: "skipped" inputs { key: "x" value { } } }' + IO,
    'backend: "python" model_metrics { metric_control { metric_identifier { family: "f" }'
    " histogram_options { buckets: [ 1, 2 ] } } }" + IO,
    'backend: "python" version_policy { }' + IO,
]


@pytest.mark.parametrize("text", VALID)
def test_valid_config_has_no_faults(text):
    assert faults_of(text) == []


GENERAL = [
    (
        'name: "other" backend: "python"',
        "unexpected directory name 'm' for model 'other', directory name must equal model name",
    ),
    (
        'name: "m " backend: "python"',
        "unexpected directory name 'm' for model 'm ', directory name must equal model name: they differ only in blanks",
    ),
    (
        'name: "M" backend: "python"',
        (
            "unexpected directory name 'm' for model 'M', directory name must equal model name: they differ only in upper "
            "and lower case"
        ),
    ),
    (
        'platform: "odd"',
        "unexpected platform type 'odd' for m: no 'backend' is set and the platform implies none",
    ),
    (
        'platform: "onnxruntime"',
        (
            "unexpected platform type 'onnxruntime' for m: no 'backend' is set and the platform implies none; did you mean "
            "'onnxruntime_onnx'?"
        ),
    ),
    (
        'backend: "onnxruntime" platform: "tensorrt_plan"',
        (
            "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime for m: backend 'onnxruntime' goes "
            "with platform onnxruntime_onnx"
        ),
    ),
    (
        'backend: "tensorflow"',
        (
            "unexpected 'platform' and 'backend' pair, got:, tensorflow for m: backend 'tensorflow' goes with platform "
            "tensorflow_graphdef or tensorflow_savedmodel"
        ),
    ),
    (
        'backend: "python" max_batch_size: -1',
        "'max_batch_size' must be non-negative value for m: found -1",
    ),
    (
        'backend: "python" version_policy { latest { } }',
        "version_policy.latest.num_versions is 0 for m, expected at least 1: no version would load",
    ),
    (
        'backend: "python" response_cache { enable: true } model_transaction_policy { decoupled: true }',
        (
            "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the "
            "response cache (response_cache.enable)."
        ),
    ),
    (
        'backend: "python" parameters { key: "deadline_us" value { string_value: "3 ms" } }',
        "parameter 'deadline_us' of m: expected microseconds from 0 to 1000000000000000, got '3 ms'",
    ),
    (
        'backend: "python" response_cache { enable: true } sequence_batching { }',
        (
            "Response Cache does not currently support model m with sequence batching scheduler. Please disable the "
            "response cache (response_cache.enable)."
        ),
    ),
    (
        'backend: "python" model_metrics { metric_control { histogram_options { buckets: 1 } } }',
        "metric control must specify 'metric_identifier' for m: model_metrics.metric_control[0]",
    ),
    (
        'backend: "python" model_metrics { metric_control { metric_identifier { } histogram_options { buckets: 1 } } }',
        "metric identifier must specify non-empty 'family' for m: model_metrics.metric_control[0].metric_identifier",
    ),
    (
        'backend: "python" model_metrics { metric_control { metric_identifier { family: "f" } } }',
        "metric control must specify 'histogram_options' for m: model_metrics.metric_control[0]",
    ),
    (
        'backend: "python" model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }',
        "histogram options must specify non-empty 'buckets' for m: model_metrics.metric_control[0].histogram_options",
    ),
    (
        (
            'backend: "python" model_metrics { metric_control { metric_identifier { family: "f" }'
            " histogram_options { buckets: [ 2, 1 ] } } }"
        ),
        (
            "histogram options must specify increasing 'buckets' for m: "
            "model_metrics.metric_control[0].histogram_options.buckets is [2.0, 1.0]"
        ),
    ),
]

BATCHING = [
    (
        'backend: "python" max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 0 ] }',
        "dynamic batching preferred size must be positive for m: dynamic_batching.preferred_batch_size[1] is 0",
    ),
    (
        'backend: "python" max_batch_size: 8 dynamic_batching { preferred_batch_size: 16 }',
        (
            "dynamic batching preferred size must be <= max batch size for m: dynamic_batching.preferred_batch_size[0] is "
            "16, 'max_batch_size' is 8"
        ),
    ),
    (
        'backend: "python" dynamic_batching { priority_levels: 2 }',
        "default priority level must be in range [1, 2] for m: dynamic_batching.default_priority_level is 0",
    ),
    (
        'backend: "python" dynamic_batching { priority_levels: 2 default_priority_level: 3 }',
        "default priority level must be in range [1, 2] for m: dynamic_batching.default_priority_level is 3",
    ),
    (
        (
            'backend: "python" dynamic_batching { priority_levels: 2 default_priority_level: 1'
            " priority_queue_policy { key: 3 value { } } }"
        ),
        (
            "priority queue policy must have priority level in range [1, 2] for m: dynamic_batching.priority_queue_policy "
            "has an entry for 3"
        ),
    ),
    (
        'backend: "python" dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }',
        (
            "Only one priority level is allowed when 'preserve_ordering' is true for m: dynamic_batching.priority_levels "
            "is 2"
        ),
    ),
    (
        (
            'backend: "python" dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY'
            " default_timeout_microseconds: 1 } }"
        ),
        (
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m: "
            "dynamic_batching.default_queue_policy.timeout_action"
        ),
    ),
    (
        (
            'backend: "python" dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1'
            " priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }"
        ),
        (
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m: "
            "dynamic_batching.priority_queue_policy[1].timeout_action"
        ),
    ),
    (
        'backend: "python" sequence_batching { } parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { } }',
        "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher for m: remove it from 'parameters'",
    ),
]


def control(name: str, *controls: str) -> str:
    return f'control_input {{ name: "{name}" {" ".join(f"control {{ {one} }}" for one in controls)} }}'


START = "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"
CONTROLS = [
    (
        control("", START),
        "sequence batching control tensor must have a name for m: sequence_batching.control_input[0].name is empty",
    ),
    (
        control("S", START) + control("S", "kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ]"),
        (
            "sequence batching control tensor 'S' is specified for multiple control kinds for m: "
            "sequence_batching.control_input[1].name"
        ),
    ),
    (
        control("S", START, START),
        (
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m: "
            "sequence_batching.control_input[0].control[1]"
        ),
    ),
    (
        control("E", "kind: CONTROL_SEQUENCE_END"),
        (
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "CONTROL_SEQUENCE_END for m: sequence_batching.control_input[0].control[0]"
        ),
    ),
    (
        control("S", f"{START} bool_false_true: [ false, true ]"),
        (
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
            "for CONTROL_SEQUENCE_START for m: sequence_batching.control_input[0].control[0] has int32_false_true and "
            "bool_false_true"
        ),
    ),
    (
        control("R", "kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1, 2 ]"),
        (
            "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for m: "
            "sequence_batching.control_input[0].control[0] has 3"
        ),
    ),
    (
        control("C", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 int32_false_true: [ 0, 1 ]"),
        (
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "CONTROL_SEQUENCE_CORRID for m: sequence_batching.control_input[0].control[0] has int32_false_true"
        ),
    ),
    (
        control("C", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
        (
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m: "
            "sequence_batching.control_input[0].control[0].data_type is TYPE_FP32. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32, TYPE_STRING"
        ),
    ),
    (
        "oldest { preferred_batch_size: [ 0, 9 ] }",
        (
            "sequence batching preferred batch size must be positive for m: "
            "sequence_batching.oldest.preferred_batch_size[0] is 0"
        ),
        (
            "sequence batching preferred batch size must be <= max batch size for m: "
            "sequence_batching.oldest.preferred_batch_size[1] is 9, 'max_batch_size' is 8"
        ),
    ),
    *(
        (
            f"direct {{ minimum_slot_utilization: {value} }}",
            (
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m: "
                f"sequence_batching.direct.minimum_slot_utilization is {value}"
            ),
        )
        for value in ("-0.1", "1.1", "nan")
    ),
]
STATE = 'state {{ input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: [ -1, 2 ] {} }}'
INITIAL = 'initial_state { name: "z" data_type: TYPE_FP32 dims: [ 1, 2 ] zero_data: true }'
STATES = [
    (
        STATE.format("") * 2,
        "State input name 'i' specified more than once for m: sequence_batching.state",
        "State output name 'o' specified more than once for m: sequence_batching.state",
    ),
    (
        STATE.format("") + 'control_input { name: "i" control { int32_false_true: [ 0, 1 ] } }',
        (
            "State input name 'i' is that of a sequence batching control tensor too for m: "
            "sequence_batching.state[0].input_name"
        ),
    ),
    (
        "state { dims: [ 0 ] }",
        "sequence batching state must specify 'input_name' for m: sequence_batching.state[0].input_name is empty",
        "sequence batching state must specify 'output_name' for m: sequence_batching.state[0].output_name is empty",
        "sequence batching state '' must specify 'data_type' for m: sequence_batching.state[0].data_type",
        (
            "sequence batching state '' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for "
            "m: sequence_batching.state[0].dims [0] holds 0"
        ),
    ),
    (
        STATE.format("use_growable_memory: true"),
        (
            "In order to 'use_growable_memory', you must also enable 'use_same_buffer_for_input_output' for state input "
            "name 'i' for m: sequence_batching.state[0]"
        ),
    ),
    (
        STATE.format(INITIAL * 2),
        (
            "initial_state field for state input 'i' must contain exactly one or zero element. Found '2' elements for m: "
            "sequence_batching.state[0].initial_state"
        ),
    ),
    (
        STATE.format(INITIAL.replace("FP32", "INT8")),
        (
            "The data type used for 'initial_state' field of state 'i' does not match the state data type for m: "
            "sequence_batching.state[0].initial_state[0].data_type is TYPE_INT8, expected TYPE_FP32"
        ),
    ),
    (
        STATE.format(INITIAL.replace('name: "z"', "")),
        (
            "Field 'name' must be set when using initial_state for state input 'i' for m: "
            "sequence_batching.state[0].initial_state[0]"
        ),
    ),
    (
        STATE.format(INITIAL.replace("zero_data: true", "")),
        (
            "initial_state setting expects state 'i' to have state_data set for m: "
            "sequence_batching.state[0].initial_state[0]: add zero_data or data_file"
        ),
    ),
    (
        STATE.format(INITIAL.replace("1, 2", "2")),
        (
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'i'. "
            "1 != 2 for m: sequence_batching.state[0].initial_state[0].dims"
        ),
    ),
    (
        STATE.format(INITIAL.replace("1, 2", "-1, 2")),
        (
            "'initial_state' field for state input name 'i' contains variable dimensions for m: "
            "sequence_batching.state[0].initial_state[0].dims is [-1, 2]"
        ),
    ),
    (
        STATE.format(INITIAL.replace("1, 2", "1, 3")),
        (
            "'initial_state' dim for input name 'i' doesn't match 'state' dim description. 3 != 2 for m: "
            "sequence_batching.state[0].initial_state[0].dims is [1, 3], the state's are [-1, 2]"
        ),
    ),
]
SEQUENCES = [
    (f'backend: "python" max_batch_size: 8 sequence_batching {{ {text} }}', *messages)
    for text, *messages in CONTROLS + STATES
]

INSTANCE_GROUPS = [
    (
        'backend: "python" instance_group { kind: KIND_GPU }',
        (
            "instance group m_0 of model m has kind KIND_GPU but no GPUs are available: use KIND_CPU, or KIND_AUTO to run "
            "on either"
        ),
    ),
    (
        'backend: "python" instance_group { name: "g" kind: KIND_MODEL gpus: 0 }',
        "instance group g of model m has kind KIND_MODEL but specifies one or more GPUs: gpus is [0]",
    ),
    (
        'backend: "onnxruntime" instance_group { profile: "1" }',
        (
            "instance group m_0 of model m and platform onnxruntime_onnx specifies profile field which is only supported "
            "for TensorRT models: profile is ['1']"
        ),
    ),
    (
        'backend: "tensorrt" instance_group { profile: [ "1", "-1", "" ] }',
        (
            "instance group m_0 of model m and platform tensorrt_plan specifies invalid profile '-1'. The field should "
            "contain the string representation of a non-negative integer."
        ),
        (
            "instance group m_0 of model m and platform tensorrt_plan specifies invalid profile ''. The field should "
            "contain the string representation of a non-negative integer."
        ),
    ),
]

WARMUP = [
    (
        f'backend: "python" model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "x" value {{ {text} }} }} }}',
        message,
    )
    for text, message in [
        (
            "dims: 1 zero_data: true",
            "warmup setting must specify 'data_type' for input 'x' of sample 'w' for m",
        ),
        (
            "data_type: TYPE_FP32 dims: [ -1, 4 ] zero_data: true",
            (
                "warmup setting expects all variable-size dimensions are specified for input 'x' of sample 'w' for m: dims "
                "is [-1, 4]"
            ),
        ),
        (
            "data_type: TYPE_FP32 dims: 4",
            (
                "warmup setting expects input 'x' to have input_data_type set for sample 'w' for m: add zero_data, "
                "random_data or input_data_file"
            ),
        ),
    ]
]


@pytest.mark.parametrize(
    ("text", "messages"), [(text, list(rest)) for text, *rest in GENERAL + BATCHING + SEQUENCES]
)
def test_rules_on_the_model_and_its_scheduling(text, messages):
    assert faults_of(text + IO) == messages


@pytest.mark.parametrize(
    ("text", "messages"), [(text, list(rest)) for text, *rest in INSTANCE_GROUPS + WARMUP]
)
def test_rules_on_instances_and_warmup(text, messages):
    assert faults_of(text + IO) == messages


def test_gpus_of_this_machine_are_known():
    text = 'backend: "python" instance_group [ { kind: KIND_GPU }, { kind: KIND_GPU gpus: [ 0, 7 ] } ]'

    assert faults_of(text, gpus=UsableGpus(2)) == [
        "instance group m_1 of model m specifies invalid or unsupported gpu id 7. GPUs are: 0, 1"
    ]


TENSORS = [
    # max_batch_size, fields of the input beside its name, messages after "model input 'x' "
    (0, "dims: 1", ["must specify 'data_type' for m"]),
    (0, "data_type: TYPE_FP32", ["must specify 'dims' for m"]),
    (
        0,
        "data_type: TYPE_FP32 dims: [ 3, 0, -2 ]",
        [
            "dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m: dims [3, 0, -2] holds 0"
        ],
    ),
    (
        0,
        "data_type: TYPE_FP32 dims: 1 reshape { }",
        [
            (
                "cannot have empty reshape for non-batching model as scalar tensors are not supported for m: reshape.shape "
                "is [] and 'max_batch_size' is 0"
            )
        ],
    ),
    (
        1,
        "data_type: TYPE_FP32 dims: 2 reshape { }",
        ["has different size for dims and reshape for m: dims [2], reshape.shape []: 2 and 1 elements"],
    ),
    (
        1,
        "data_type: TYPE_FP32 dims: 4 reshape { shape: [ 0, 4 ] }",
        [
            (
                "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m: reshape.shape "
                "[0, 4] holds 0"
            )
        ],
    ),
    (
        1,
        "data_type: TYPE_FP32 dims: [ 2, 3 ] reshape { shape: 5 }",
        ["has different size for dims and reshape for m: dims [2, 3], reshape.shape [5]: 6 and 5 elements"],
    ),
    (
        1,
        "data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: 2 }",
        [
            (
                "has different size for dims and reshape for m: dims [-1, 2], reshape.shape [2]: 1/2 and 2 elements before, "
                "between and after the variable ones"
            )
        ],
    ),
    (
        1,
        "data_type: TYPE_FP32 dims: 2 reshape { shape: [ -1, 2 ] }",
        [
            (
                "has different size for dims and reshape for m: dims [2], reshape.shape [-1, 2]: 2 and 1/2 elements before, "
                "between and after the variable ones"
            )
        ],
    ),
    (
        1,
        "data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: -1 }",
        [
            (
                "has different number of variable-size dimensions for dims and reshape for m: dims [-1, -1], reshape.shape "
                "[-1]"
            )
        ],
    ),
    (
        1,
        "data_type: TYPE_FP32 dims: [ 2, -1, 3 ] reshape { shape: [ -1, 6 ] }",
        [
            (
                "has different size for dims and reshape for m: dims [2, -1, 3], reshape.shape [-1, 6]: 2/3 and 1/6 elements "
                "before, between and after the variable ones"
            )
        ],
    ),
]


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize(("max_batch_size", "fields", "messages"), TENSORS)
def test_rules_on_tensors(kind, max_batch_size, fields, messages):
    text = f'backend: "python" max_batch_size: {max_batch_size} {kind} {{ name: "x" {fields} }}'

    assert faults_of(text) == [f"model {kind} 'x' {message}" for message in messages]


TENSOR_FEATURES = [
    ('backend: "python" input { data_type: TYPE_FP32 dims: 1 }', "model input[0] must specify 'name' for m"),
    (
        'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [ 1, 2 ] format: FORMAT_NHWC }',
        "model input NHWC/NCHW require 3 dims for m: 'x' has FORMAT_NHWC and dims [1, 2]",
    ),
    (
        'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }',
        "shape tensors are only supported for TensorRT platform for m: model input 'x', platform ''",
    ),
    (
        'backend: "python" output { name: "x" data_type: TYPE_FP32 dims: 1 is_non_linear_format_io: true }',
        "Non-linear IO format is only supported for the TensorRT platform for m: model output 'x', platform ''",
    ),
    (
        'backend: "tensorrt" output { name: "x" data_type: TYPE_FP32 dims: 1 is_non_linear_format_io: true }',
        "Non-linear IO format output requires 3 dims for m: model output 'x', platform 'tensorrt_plan', dims [1]",
    ),
    (
        'backend: "python"' + IO + 'input { name: "x" data_type: TYPE_FP32 dims: 1 }',
        "model input 'x' is listed 2 times for m, expected once",
    ),
    (
        'backend: "python" batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_INT32 }' + IO,
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m: batch_input[0].source_input",
    ),
    (
        'backend: "python" batch_input { data_type: TYPE_INT64 source_input: "x" }' + IO,
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m: batch_input[0].data_type is TYPE_INT64",
    ),
    (
        'backend: "python" batch_input { data_type: TYPE_FP32 source_input: "X" }' + IO,
        "unknown source input name 'X' for m: batch_input[0].source_input; did you mean 'x'?",
    ),
    (
        'backend: "python" batch_output { source_input: [ "x", "q" ] }' + IO,
        (
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2 for m: "
            "batch_output[0].source_input"
        ),
        "unknown source input name 'q' for m: batch_output[0].source_input; the model has x",
    ),
    (
        'backend: "python" batch_output { source_input: "x" target_name: [ "y", "y", "z" ] }' + IO,
        "target output name 'y' can only be specified once for m: batch_output[0].target_name",
        "unknown target output name 'z' for m: batch_output[0].target_name; the model has y",
    ),
]


@pytest.mark.parametrize(("text", "messages"), [(text, list(rest)) for text, *rest in TENSOR_FEATURES])
def test_rules_on_features_of_tensors(text, messages):
    assert faults_of(text) == messages


def test_what_a_backend_may_still_complete_is_no_fault():
    text = 'backend: "python" output { name: "y" } batch_input { data_type: TYPE_FP32 source_input: "later" }'

    assert faults_of(text, require_io=False) == []
    assert faults_of(text, require_io=True) == [
        "model output 'y' must specify 'data_type' for m",
        "model output 'y' must specify 'dims' for m",
        "unknown source input name 'later' for m: batch_input[0].source_input; the model has none",
    ]


def test_what_is_there_and_wrong_is_a_fault_even_if_a_backend_could_complete_the_rest():
    assert faults_of('backend: "python" input { dims: 0 }', require_io=False) == [
        (
            "model input[0] dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m: dims [0] "
            "holds 0"
        )
    ]


ENSEMBLE_IO = """
platform: "ensemble"
input { name: "in" data_type: TYPE_FP32 dims: 1 }
output { name: "out" data_type: TYPE_FP32 dims: 1 }
"""


def step(model: str, inputs: str, outputs: str) -> str:
    maps = [f'input_map {{ key: "{name}" value: "{name}" }}' for name in inputs.split()]
    maps += [f'output_map {{ key: "{name}" value: "{name}" }}' for name in outputs.split()]
    return f'step {{ model_name: "{model}" {" ".join(maps)} }}'


CHAIN = step("a", "in", "mid") + step("b", "mid", "out")
ENSEMBLES = [
    (CHAIN, "", []),
    (step("b", "mid", "out") + step("a", "in", "mid"), "", []),
    (CHAIN, "instance_group { }", ["instance group should not be specified for ensemble 'm'"]),
    (CHAIN, "optimization { }", ["optimization should not be specified for ensemble 'm'"]),
    (CHAIN, 'model_warmup { name: "w" }', ["model_warmup can not be specified for ensemble 'm'"]),
    ("", "", ["must specify 'step' for ensemble 'm'"]),
    (
        "step { }" + step("a", "in", "out"),
        "",
        [
            f"must specify '{field}' in step 0 of ensemble 'm'"
            for field in ("model_name", "input_map", "output_map")
        ],
    ),
    (
        step("a", "in", "out") + step("b", "in", "out"),
        "",
        [
            (
                "ensemble tensor 'out' can appear in an output map only once for ensemble 'm' step 1: step 0 writes it "
                "already"
            )
        ],
    ),
    (
        step("a", "other", "out"),
        'input { name: "other" data_type: TYPE_FP32 dims: 1 }',
        ["ensemble input 'in' for ensemble 'm' is not used"],
    ),
    (
        step("a", "in", "out in"),
        "",
        ["ensemble input 'in' for ensemble 'm' is written by a step as well"],
    ),
    (
        step("a", "in", "mid"),
        "",
        [
            "ensemble output 'out' for ensemble 'm' is not used: no step writes it",
            "ensemble tensor 'mid' is unused in ensemble 'm': no step reads it and it is no output",
        ],
    ),
    (
        step("a", "in", "mid") + step("b", "mid far", "out"),
        "",
        [
            (
                "output 'out' for ensemble 'm' is not written: at least one of its depending tensors, 'far', is not "
                "connected"
            ),
            "ensemble tensor 'far' is unused in ensemble 'm': nothing ever writes it",
        ],
    ),
    (
        step("a", "in", "mid") + step("b", "mid", "out"),
        'parameters { key: "when:out" value { string_value: "midd > 1" } }',
        [
            (
                "output 'out' for ensemble 'm' is not written: at least one of its depending tensors, 'midd', is not "
                "connected"
            ),
            "ensemble tensor 'midd' is unused in ensemble 'm': nothing ever writes it; did you mean 'mid'?",
        ],
    ),
    (
        step("a", "in loop", "back") + step("b", "back", "loop out"),
        "",
        [
            (
                "output 'out' for ensemble 'm' is not written: at least one of its depending tensors, 'loop', is not "
                "connected"
            ),
            "ensemble tensor 'back' is unused in ensemble 'm': nothing ever writes it",
            "ensemble tensor 'loop' is unused in ensemble 'm': nothing ever writes it",
        ],
    ),
    (
        step("a", "in out", "out"),
        "",
        ["output 'out' for ensemble 'm' is not written"],
    ),
    (
        step("a", "in", "out spare"),
        "",
        ["ensemble tensor 'spare' is unused in ensemble 'm': no step reads it and it is no output"],
    ),
]


@pytest.mark.parametrize(("steps", "more", "messages"), ENSEMBLES)
def test_rules_on_ensembles(steps, more, messages):
    assert faults_of(f"{ENSEMBLE_IO} {more} ensemble_scheduling {{ {steps} }}") == messages


def test_ensemble_needs_its_platform_its_steps_and_no_backend():
    steps = f"ensemble_scheduling {{ {CHAIN} }}"
    without_platform = ENSEMBLE_IO.replace('platform: "ensemble"', 'backend: "python"')

    assert faults_of(without_platform + steps) == [
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble: 'platform' is ''"
    ]
    assert faults_of(ENSEMBLE_IO) == [
        "ensemble scheduling must be set for ensemble m whose platform is ensemble: add 'ensemble_scheduling'"
    ]
    assert faults_of(f'backend: "python" {ENSEMBLE_IO} {steps}') == [
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type: 'backend' is 'python'"
    ]


def test_config_made_in_code_is_held_to_the_oneofs_too():
    config = normalise(complete_backend(parse_text('backend: "python"' + IO, "x"), "m", None))
    both = ModelSequenceBatching(direct=StrategyDirect(), oldest=StrategyOldest())

    faults = find_faults(
        replace(config, dynamic_batching=ModelDynamicBatching(), sequence_batching=both),
        name="m",
        require_io=True,
    )

    assert faults == [
        "only one scheduling choice is allowed for m, found dynamic_batching, sequence_batching",
        "sequence batching takes only one of 'direct' and 'oldest' for m: both are set",
    ]


def test_model_without_a_name():
    assert find_faults(ModelConfig(backend="python"), name="m", require_io=True) == [
        "model configuration must specify 'name' for the model in directory 'm'"
    ]


def test_all_faults_are_found_and_joined():
    config = parse_text('name: "n" max_batch_size: -1 input { name: "x" } response_cache { }', "x")

    with pytest.raises(InvalidArgument) as caught:
        validate(config, name="m", require_io=True)

    assert caught.value.message == "; ".join(find_faults(config, name="m", require_io=True))
    assert len(find_faults(config, name="m", require_io=True)) == 5


def test_valid_config_passes():
    config = normalise(complete_backend(parse_text('backend: "python"' + IO, "x"), "m", None))

    validate(config, name="m", require_io=True)
