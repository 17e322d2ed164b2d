"""The tensorrt backend over fakes of TensorRT and CUDA, with a check after each test that nothing is left on the GPUs."""

from __future__ import annotations

import gc
import json
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

from bireme.backends.interface import ModelContext
from bireme.config import UsableGpus, apply_autocomplete, normalise, normalise_instance_groups, parse_text
from fake_cuda import FakeCuda, get_cuda_native_handle
from fake_tensorrt import FakeTensorRt, plan

PACKAGE = "bireme.backends.tensorrt"


class Machine:
    """The fakes that the backend was imported with; `reset` puts in another machine."""

    def __init__(self):
        self.runtime = ModuleType("cuda.bindings.runtime")
        self.trt_module = ModuleType("tensorrt")
        self.reset()

    def reset(self, *capabilities, memory=1 << 30):
        self.cuda = FakeCuda(*(capabilities or ("8.6", "8.6")), memory=memory)
        self.trt = FakeTensorRt(self.cuda)
        vars(self.runtime).update(vars(self.cuda.runtime))
        vars(self.trt_module).update(vars(self.trt.module))


def _forget_backend():
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
    vars(import_module("bireme.backends")).pop("tensorrt", None)


@pytest.fixture(scope="module")
def machine():
    """The backend's modules, imported over the fakes."""
    made = Machine()
    with pytest.MonkeyPatch.context() as patch:
        cuda, bindings, utils = (
            ModuleType(name) for name in ("cuda", "cuda.bindings", "cuda.bindings.utils")
        )
        utils.get_cuda_native_handle = get_cuda_native_handle
        cuda.bindings, bindings.runtime, bindings.utils = bindings, made.runtime, utils
        for module in (cuda, bindings, utils, made.runtime, made.trt_module):
            patch.setitem(sys.modules, module.__name__, module)
        _forget_backend()
        try:
            import_module(PACKAGE)
            yield made
        finally:
            _forget_backend()


@pytest.fixture(autouse=True)
def gpu(machine):
    """A machine with two GPUs, which must be as it was when the test is over."""
    machine.reset()
    yield machine
    if machine.cuda.leaks():
        gc.collect()
    assert machine.cuda.faults == []
    assert machine.cuda.leaks() == {}


@pytest.fixture
def open_model(machine, tmp_path):
    """Load a plan as the server does; whatever a test does not close is closed after it."""
    models = []

    def load(spec=None, config="", *, files=None, num_gpus=2, auto_complete=True, **settings):
        for name, content in (files or {"model.plan": plan() if spec is None else spec}).items():
            path = tmp_path / "1" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        text = f'name: "m" backend: "tensorrt" platform: "tensorrt_plan" {config}'
        parsed = normalise_instance_groups(normalise(parse_text(text, "config.pbtxt")), UsableGpus(num_gpus))
        backend_config = {key.replace("_", "-"): value for key, value in settings.items()}
        ctx = ModelContext("m", 1, tmp_path, tmp_path / "1", parsed, backend_config)
        loaded = import_module(PACKAGE).TensorRtBackend().load(ctx)
        model = SimpleNamespace(loaded=loaded, config=parsed, instances=[], is_open=True)
        models.append(model)
        if auto_complete:
            model.config = apply_autocomplete(parsed, loaded.complete_config(parsed))
        loaded.check_config(model.config)
        return model

    yield load
    for model in models:
        close(model)


def close(model):
    if model.is_open:
        model.is_open = False
        for instance in model.instances:
            instance.close()
        model.instances.clear()
        model.loaded.close()
