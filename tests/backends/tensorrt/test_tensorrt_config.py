"""What an engine says about its model's config, and how the two are held against each other."""

import pytest

from bireme.types import InvalidArgument, Unsupported
from fake_tensorrt import PROFILE, X, Y, plan, tensor

IO = 'input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 3 }'
WHOLE = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } '
    'output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }'
)
FIXED = [tensor("x", "INPUT", [8, 3]), tensor("y", "OUTPUT", [8, 3])]


def described(config):
    return (
        config.max_batch_size,
        config.dynamic_batching is not None,
        [(each.name, each.data_type, tuple(each.dims)) for each in (*config.input, *config.output)],
    )


def test_all_is_filled_in_from_the_engine_and_the_batch_limit_is_the_profiles(open_model):
    assert described(open_model().config) == (8, True, [("x", "TYPE_FP32", (3,)), ("y", "TYPE_FP32", (3,))])


def test_the_batch_limit_is_that_of_the_profiles_in_use(open_model):
    profiles = [PROFILE, {"x": [[8, 3], [16, 3], [32, 3]]}]
    assert open_model(plan(profiles=profiles)).config.max_batch_size == 8
    assert open_model(plan(profiles=profiles), 'instance_group { profile: "1" }').config.max_batch_size == 32


def test_an_engine_of_fixed_shapes_does_not_batch(open_model):
    found = described(open_model(plan(tensors=FIXED, profiles=[{}])).config)
    assert found == (0, False, [("x", "TYPE_FP32", (8, 3)), ("y", "TYPE_FP32", (8, 3))])


def test_a_config_of_its_own_stands(open_model):
    assert described(open_model(config=f"max_batch_size: 4 {IO}").config)[:2] == (4, False)
    assert described(open_model(config=WHOLE).config)[0] == 0


def test_dims_without_a_batch_dimension_mean_batching(open_model):
    assert described(open_model(config=IO).config)[:2] == (8, True)


def test_sequences_are_not_given_dynamic_batching(open_model):
    text = f"sequence_batching {{ direct {{ }} }} {IO}"
    assert described(open_model(config=text).config)[:2] == (8, False)


def test_dims_that_contradict_each_other(open_model):
    mixed = IO.replace("dims: 3 } output", "dims: [ -1, 3 ] } output")
    with pytest.raises(
        InvalidArgument, match="the dims of 'y' leave the batch dimension out, those of 'x' have it"
    ):
        open_model(config=mixed)


@pytest.mark.parametrize("auto_complete", [True, False])
def test_no_larger_batches_than_the_engine_takes(open_model, auto_complete):
    with pytest.raises(
        InvalidArgument, match=r"max-batch 9 but TensorRT engine only supports max-batch 8|at most"
    ):
        open_model(config=f"max_batch_size: 9 {IO}", auto_complete=auto_complete)


def test_batching_with_fixed_shapes(open_model):
    with pytest.raises(InvalidArgument, match=r"does not support batching|max-batch 2 but"):
        open_model(plan(tensors=FIXED, profiles=[{}]), "max_batch_size: 2")


@pytest.mark.parametrize("native", ["FP8", "INT4", "FP4", "E8M0"])
def test_types_that_the_protocol_does_not_have(open_model, native):
    with pytest.raises(Unsupported, match=f"input 'x' of the model file is a {native}, which no data type"):
        open_model(plan(tensors=[tensor("x", "INPUT", [-1, 3], native), Y]))


def test_an_output_of_such_a_type_need_not_be_served(open_model):
    tensors = [X, tensor("y", "OUTPUT", [-1, 3]), tensor("scales", "OUTPUT", [-1, 3], "FP8")]
    open_model(plan(tensors=tensors), f"max_batch_size: 8 {IO}")
    with pytest.raises(
        Unsupported, match=r"output 'scales' .*list the outputs to serve in config.pbtxt \('y'\)"
    ):
        open_model(plan(tensors=tensors))


