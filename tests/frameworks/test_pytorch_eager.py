"""Eager models: the class in a ``model.py``, its weights beside it, and all that can be wrong with them."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.pytorch.runtime import torch
from bireme.types import BackendFailed, InvalidArgument
from pytorch_models import Counter, OpenModel, Scale, parameter, save_eager, save_torchscript, tensors

ROW = np.arange(4, dtype=np.float32)
RUNTIME = 'runtime: "model.py" '
DOUBLE = """
class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""
SCALE = """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.linear(x)
"""
COUNTER = """
class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2, bias=False)
        self.register_buffer("total", torch.zeros(2))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.total += self.linear(x)
        return self.total
"""


def run(folder, text, **inputs):
    with OpenModel(folder, RUNTIME + text) as model:
        return model.execute(**inputs)


def refusal(folder, text=""):
    with pytest.raises(InvalidArgument) as caught, OpenModel(folder, RUNTIME + text):
        pass
    assert not [name for name in sys.modules if name.startswith("bireme_pytorch_m_")]
    return str(caught.value)


def test_a_class_and_its_weights(tmp_path):
    save_eager(tmp_path, SCALE, Scale())

    results = run(tmp_path, tensors("INPUT__0:FP32:-1,4", "OUTPUT__0:FP32:-1,3"), INPUT__0=ROW[np.newaxis])

    assert results["OUTPUT__0"].tolist() == [[6, 6, 6]]
    assert not [name for name in sys.modules if name.startswith("bireme_pytorch_m_")]


def test_weights_may_be_made_by_the_code(tmp_path, caplog):
    save_eager(tmp_path, DOUBLE)
    caplog.set_level(logging.INFO, "bireme")

    assert (2 * ROW).tolist() == run(tmp_path, tensors("x:FP32:4", "y:FP32:4"), x=ROW)["y"].tolist()
    assert "so its weights are what" in caplog.text


def test_without_a_class_file_the_runtime_takes_torchscript(tmp_path):
    save_torchscript(tmp_path, Scale())
    text = tensors("x:FP32:-1,4", "y:FP32:-1,3", more='default_model_filename: "model.py"')

    assert run(tmp_path, text, x=ROW[np.newaxis])["y"].tolist() == [[6, 6, 6]]


def test_inputs_are_the_arguments_by_name_and_may_be_left_out(tmp_path):
    save_eager(
        tmp_path,
        """
class Net(torch.nn.Module):
    def forward(self, x, y=None, *more, scale: int = 1):
        return {"out": x * scale if y is None else x * scale + y + sum(more)}
""",
    )
    text = tensors("x:FP32:4 y:FP32:4 MORE__2:FP32:4 scale:INT64:1", "out:FP32:4")
    for name in ("y", "MORE__2", "scale"):
        text = text.replace(f'"{name}"', f'"{name}" optional: true')

    assert ROW.tolist() == run(tmp_path, text, x=ROW)["out"].tolist()
    results = run(tmp_path, text, x=ROW, y=ROW, MORE__2=ROW, scale=np.int64([3]))
    assert (5 * ROW).tolist() == results["out"].tolist()


def test_dictionaries_and_strings(tmp_path):
    save_eager(
        tmp_path,
        """
class Net(torch.nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]):
        return {"sum": batch["a"] + batch["b"]}

class Words(torch.nn.Module):
    def forward(self, words):
        return [word.upper() for word in words]
""",
    )

    named = parameter("MODULE_CLASS", "Words")
    words = np.array([b"a", b"bc"], np.object_)
    assert run(tmp_path, tensors("a:FP32:4 b:FP32:4", "sum:FP32:4"), a=ROW, b=ROW)["sum"].tolist() == [
        0,
        2,
        4,
        6,
    ]
    results = run(tmp_path, named + tensors("words:STRING:-1", "upper:STRING:-1"), words=words)
    assert results["upper"].tolist() == ["A", "BC"]


def test_of_several_classes_the_one_that_can_be_made_is_served_and_told(tmp_path, caplog):
    save_eager(
        tmp_path,
        """
from torch.nn import Linear

class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1
""",
    )
    caplog.set_level(logging.INFO, "bireme")

    assert run(tmp_path, tensors("x:FP32:4", "y:FP32:4"), x=ROW)["y"].tolist() == [1, 2, 3, 4]
    assert "defines 'Block', 'Net'; 'Net' is served" in caplog.text


