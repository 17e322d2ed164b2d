"""TorchScript files: names of every convention, types, state, and what is wrong with a file or a run."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from bireme.backends.pytorch.runtime import quiet, torch
from bireme.backends.pytorch.torchscript import changes_itself
from bireme.types import BackendFailed, InvalidArgument, NotFound
from pytorch_models import (
    TORCHSCRIPT,
    AddSub,
    Counter,
    Dictionaries,
    Identity,
    Many,
    Named,
    OpenModel,
    Optional,
    Picky,
    Recurrent,
    Scalars,
    Scale,
    Texts,
    parameter,
    save_torchscript,
    tensors,
)

ROW = np.arange(4, dtype=np.float32)


def refusal(folder, text=""):
    with pytest.raises(InvalidArgument) as caught, OpenModel(folder, text):
        pass
    return str(caught.value)


# Names


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("left right", "OUTPUT__0 OUTPUT__1"),
        ("right left", "OUTPUT__0 OUTPUT__1"),
        ("INPUT__0 INPUT__1", "sum difference"),
        ("left x__1", "b__1 a__0"),
        ("one other", "one other"),
    ],
)
def test_tensors_are_found_by_argument_by_position_and_by_order(tmp_path, inputs, outputs):
    save_torchscript(tmp_path, AddSub())
    names = inputs.split()
    text = tensors(
        " ".join(f"{name}:FP32:4" for name in names), " ".join(f"{name}:FP32:4" for name in outputs.split())
    )
    is_second = {"right": True, "INPUT__1": True, "x__1": True, "other": True}
    given = {name: ROW if is_second.get(name) else 10 * ROW for name in names}

    with OpenModel(tmp_path, text) as model:
        results = model.execute(**given)

    first, second = outputs.split() if not outputs.startswith("b__1") else outputs.split()[::-1]
    assert (11 * ROW).tolist() == results[first].tolist()
    assert (9 * ROW).tolist() == results[second].tolist()


def test_the_order_of_inputs_is_told_where_it_alone_counts(tmp_path, caplog):
    save_torchscript(tmp_path, AddSub())
    caplog.set_level(logging.INFO, "bireme")

    with OpenModel(tmp_path, tensors("one:FP32:4 other:FP32:4", "sum:FP32:4")):
        pass

    assert "inputs are taken in the config's order: 'one' as left, 'other' as right" in caplog.text


def test_a_wrong_name_is_refused_with_the_near_one_and_what_forward_takes(tmp_path):
    save_torchscript(tmp_path, AddSub())

    message = refusal(tmp_path, tensors("left:FP32:4 rihgt:FP32:4 x:FP32:4", "sum:FP32:4"))

    assert "input 'rihgt' is in the config, but is no argument of forward(); did you mean 'right'?" in message
    assert "the model file has forward(left: Tensor, right: Tensor)" in message


def test_an_output_beyond_the_tuple_is_refused_at_load(tmp_path):
    save_torchscript(tmp_path, AddSub())

    message = refusal(tmp_path, tensors("left:FP32:4 right:FP32:4", "OUTPUT__2:FP32:4"))

    assert "output 'OUTPUT__2' in the config refers to output 2" in message
    assert "forward() returns 2 outputs" in message


def test_a_config_without_tensors_is_told_what_to_list(tmp_path):
    save_torchscript(tmp_path, Scalars())

    message = refusal(tmp_path)

    assert "it has forward(x: Tensor, factor: float, negate: bool = False)" in message
    assert 'input [ { name: "x" data_type: TYPE_FP32 dims: [ ... ] }, { name: "factor"' in message
    assert 'output [ { name: "OUTPUT__0"' in message


# What forward() takes and returns


def test_dictionaries_in_and_out(tmp_path):
    save_torchscript(tmp_path, Dictionaries())

    with OpenModel(tmp_path, tensors("a:FP32:4 b:FP32:4", "difference:FP32:4 sum:FP32:4")) as model:
        results = model.execute(a=ROW, b=2 * ROW)

    assert (3 * ROW).tolist() == results["sum"].tolist()
    assert (-ROW).tolist() == results["difference"].tolist()


def test_a_key_that_is_not_there_is_told_with_the_near_one(tmp_path):
    save_torchscript(tmp_path, Dictionaries())

    with (
        OpenModel(tmp_path, tensors("a:FP32:4 b:FP32:4", "summ:FP32:4")) as model,
        pytest.raises(
            BackendFailed, match=r"output 'summ' .* which has 'sum', 'difference'; did you mean 'sum'"
        ),
    ):
        model.execute(a=ROW, b=ROW)


def test_fields_of_a_named_tuple_are_names(tmp_path):
    save_torchscript(tmp_path, Named())

    with OpenModel(tmp_path, tensors("x:FP32:4", "high:FP32:4 low:FP32:4")) as model:
        results = model.execute(x=ROW)

    assert (ROW + 1).tolist() == results["high"].tolist()
    assert (ROW - 1).tolist() == results["low"].tolist()


def test_a_list_has_as_many_outputs_as_a_run_makes(tmp_path):
    save_torchscript(tmp_path, Many())
    rows = np.stack([ROW, 2 * ROW])

    with OpenModel(tmp_path, tensors("x:FP32:-1,4", "OUTPUT__1:FP32:4")) as model:
        assert (2 * ROW).tolist() == model.execute(x=rows)["OUTPUT__1"].tolist()
        with pytest.raises(BackendFailed, match=r"refers to output 1, .* forward\(\) returned 1 output"):
            model.execute(x=rows[:1])


def test_strings_are_lists(tmp_path):
    save_torchscript(tmp_path, Texts())
    words = np.array([b"ab", "é".encode()], np.object_)

    with OpenModel(tmp_path, tensors("words:STRING:-1", "OUTPUT__0:STRING:-1 OUTPUT__1:INT64:-1")) as model:
        results = model.execute(words=words)
        with pytest.raises(InvalidArgument, match="input 'words': an element is not UTF-8 text"):
            model.execute(words=np.array([b"\xff"], np.object_))

    assert ["abab", "éé"] == results["OUTPUT__0"].tolist()
    assert [2, 2] == results["OUTPUT__1"].tolist()


def test_strings_have_one_dimension(tmp_path):
    save_torchscript(tmp_path, Texts())

    assert "they have one dimension" in refusal(tmp_path, tensors("words:STRING:-1,2", "OUTPUT__0:STRING:-1"))


def test_numbers_are_values_and_scalars_have_one_element(tmp_path):
    save_torchscript(tmp_path, Scalars())
    text = tensors("x:FP32:4 factor:FP32:1 negate:BOOL:1", "OUTPUT__0:FP32:1 OUTPUT__1:INT64:1")
    text = text.replace('"negate"', '"negate" optional: true')

    with OpenModel(tmp_path, text) as model:
        results = model.execute(x=ROW, factor=np.float32([2]))
        negated = model.execute(x=ROW, factor=np.float32([2]), negate=np.array([True]))
        with pytest.raises(
            InvalidArgument, match=r"takes one value there, found 2 that are not the same: \[1.0, 2.0\]"
        ):
            model.execute(x=ROW, factor=np.float32([1, 2]))

    assert results["OUTPUT__0"].tolist() == [12.0]
    assert results["OUTPUT__1"].tolist() == [4]
    assert negated["OUTPUT__0"].tolist() == [-12.0]


def test_optional_arguments(tmp_path):
    save_torchscript(tmp_path, Optional())
    text = tensors("x:FP32:4 y:FP32:4 scale:INT32:1", "out:FP32:4")
    text = text.replace('"y"', '"y" optional: true').replace('"scale"', '"scale" optional: true')

    with OpenModel(tmp_path, text) as model:
        assert ROW.tolist() == model.execute(x=ROW)["out"].tolist()
        assert (4 * ROW).tolist() == model.execute(x=ROW, y=ROW, scale=np.int32([3]))["out"].tolist()
        assert (2 * ROW).tolist() == model.execute(x=ROW, scale=np.int32([2]))["out"].tolist()


def test_arguments_that_no_tensor_fits_are_refused(tmp_path):
    class Points(torch.nn.Module):
        def forward(self, points: list[tuple[int, int]]) -> int:
            return len(points)

    save_torchscript(tmp_path, Points())

    message = refusal(tmp_path, tensors("points:FP32:4", "out:FP32:4"))

    assert (
        "argument 'points' of forward() is a List[Tuple[int, int]], which no tensor can be made to" in message
    )


def test_implicit_state_is_among_inputs_and_outputs(tmp_path):
    save_torchscript(tmp_path, Recurrent())
    more = """sequence_batching { state {
        input_name: "INPUT__1" output_name: "OUTPUT__1" data_type: TYPE_FP32 dims: [4]
    } }"""

    with OpenModel(tmp_path, tensors("INPUT__0:FP32:4", "OUTPUT__0:FP32:4", more=more)) as model:
        results = model.execute(INPUT__0=ROW, INPUT__1=ROW)

    assert (2 * ROW).tolist() == results["OUTPUT__1"].tolist()
    assert set(results) == {"OUTPUT__0", "OUTPUT__1"}


# Modes


def test_dropout_is_off_whatever_the_file_says(tmp_path):
    module = torch.nn.Dropout(0.9)
    save_torchscript(tmp_path, module.train())

    with OpenModel(tmp_path, tensors("INPUT__0:FP32:4", "OUTPUT__0:FP32:4")) as model:
        assert ROW.tolist() == model.execute(INPUT__0=ROW)["OUTPUT__0"].tolist()


def test_a_frozen_model_is_served(tmp_path):
    path = save_torchscript(tmp_path, Scale())
    with quiet():
        frozen = torch.jit.freeze(torch.jit.load(str(path)).eval())
        torch.jit.save(frozen, str(path))

    with OpenModel(tmp_path, tensors("x:FP32:-1,4", "y:FP32:-1,3"), count=2) as model:
        assert model.execute(1, x=ROW[np.newaxis])["y"].tolist() == [[6, 6, 6]]


@pytest.mark.parametrize("inference", ["true", "false"])
@pytest.mark.parametrize("unoptimized", ["true", "false"])
def test_runs_need_no_gradients_in_any_mode(tmp_path, inference, unoptimized):
    save_torchscript(tmp_path, Scale())
    more = parameter("INFERENCE_MODE", inference) + parameter("DISABLE_OPTIMIZED_EXECUTION", unoptimized)

    with OpenModel(tmp_path, tensors("x:FP32:-1,4", "y:FP32:-1,3", more=more)) as model:
        assert model.execute(x=ROW[np.newaxis])["y"].tolist() == [[6, 6, 6]]

    assert torch._C._get_graph_executor_optimize()
    assert torch.is_grad_enabled()


# Instances


def test_instances_share_one_module(tmp_path, monkeypatch):
    save_torchscript(tmp_path, Scale())
    loaded = []
    load = torch.jit.load
    monkeypatch.setattr(torch.jit, "load", lambda *args, **named: loaded.append(args) or load(*args, **named))

    with OpenModel(tmp_path, tensors("x:FP32:-1,4", "y:FP32:-1,3"), count=3) as model:
        assert len({model.module(index).linear.weight.data_ptr() for index in range(3)}) == 1

    assert len(loaded) == 1


def test_instances_of_a_model_with_state_share_weights_alone(tmp_path):
    save_torchscript(tmp_path, Counter())

    with OpenModel(tmp_path, tensors("x:FP32:2", "y:FP32:2"), count=2) as model:
        weights = {model.module(index).linear.weight.data_ptr() for index in (0, 1)}
        model.execute(0, x=np.float32([1, 1]))
        results = model.execute(1, x=np.float32([5, 5]))

    assert len(weights) == 1
    assert results["y"].tolist() == [5, 5]


@pytest.mark.parametrize(("sharing", "total", "num_weights"), [("true", 6, 1), ("false", 5, 2)])
def test_weight_sharing_is_a_parameter(tmp_path, sharing, total, num_weights):
    save_torchscript(tmp_path, Counter())
    more = parameter("ENABLE_WEIGHT_SHARING", sharing)

    with OpenModel(tmp_path, tensors("x:FP32:2", "y:FP32:2", more=more), count=2) as model:
        weights = {model.module(index).linear.weight.data_ptr() for index in (0, 1)}
        model.execute(0, x=np.float32([1, 1]))
        results = model.execute(1, x=np.float32([5, 5]))

    assert num_weights == len(weights)
    assert results["y"].tolist() == [total, total]


@pytest.mark.parametrize(("module", "changes"), [(Counter(), True), (Scale(), False), (AddSub(), False)])
def test_a_module_that_changes_itself_is_known(tmp_path, module, changes):
    path = save_torchscript(tmp_path, module)
    with quiet():
        loaded = torch.jit.load(str(path))

    assert changes is changes_itself(loaded)


# What goes wrong


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid 1\n", "Git LFS pointer"),
        (b"garbage" * 100, "it is no TorchScript, exported or compiled model, or it was cut off"),
        (None, "or it was cut off"),
    ],
)
def test_a_file_that_is_no_model_is_explained(tmp_path, content, reason):
    path = save_torchscript(tmp_path, Identity())
    path.write_bytes(path.read_bytes()[:500] if content is None else content)

    message = refusal(tmp_path, tensors("x:FP32:4", "y:FP32:4"))

    assert reason in message
    assert str(path) in message


def test_a_damaged_archive_is_explained(tmp_path):
    path = save_torchscript(tmp_path, Scale())
    content = bytearray(path.read_bytes())
    start = content.index(b"__torch__.py")
    content[start + 60 : start + 400] = b"?" * 340
    path.write_bytes(content)

    message = refusal(tmp_path, tensors("x:FP32:4", "y:FP32:4"))

    assert f"unable to load model 'm': '{path}': " in message
    assert "\n" not in message


def test_a_state_dict_is_no_model(tmp_path):
    path = tmp_path / TORCHSCRIPT
    path.parent.mkdir()
    torch.save(Scale().state_dict(), path)

    assert "it is a pickled object, such as a state dict, not a model; save the model itself" in refusal(
        tmp_path
    )
    path.with_name("model.py").write_text("")
    assert 'to load it into the class in model.py, set runtime: "model.py"' in refusal(tmp_path)


def test_a_missing_file_is_told_with_what_there_is(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "other.pt").write_text("")

    with pytest.raises(NotFound, match=r"model.pt' for model 'm'; .* holds 'other.pt'"):
        OpenModel(tmp_path)


def test_what_forward_raises_comes_without_a_traceback(tmp_path):
    save_torchscript(tmp_path, Picky())

    with OpenModel(tmp_path, tensors("x:FP32:4", "y:FP64:4")) as model:
        with pytest.raises(BackendFailed) as caught:
            model.execute(x=10 * ROW)
        assert str(caught.value) == "PyTorch execute failure: ValueError: too large"
        assert model.execute(x=ROW)["y"].dtype == np.float64


def test_shapes_that_do_not_fit_are_torchs_to_tell(tmp_path):
    save_torchscript(tmp_path, Scale())

    with (
        OpenModel(tmp_path, tensors("x:FP32:-1,-1", "y:FP32:-1,3")) as model,
        pytest.raises(BackendFailed, match="mat1 and mat2 shapes cannot be multiplied"),
    ):
        model.execute(x=np.ones((2, 7), np.float32))


def test_another_data_type_than_the_configs_is_told(tmp_path):
    save_torchscript(tmp_path, Picky())

    with (
        OpenModel(tmp_path, tensors("x:FP32:4", "y:FP32:4")) as model,
        pytest.raises(
            BackendFailed,
            match=r"output 'y': the config wants a tensor of torch.float32, but .* torch.float64",
        ),
    ):
        model.execute(x=ROW)


def test_a_closed_instance_says_so(tmp_path):
    save_torchscript(tmp_path, Identity())

    with OpenModel(tmp_path, tensors("x:FP32:4", "y:FP32:4")) as model:
        model.instances[0].close()
        with pytest.raises(BackendFailed, match="the instance is closed"):
            model.execute(x=ROW)


def test_compilation_does_nothing_for_torchscript_and_says_so(tmp_path, caplog):
    save_torchscript(tmp_path, Identity())
    more = parameter("TORCH_COMPILE", "true") + parameter(
        "TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"backend": "eager"}'
    )

    with OpenModel(tmp_path, tensors("x:FP32:4", "y:FP32:4", more=more)) as model:
        assert ROW.tolist() == model.execute(x=ROW)["y"].tolist()

    assert "parameter TORCH_COMPILE does nothing for TorchScript" in caplog.text


def test_an_instance_may_be_made_without_a_check(tmp_path):
    """As with a server that does not complete configs: the engine checks, but who does not gets the same answer."""
    save_torchscript(tmp_path, Identity())

    with OpenModel(tmp_path, tensors("x:FP32:4", "y:FP32:4")) as model:
        config = replace(model.config, name="other")
        model.loaded.check_config(config)
        assert model.loaded.complete_config(config) is config
