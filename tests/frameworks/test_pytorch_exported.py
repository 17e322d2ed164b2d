"""Programs of ``torch.export``: a config out of the file, checks against it, and runs."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from bireme.backends.pytorch.runtime import torch
from bireme.types import BackendFailed, InvalidArgument, Unsupported
from pytorch_models import (
    EXPORTED,
    AddSub,
    Counter,
    NestedArguments,
    OpenModel,
    Scale,
    parameter,
    save_exported,
    save_torchscript,
    tensors,
)

ROW = np.ones((1, 4), np.float32)
BATCH = torch.export.Dim("batch")


def example(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def save_scale(folder, dim=BATCH):
    return save_exported(folder, Scale(), example(2, 4), dynamic={"x": {0: dim}} if dim else None)


def entries(found):
    return [(each.name, each.data_type, each.dims) for each in found]


# The config


def test_a_file_alone_is_a_config(tmp_path):
    save_scale(tmp_path)

    with OpenModel(tmp_path) as model:
        assert entries(model.config.input) == [("x", "TYPE_FP32", (4,))]
        assert entries(model.config.output) == [("OUTPUT__0", "TYPE_FP32", (3,))]
        assert model.config.max_batch_size == 4
        assert model.config.dynamic_batching is not None
        assert model.execute(x=np.repeat(ROW, 3, axis=0))["OUTPUT__0"].tolist() == [[4, 4, 4]] * 3


def test_the_default_batch_size_is_a_setting_and_no_larger_than_the_file_admits(tmp_path):
    save_scale(tmp_path, torch.export.Dim("batch", max=16))

    with OpenModel(tmp_path, default_max_batch_size="8") as model:
        assert model.config.max_batch_size == 8
    with OpenModel(tmp_path, default_max_batch_size="64") as model:
        assert model.config.max_batch_size == 16


def test_a_larger_batch_than_the_file_admits_is_refused(tmp_path):
    save_scale(tmp_path, torch.export.Dim("batch", max=16))

    with pytest.raises(
        InvalidArgument, match="max_batch_size is 17, but the model was exported for at most 16"
    ):
        OpenModel(tmp_path, "max_batch_size: 17")


def test_fixed_shapes_make_no_batches(tmp_path):
    save_scale(tmp_path, None)

    with OpenModel(tmp_path) as model:
        assert model.config.max_batch_size == 0
        assert entries(model.config.input) == [("x", "TYPE_FP32", (2, 4))]


def test_names_of_nested_tensors(tmp_path):
    shape = {0: BATCH}
    options = {"a": example(2, 1), "b": example(2, 1)}
    dynamic = {"x": shape, "options": {"a": shape, "b": shape}, "bias": shape}
    save_exported(tmp_path, NestedArguments(), example(2, 3), options, bias=example(2, 3), dynamic=dynamic)

    with OpenModel(tmp_path) as model:
        assert [each.name for each in model.config.input] == ["x", "options_a", "options_b", "bias"]
        assert [each.name for each in model.config.output] == ["logits", "OUTPUT__1", "OUTPUT__2"]
    text = tensors(
        "INPUT__0:FP32:3 ARGS[1][a]:FP32:1 options_b:FP32:1 KWARGS[bias]:FP32:3",
        "RESULT[logits]:FP32:3 RESULT[pair][1]:FP32:1",
        more="max_batch_size: 2",
    )
    given = {"INPUT__0": [[1, 1, 1]], "ARGS[1][a]": [[2]], "options_b": [[3]], "KWARGS[bias]": [[4, 4, 4]]}
    with OpenModel(tmp_path, text) as model:
        results = model.execute(**{name: np.float32(value) for name, value in given.items()})
    assert results["RESULT[logits]"].tolist() == [[5, 5, 5]]
    assert results["RESULT[pair][1]"].tolist() == [[5]]


def test_a_config_may_give_the_inputs_and_the_file_the_rest(tmp_path):
    save_scale(tmp_path)

    with OpenModel(tmp_path, 'input { name: "INPUT__0" data_type: TYPE_FP32 dims: [4] }') as model:
        assert entries(model.config.output) == [("OUTPUT__0", "TYPE_FP32", (3,))]
        assert model.execute(INPUT__0=ROW)["OUTPUT__0"].tolist() == [[4, 4, 4]]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            tensors("x:FP64:4", "OUTPUT__0:FP32:3"),
            "input 'x': the config's data_type is TYPE_FP64, but the model file has",
        ),
        (tensors("x:FP32:5", "OUTPUT__0:FP32:3"), "make shape [-1, 5], but the model file has [-1, 4]"),
        (
            tensors("x:FP32:4", "OUTPUT__1:FP32:3"),
            "output 'OUTPUT__1' is in the config, but not in the model file, which has",
        ),
        (
            tensors("xx:FP32:4", "OUTPUT__0:FP32:3"),
            "input 'xx' is in the config, but not in the model file, which has 'x'",
        ),
        (
            tensors("x:FP32:4 INPUT__0:FP32:4", "OUTPUT__0:FP32:3"),
            "input 'INPUT__0' is in the config, but not",
        ),
    ],
)
def test_contradictions_are_told(tmp_path, text, fault):
    save_scale(tmp_path)

    with pytest.raises(InvalidArgument) as caught:
        OpenModel(tmp_path, f"max_batch_size: 4 {text}")

    assert fault in str(caught.value)


@pytest.mark.parametrize("datatype", ["BF16", "FP16", "INT64", "BOOL", "UINT8"])
def test_data_types_of_the_file(tmp_path, datatype):
    from bireme.backends.pytorch.tensors import DTYPES
    from pytorch_models import Same

    save_exported(tmp_path, Same(), example(2, dtype=DTYPES[datatype]))

    with OpenModel(tmp_path) as model:
        assert [each.data_type for each in (*model.config.input, *model.config.output)] == [
            f"TYPE_{datatype}"
        ] * 2


def test_a_type_that_the_protocol_has_not_is_refused(tmp_path):
    save_exported(tmp_path, AddSub(), example(2, dtype=torch.complex64), example(2, dtype=torch.complex64))

    with pytest.raises(Unsupported, match=r"input 'left' of the model file is a torch\.complex64"):
        OpenModel(tmp_path)


def test_scalars_have_one_element(tmp_path):
    class Sum(torch.nn.Module):
        def forward(self, x, factor):
            return x.sum() * factor

    save_exported(tmp_path, Sum(), example(3), example())

    with OpenModel(tmp_path) as model:
        assert entries(model.config.output) == [("OUTPUT__0", "TYPE_FP32", (1,))]
        results = model.execute(x=np.ones(3, np.float32), factor=np.float32([2]))
    assert results["OUTPUT__0"].tolist() == [6]


# Runs


def test_instances_share_weights_and_not_state(tmp_path):
    save_exported(tmp_path, Counter(), example(2))

    with OpenModel(tmp_path, count=2) as model:
        modules = [model.module(index) for index in (0, 1)]
        model.execute(0, x=np.float32([1, 1]))
        results = model.execute(1, x=np.float32([5, 5]))
        assert modules[0].linear.weight.data_ptr() == modules[1].linear.weight.data_ptr()

    assert results["OUTPUT__0"].tolist() == [5, 5]


def test_a_model_that_is_closed_keeps_no_weights_whoever_refers_to_whom(tmp_path):
    save_exported(tmp_path, Counter(), example(2))
    gc.disable()
    try:
        with OpenModel(tmp_path, count=2) as model:
            model.execute(1, x=np.float32([5, 5]))
            weights = [weakref.ref(model.module(index).linear.weight) for index in (0, 1)]
        del model

        assert [weight() for weight in weights] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize(("sharing", "total"), [("true", 6), ("false", 5)])
def test_weight_sharing_is_a_parameter_here_too(tmp_path, sharing, total):
    save_exported(tmp_path, Counter(), example(2))

    with OpenModel(tmp_path, parameter("ENABLE_WEIGHT_SHARING", sharing), count=2) as model:
        model.execute(0, x=np.float32([1, 1]))
        assert model.execute(1, x=np.float32([5, 5]))["OUTPUT__0"].tolist() == [total, total]


def test_the_programs_own_guards_hold(tmp_path):
    save_scale(tmp_path, torch.export.Dim("batch", max=16))

    with (
        OpenModel(tmp_path) as model,
        pytest.raises(BackendFailed, match=r"Guard failed: x.size\(\)\[0\] <= 16"),
    ):
        model.execute(x=np.repeat(ROW, 17, axis=0))


def test_a_file_is_what_it_holds_and_not_what_it_is_called(tmp_path):
    save_torchscript(tmp_path, Scale(), file=EXPORTED)
    text = 'platform: "torch_aoti" default_model_filename: "model.pt2"'

    with OpenModel(tmp_path, text + tensors("x:FP32:-1,4", "y:FP32:-1,3")) as model:
        assert model.execute(x=ROW)["y"].tolist() == [[4, 4, 4]]


def test_a_damaged_file_is_explained(tmp_path):
    path = save_scale(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"graph_module"', b'"graph_modulo"'))

    with pytest.raises(InvalidArgument, match=f"unable to load model 'm': '{path}': "):
        OpenModel(tmp_path, tensors("x:FP32:4", "y:FP32:3"))


# torch.compile


@pytest.mark.slow
def test_a_compiled_program_gives_the_same(tmp_path):
    """The first run loads torch's compiler, which takes seconds."""
    save_scale(tmp_path)
    more = parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"backend": "eager", "dynamic": true}')

    with OpenModel(tmp_path, more) as model:
        assert model.execute(x=ROW)["OUTPUT__0"].tolist() == [[4, 4, 4]]
        assert model.execute(x=np.repeat(ROW, 2, axis=0))["OUTPUT__0"].tolist() == [[4, 4, 4]] * 2
        assert not model.instances[0].may_run_inline


@pytest.mark.slow
def test_what_compilation_misses_is_told_at_load(tmp_path, monkeypatch):
    from torch._inductor import config, cpp_builder

    save_scale(tmp_path)
    unknown = parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"backend": "inductr"}')
    with pytest.raises(InvalidArgument, match=r"has no backend 'inductr'.*; did you mean 'inductor'\?"):
        OpenModel(tmp_path, unknown)
    wrong = parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"mode": "fast"}')
    with pytest.raises(InvalidArgument, match="TORCH_COMPILE_OPTIONAL_PARAMETERS: Unrecognized mode=fast"):
        OpenModel(tmp_path, wrong)
    monkeypatch.setattr(config.cpp, "cxx", (None, "no-such-compiler"))
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", cpp_builder.get_cpp_compiler)
    with pytest.raises(
        Unsupported, match="needs a C\\+\\+ compiler, and there is none on this machine; install one"
    ):
        OpenModel(tmp_path, parameter("TORCH_COMPILE", "true"))
