"""ONNX models on GPUs: a session for each device, and the truth where one cannot be used. Over a faked CUDA provider."""

import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

from bireme.backends.interface import Placement
from bireme.backends.onnxruntime import runtime, session as session_module
from bireme.config import ModelConfig
from bireme.config.model_config import (
    Accelerator,
    ExecutionAccelerators,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
)
from bireme.types import BackendFailed, Unsupported
from onnx_models import save_add

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
ONES = {"INPUT0": np.ones(16, np.float32), "INPUT1": np.ones(16, np.float32)}


class FakeCudaBuild:
    """An onnxruntime that was built for CUDA; what runs on it runs on the CPU."""

    def __init__(self, started):
        self.opened = []
        self.started = started
        self._make = onnxruntime.InferenceSession

    def open(self, path, options, providers, enable_fallback):
        assert not enable_fallback
        self.opened.append(providers)
        session = self._make(path, options, providers=[CPU])
        names = [name for name, _ in providers]
        return SimpleNamespace(
            _sess=session._sess,
            get_providers=lambda: [name for name in names if name == CPU or self.started],
            get_inputs=session.get_inputs,
            get_outputs=session.get_outputs,
            get_overridable_initializers=session.get_overridable_initializers,
            io_binding=session.io_binding,
            run_with_iobinding=session.run_with_iobinding,
        )


@pytest.fixture(params=[True])
def build(request, monkeypatch):
    made = FakeCudaBuild(started=request.param)
    monkeypatch.setattr(session_module.ort, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(session_module.ort, "InferenceSession", made.open)
    monkeypatch.setattr(session_module, "preload_gpu_libraries", lambda: None)
    return made


@pytest.fixture
def load_model(load, tmp_path):
    """Load a model whose instance group is of the given kind, and close it after the test."""
    models = []

    def load_it(kind, gpus=(), **fields):
        save_add(tmp_path / "1" / "model.onnx")
        models.append(load(instance_group=(ModelInstanceGroup("m", kind, 1, gpus=gpus),), **fields))
        return models[-1]

    yield load_it
    for model in models:
        model.close()


def test_each_gpu_has_one_session_that_its_instances_share(build, load_model):
    model = load_model("KIND_GPU", (1, 0))
    model.complete_config(ModelConfig(name="m"))
    placements = [Placement(f"m_{index}", "KIND_GPU", device) for index, device in enumerate((1, 1, 0, 1))]
    instances = [model.create_instance(placement) for placement in placements]

    assert build.opened == [[(CUDA, {"device_id": device}), (CPU, {})] for device in ("1", "0")]
    for instance in instances:
        np.testing.assert_array_equal(instance.execute(ONES)["OUTPUT0"], np.full(16, 2))
        instance.close()


def test_instances_that_wait_for_a_gpu_never_run_on_the_loop(build, load_model):
    model = load_model("KIND_GPU", (0,))
    assert not model.create_instance(Placement("m_0", "KIND_GPU")).may_run_inline
    assert model.create_instance(Placement("m_1", "KIND_CPU")).may_run_inline
    assert build.opened[1] == [(CPU, {})]


@pytest.mark.parametrize("kind", ["KIND_CPU", "KIND_MODEL"])
def test_elsewhere_the_cpu_runs_it_although_there_is_cuda(build, load_model, kind):
    load_model(kind).create_instance(Placement("m_0", kind))
    assert build.opened == [[(CPU, {})]]


@pytest.mark.parametrize("build", [False], indirect=True)
def test_a_provider_that_did_not_start_is_an_error_and_no_slow_model(build, load_model):
    with pytest.raises(BackendFailed) as caught:
        load_model("KIND_GPU", (0,))
    assert caught.value.message.startswith(f"model 'm': onnxruntime could not start {CUDA} on GPU 0")


def test_accelerators_of_gpus_are_told_to_have_no_effect_on_the_cpu(load_model, caplog):
    caplog.set_level("INFO", "bireme")
    accelerators = ExecutionAccelerators((Accelerator("tensorrt"),))
    load_model("KIND_CPU", optimization=ModelOptimizationPolicy(execution_accelerators=accelerators))
    assert "model 'm': gpu_execution_accelerator has no effect, as no instance is on a GPU" in caplog.text


def test_an_onnxruntime_without_cuda_says_what_to_install(load_model):
    with pytest.raises(Unsupported, match="take the package 'onnxruntime-gpu' in place of 'onnxruntime'"):
        load_model("KIND_GPU", (0,))


@pytest.fixture
def preload(monkeypatch):
    def install(function):
        if function is None:
            monkeypatch.delattr(runtime.ort, "preload_dlls", raising=False)
        else:
            monkeypatch.setattr(runtime.ort, "preload_dlls", function, raising=False)
        runtime.preload_gpu_libraries.cache_clear()
        runtime.preload_gpu_libraries()

    yield install
    runtime.preload_gpu_libraries.cache_clear()


def test_what_onnxruntime_prints_of_missing_libraries_is_logged(preload, caplog, capsys):
    def print_what_is_missing(directory):
        assert not directory
        sys.stdout.write("Failed to load libcudnn.so.9\n")

    preload(print_what_is_missing)
    assert "Failed to load libcudnn.so.9" in caplog.text
    assert not capsys.readouterr().out


def test_older_versions_preload_nothing(preload, caplog):
    preload(None)
    assert not caplog.text