def test_a_file_beside_it_may_be_imported(tmp_path):
    save_eager(tmp_path, "from pytorch_test_sibling import SIZE\n" + DOUBLE.replace("* 2", "* SIZE"))
    (tmp_path / "1" / "pytorch_test_sibling.py").write_text("SIZE = 3\n")

    assert (3 * ROW).tolist() == run(tmp_path, tensors("x:FP32:4", "y:FP32:4"), x=ROW)["y"].tolist()
    assert str(tmp_path / "1") not in sys.path
    del sys.modules["pytorch_test_sibling"]


def test_instances_share_weights_and_have_state_of_their_own(tmp_path):
    save_eager(tmp_path, COUNTER, Counter())

    with OpenModel(tmp_path, RUNTIME + tensors("x:FP32:2", "y:FP32:2"), count=2) as model:
        modules = [model.module(index) for index in (0, 1)]
        model.execute(0, x=np.float32([1, 1]))
        results = model.execute(1, x=np.float32([5, 5]))
        assert modules[0].linear.weight is modules[1].linear.weight

    assert results["y"].tolist() == [5, 5]
    assert [1, 1] == [module.calls for module in modules]


def test_code_of_a_model_never_runs_on_the_loop_thread(tmp_path):
    save_eager(tmp_path, DOUBLE)

    with OpenModel(tmp_path, RUNTIME + tensors("x:FP32:4", "y:FP32:4")) as model:
        assert not model.instances[0].may_run_inline


# What goes wrong


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_package", "failed: ModuleNotFoundError: No module named 'no_such_package'"),
        ("class Net(", "failed: SyntaxError: "),
        ("class Net: pass", "defines no subclass of torch.nn.Module"),
        (
            DOUBLE.replace("def forward", "def __init__(self): raise ValueError('no')\n    def forward"),
            "Double() of",
        ),
        ("class Net(torch.nn.Module):\n    def __init__(self, size): super().__init__()", "Net() of"),
    ],
)
def test_code_that_fails_is_told_in_one_line(tmp_path, code, reason):
    save_eager(tmp_path, code)

    message = refusal(tmp_path, tensors("x:FP32:4", "y:FP32:4"))

    assert reason in message
    assert "\n" not in message


def test_a_class_that_is_not_there_is_told_with_the_near_one(tmp_path):
    save_eager(tmp_path, DOUBLE)

    message = refusal(tmp_path, parameter("MODULE_CLASS", "Doubel") + tensors("x:FP32:4", "y:FP32:4"))

    assert "has no class 'Doubel' of torch.nn.Module, it has 'Double'; did you mean 'Double'?" in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"garbage", "expected a state dict, as torch.save(module.state_dict(), path) writes it"),
        (None, 'Missing key(s) in state_dict: "linear.weight"'),
    ],
)
def test_weights_that_do_not_fit_are_told(tmp_path, content, reason):
    save_eager(tmp_path, SCALE)
    weights = tmp_path / "1" / "model.pt"
    if content is None:
        torch.save({"other": torch.zeros(1)}, weights)
    else:
        weights.write_bytes(content)

    message = refusal(tmp_path, tensors("x:FP32:4", "y:FP32:4"))

    assert reason in message
    assert "\n" not in message


def test_a_module_that_refers_to_itself_keeps_no_weights(tmp_path):
    code = """
import warnings
class Circle(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.scripted = torch.jit.script(torch.nn.Linear(4, 4))
        self.run = self.linear.forward
        self.linear.owner = [self]
    def forward(self, x):
        return self.run(x)
"""
    save_eager(tmp_path, code)
    gc.disable()
    try:
        with OpenModel(tmp_path, tensors("x:FP32:-1,4", "y:FP32:-1,4")) as model:
            weight = weakref.ref(model.module().linear.weight)
        del model

        assert weight() is None
    finally:
        gc.enable()


def test_weights_run_no_code(tmp_path):
    class Touch:
        def __reduce__(self):
            return Path.touch, (tmp_path / "touched",)

    save_eager(tmp_path, SCALE)
    torch.save({"linear.weight": Touch()}, tmp_path / "1" / "model.pt")

    message = refusal(tmp_path, tensors("x:FP32:4", "y:FP32:4"))

    assert "it holds more than tensors, such as pickled classes; expected a state dict" in message
    assert not (tmp_path / "touched").exists()


def test_a_config_without_tensors_is_told_the_arguments(tmp_path):
    save_eager(tmp_path, DOUBLE)

    assert "it has forward(x: Any)" in refusal(tmp_path)


def test_results_that_are_no_outputs_are_told(tmp_path):
    save_eager(tmp_path, DOUBLE.replace("x * 2", "None"))

    with (
        OpenModel(tmp_path, RUNTIME + tensors("x:FP32:4", "y:FP32:4")) as model,
        pytest.raises(BackendFailed, match=r"output 'y': .* but forward\(\) returned a NoneType"),
    ):
        model.execute(x=ROW)
