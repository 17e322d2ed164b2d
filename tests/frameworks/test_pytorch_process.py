"""What belongs to the process or the thread: threads, switches of the JIT, the log; and GPUs, through a fake of torch.cuda."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading

import numpy as np
import pytest

from bireme.backends.interface import ModelContext, Placement
from bireme.backends.pytorch import gpus, operators
from bireme.backends.pytorch.backend import PyTorchBackend
from bireme.backends.pytorch.gpus import Gpu, find_gpu, first_device
from bireme.backends.pytorch.instance import TorchInstance
from bireme.backends.pytorch.operators import with_operators
from bireme.backends.pytorch.process_settings import ProcessState, has_threads_of_its_own
from bireme.backends.pytorch.runtime import quiet, torch
from bireme.backends.pytorch.settings import ProcessSettings
from bireme.types import InvalidArgument, Unsupported
from pytorch_models import (
    AddSub,
    OpenModel,
    Scale,
    make_config,
    parameter,
    save_eager,
    save_exported,
    save_torchscript,
    tensors,
)

THREADS = """
class Threads(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([torch.get_num_threads()])
"""


# Settings of a process


def test_the_first_model_that_says_something_has_its_way(caplog):
    made = []
    state = ProcessState({"num_inter_op_threads": made.append, "cudnn": made.append})

    state.apply("a", ProcessSettings(num_inter_op_threads=2))
    state.apply("b", ProcessSettings(num_inter_op_threads=2, cudnn=False))
    state.apply("c", ProcessSettings(num_inter_op_threads=3))

    assert made == [2, False]
    assert "model 'c': num_inter_op_threads is 2 already, as model 'a' has it" in caplog.text
    assert "'b'" not in caplog.text


def test_what_torch_does_not_allow_any_more_is_told(caplog):
    def refuse(_value):
        raise RuntimeError("parallel work has started")

    state = ProcessState({"num_inter_op_threads": refuse})
    state.apply("a", ProcessSettings(num_inter_op_threads=2))

    assert "model 'a': num_inter_op_threads cannot be set to 2: parallel work has started" in caplog.text


def test_each_instance_has_its_own_number_of_threads(tmp_path):
    assert has_threads_of_its_own()
    models = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        save_eager(folder, THREADS)
        more = 'runtime: "model.py"' + parameter("INTRA_OP_THREAD_COUNT", str(count))
        models.append(OpenModel(folder, tensors("x:FP32:1", "y:INT64:1", more=more)))
    given = np.ones(1, np.float32)

    with models[0] as one, models[1] as two:
        found = [model.execute(x=given)["y"].item() for model in (one, two, one)]
        threads = [
            threading.Thread(target=lambda model=model: found.append(model.execute(x=given)["y"].item()))
            for model in (one, two)
        ]
        for thread in threads:
            thread.start()
            thread.join()

    assert found == [1, 2, 1, 1, 2]


# The log


def test_warnings_of_torch_go_to_the_log(caplog):
    caplog.set_level(logging.DEBUG, "bireme")

    with quiet():
        torch.jit.script(AddSub())
    logging.getLogger("torch._inductor").warning("out of %s", "date")

    assert "DeprecationWarning: `torch.jit.script` is deprecated" in caplog.text
    assert ("bireme.backends.pytorch", logging.DEBUG, "out of date") in caplog.record_tuples
    assert not logging.getLogger("torch").propagate


@pytest.mark.slow
def test_torch_starts_quietly_with_threads_that_sleep():
    code = """
import os, sys
from bireme.backends.pytorch.runtime import torch
print(os.environ.get("GOMP_SPINCOUNT"), "torch._inductor" in sys.modules, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=50
    )

    assert done.stdout.split()[0] == "None"
    assert done.stderr == ""


# Operators


def test_a_library_of_operators_is_loaded(tmp_path, monkeypatch):
    save_torchscript(tmp_path, AddSub())
    library = tmp_path / "1" / "ops.so"
    library.write_bytes(b"no library")
    text = 'model_operations { op_library_filename: "ops.so" }' + tensors(
        "left:FP32:1 right:FP32:1", "sum:FP32:1"
    )
    with pytest.raises(
        InvalidArgument, match=r"operator library 'ops.so' cannot be loaded: .*file too short"
    ):
        OpenModel(tmp_path, text)

    loaded = []
    monkeypatch.setattr(type(torch.ops), "load_library", lambda _self, path: loaded.append(path))
    with OpenModel(tmp_path, text):
        assert loaded == [str(library)]


UNKNOWN = """Unknown builtin op: torchvision::nms.
Could not find any similar ops to torchvision::nms."""


def test_a_package_that_has_the_operators_is_imported(monkeypatch):
    failures = [RuntimeError(UNKNOWN)]
    imported = []
    monkeypatch.setattr(operators, "import_module", imported.append)

    def load():
        if failures:
            raise failures.pop()
        return "loaded"

    assert with_operators("m", load) == "loaded"
    assert imported == ["torchvision"]


def test_a_package_that_is_not_there_is_named(monkeypatch):
    def load():
        raise RuntimeError(UNKNOWN)

    def import_nothing(name):
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(operators, "import_module", import_nothing)
    with pytest.raises(
        Unsupported, match=r"needs operators of torchvision, .*; install it with: pip install torchvision"
    ):
        with_operators("m", load)


@pytest.mark.parametrize("text", ["Unknown builtin op: mine::nms.", "something else"])
def test_other_failures_are_what_they_are(text):
    def load():
        raise RuntimeError(text)

    with pytest.raises(RuntimeError, match=text):
        with_operators("m", load)


# GPUs


class FakeCuda:
    """``torch.cuda`` as the backend uses it, on a machine with ``count`` GPUs."""

    def __init__(self, count=0):
        self.count = count
        self.calls = []

    def is_available(self):
        return self.count > 0

    def device_count(self):
        return self.count

    def Stream(self, device):
        return f"stream on {device}"

    def device(self, device):
        return self._note(f"enter {device}")

    def stream(self, stream):
        return self._note(f"enter {stream}")

    @contextlib.contextmanager
    def _note(self, text):
        self.calls.append(text)
        yield

    def empty_cache(self):
        self.calls.append("empty cache")


GPU_1 = Placement("m_0", "KIND_GPU", 1)


def test_a_machine_without_gpus_is_told_of():
    with pytest.raises(Unsupported) as caught:
        find_gpu(GPU_1, "m", cleans_cache=False, cuda=FakeCuda())

    assert "instance 'm_0' of model 'm': KIND_GPU is not supported by the pytorch backend here" in str(
        caught.value
    )
    assert f"torch {torch.__version__} sees no GPU on this machine; use KIND_CPU or KIND_AUTO" in str(
        caught.value
    )


def test_a_gpu_that_is_not_there_is_told_of():
    with pytest.raises(Unsupported, match="GPU 1 is not there; torch sees 1"):
        find_gpu(GPU_1, "m", cleans_cache=False, cuda=FakeCuda(1))


def test_instances_on_cpus_need_no_gpu():
    assert find_gpu(Placement("m_0"), "m", cleans_cache=False, cuda=FakeCuda()) is None


def test_a_run_on_a_gpu_has_its_device_and_stream():
    cuda = FakeCuda(2)
    gpu = find_gpu(GPU_1, "m", cleans_cache=True, cuda=cuda)

    assert gpu is not None
    with gpu.run():
        cuda.calls.append("run")
    assert cuda.calls == ["enter cuda:1", "enter stream on cuda:1", "run", "empty cache"]


def test_tensors_go_there_and_back(tmp_path, monkeypatch):
    """With the CPU in the place of the GPU: the way is the same."""
    save_torchscript(tmp_path, AddSub())
    cuda = FakeCuda(2)
    sent = []

    class OnCpu(Gpu):
        def send(self, argument):
            sent.append(tuple(argument.shape))
            return argument.to("cpu", non_blocking=True)

    gpu = OnCpu(1, cleans_cache=False, cuda=cuda)
    gpu.device = torch.device("cpu")
    monkeypatch.setattr("bireme.backends.pytorch.backend.find_gpu", lambda *_args, **_named: gpu)

    with OpenModel(tmp_path, tensors("left:FP32:2 right:FP32:2", "sum:FP32:2")) as model:
        result = model.execute(left=np.float32([1, 2]), right=np.float32([3, 4]))
        assert isinstance(model.instances[0], TorchInstance)
        assert not model.instances[0].may_run_inline

    assert result["sum"].tolist() == [4, 6]
    assert sent == [(2,), (2,)]
    assert cuda.calls == ["enter cpu", "enter stream on cuda:1"]


@pytest.mark.parametrize(
    ("group", "num_gpus", "device"),
    [
        ("kind: KIND_CPU", 0, "cpu"),
        ("kind: KIND_MODEL", 0, "None"),
        ("kind: KIND_AUTO", 0, "cpu"),
    ],
)
def test_a_file_is_opened_where_its_first_instances_run(monkeypatch, group, num_gpus, device):
    monkeypatch.setattr(gpus.torch.cuda, "is_available", lambda: num_gpus > 0)

    assert device == str(first_device(make_config(f"instance_group {{ {group} }}")))


def test_a_file_is_opened_on_the_gpu_of_its_first_instances(monkeypatch):
    from dataclasses import replace

    config = make_config("")
    group = replace(config.instance_group[0], kind="KIND_GPU", gpus=(3,))
    monkeypatch.setattr(gpus.torch.cuda, "is_available", lambda: True)

    assert str(first_device(replace(config, instance_group=(group,)))) == "cuda:3"


def test_instances_without_a_device_run_where_the_file_says(tmp_path):
    save_torchscript(tmp_path, AddSub())
    text = tensors("left:FP32:1 right:FP32:1", "sum:FP32:1", more="instance_group { kind: KIND_MODEL }")

    with OpenModel(tmp_path, text) as model:
        instance = model.loaded.create_instance(Placement("m_1", "KIND_MODEL"))
        assert (
            instance.execute({"left": np.ones(1, np.float32), "right": np.ones(1, np.float32)})["sum"].item()
            == 2
        )


META = torch.device("meta")
"""A device that every machine has: tensors without content."""


def test_modules_have_a_copy_on_each_device(tmp_path):
    save_torchscript(tmp_path / "script", Scale())
    save_exported(tmp_path / "exported", Scale(), torch.zeros(2, 4))
    code = "from pytorch_models import Scale as Base\nclass Scale(Base): pass\n"
    save_eager(tmp_path / "eager", code, Scale())

    for kind, more in (("script", ""), ("exported", ""), ("eager", 'runtime: "model.py"')):
        text = tensors("INPUT__0:FP32:2,4", "OUTPUT__0:FP32:2,3", more=more)
        with OpenModel(tmp_path / kind, text) as model:
            program = model.loaded._program
            moved = [program.place(META, sharing=None) for _ in range(2)]

            assert [META] * 2 == [forward(torch.zeros(2, 4, device=META))[0].device for forward in moved], (
                kind
            )
            assert model.module().linear.weight.device.type == "cpu"


# What the server makes itself


def test_sequence_controls_and_batch_inputs_are_arguments(tmp_path):
    save_eager(
        tmp_path,
        """
class Net(torch.nn.Module):
    def forward(self, x, start, who, count):
        return x + start, who, count
""",
    )
    more = """
        runtime: "model.py" max_batch_size: 4
        sequence_batching {
          control_input { name: "start" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
          control_input { name: "who" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
        }
        batch_input { kind: BATCH_ELEMENT_COUNT target_name: "count" data_type: TYPE_INT64 source_input: "x" }
    """
    text = tensors("x:FP32:1", "sum:FP32:1", more=more)
    given = {
        "x": np.float32([[1]]),
        "start": np.float32([[1]]),
        "who": np.array([[b"me"]], np.object_),
        "count": np.array([1]),
    }

    with OpenModel(tmp_path, text) as model:
        assert model.execute(**given)["sum"].tolist() == [[2]]


def test_a_parameter_that_is_nearly_one_is_warned_of(tmp_path, caplog):
    save_torchscript(tmp_path, AddSub())
    text = tensors("left:FP32:1 right:FP32:1", "sum:FP32:1", more=parameter("INFERENCE_MODES", "true"))

    with OpenModel(tmp_path, text):
        pass

    assert "parameter 'INFERENCE_MODES' is unknown and ignored; did you mean 'INFERENCE_MODE'?" in caplog.text


def test_an_instance_needs_no_check_before(tmp_path):
    save_torchscript(tmp_path, AddSub())
    config = make_config(tensors("left:FP32:1 right:FP32:1", "sum:FP32:1"))
    loaded = PyTorchBackend().load(ModelContext("m", 1, tmp_path, tmp_path / "1", config))

    instance = loaded.create_instance(Placement("m_0"))

    one = np.ones(1, np.float32)
    assert instance.execute({"left": one, "right": one})["sum"].tolist() == [2]
    loaded.close()