FAULTS = [
    (IO.replace('"x"', '"z"'), "input 'z' is in the config, but not in the model file"),
    (IO.replace("TYPE_FP32 dims: 3 } output", "TYPE_FP16 dims: 3 } output"), "data_type is TYPE_FP16, but"),
    (IO.replace("dims: 3 } output", "dims: 4 } output"), "input 'x': the config's dims [4]"),
    (
        IO.replace("dims: 3 } output", "dims: 3 is_shape_tensor: true } output"),
        "input 'x' is no shape tensor of the engine, but is_shape_tensor is true in the config",
    ),
    (
        IO.replace("dims: 3 } output", "dims: 3 is_non_linear_format_io: true } output"),
        "input 'x' is linear in the engine, but is_non_linear_format_io is true in the config",
    ),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_faults_of_a_config(open_model, text, message):
    with pytest.raises(InvalidArgument) as caught:
        open_model(config=f"max_batch_size: 8 {text}", auto_complete=False)
    assert message in caught.value.message


def test_a_shape_tensor_that_is_not_marked(open_model):
    tensors = [X, Y, tensor("n", "INPUT", [2], "INT32", is_shape=True, location="HOST")]
    spec = plan(tensors=tensors, profiles=[{**PROFILE, "n": [[1, 1], [4, 4], [8, 9]]}])
    text = f'max_batch_size: 8 {IO} input {{ name: "n" data_type: TYPE_INT32 dims: 1 }}'
    with pytest.raises(InvalidArgument, match="input 'n' is a shape tensor of the engine, but"):
        open_model(spec, text, auto_complete=False)
    open_model(spec, text)  # auto-completion marks it


def test_states_are_no_inputs_and_outputs_of_clients(open_model):
    text = (
        "max_batch_size: 8 sequence_batching { state { "
        'input_name: "z" output_name: "s" data_type: TYPE_FP32 dims: 3 } }'
    )
    tensors = [X, tensor("z", "INPUT", [-1, 3]), Y, tensor("s", "OUTPUT", [-1, 3])]
    spec = plan("add", tensors, [{**PROFILE, "z": PROFILE["x"]}])
    names = [name for name, *_ in described(open_model(spec, text).config)[2]]
    assert names == ["x", "y"]


SETTINGS = [
    (
        {"execution_policy": "SOME"},
        "",
        "'execution-policy' is 'SOME'; expected 'DEVICE_BLOCKING' or 'BLOCKING'",
    ),
    (
        {"version_compatible": "maybe"},
        "",
        "'version-compatible' is 'maybe'; expected true, on, yes or 1; or false",
    ),
    ({"coalesce_request_input": "x"}, "", "'coalesce-request-input' is 'x'"),
    (
        {},
        'parameters { key: "execution_context_allocation_strategy" value { string_value: "LAZY" } }',
        "is 'LAZY'; expected 'STATIC' or 'ON_PROFILE_CHANGE'",
    ),
]


@pytest.mark.parametrize(("settings", "config", "message"), SETTINGS)
def test_a_setting_that_is_wrong(open_model, settings, config, message):
    with pytest.raises(InvalidArgument) as caught:
        open_model(config=config, **settings)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            'parameters { key: "enable_multi_device" value { string_value: "true" } }',
            "an instance has one GPU",
        ),
        ("instance_group { secondary_devices { kind: KIND_NVDLA device_id: 0 } }", "NVDLA"),
    ],
)
def test_what_is_not_supported_is_told(open_model, config, message):
    with pytest.raises(Unsupported, match=message):
        open_model(config=config)


@pytest.mark.parametrize(
    ("priority", "value"), [("PRIORITY_DEFAULT", 0), ("PRIORITY_MAX", -5), ("PRIORITY_MIN", 0)]
)
def test_the_models_priority_is_its_streams(open_model, gpu, priority, value):
    from bireme.backends.interface import Placement

    model = open_model(config=f"optimization {{ priority: {priority} }}")
    model.instances.append(model.loaded.create_instance(Placement("m_0", "KIND_GPU")))
    assert [stream.priority for stream in gpu.cuda.streams.values()] == [value]
