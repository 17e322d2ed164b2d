"""From plan files to engines: which file for which GPU, what TensorRT refuses and what is said then, plugins, and what is given back."""

import ctypes
import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from bireme.backends import registry
from bireme.backends.interface import Placement
from bireme.types import BackendFailed, InvalidArgument, NotFound, Unsupported
from fake_tensorrt import VERSION, WEIGHTS, X, Y, plan, tensor


def test_the_engine_is_deserialised_on_the_first_gpu_of_the_model(open_model, gpu):
    open_model(config="instance_group { gpus: 1 }")
    assert gpu.cuda.used(1) == WEIGHTS
    assert gpu.cuda.used(0) == 0


def test_each_kind_of_gpu_has_its_engine(open_model, gpu):
    gpu.reset("8.6", "9.0", "7.5")
    files = {"model.plan": plan(compute="7.5"), "a.plan": plan(compute="8.6"), "h.plan": plan(compute="9.0")}
    config = (
        'cc_model_filenames { key: "8.6" value: "a.plan" } cc_model_filenames { key: "9.0" value: "h.plan" }'
    )
    model = open_model(config=config, files=files, num_gpus=3)

    for device in (0, 1, 2):
        instance = model.loaded.create_instance(Placement("m_0", "KIND_GPU", device))
        model.instances.append(instance)
        assert (instance.execute({"x": np.ones((1, 3), np.float32)})["y"] == 2).all()


def test_engines_of_one_model_must_have_the_same_inputs_and_outputs(open_model, gpu):
    gpu.reset("8.6", "9.0")
    other = plan(tensors=[X, tensor("z", "OUTPUT", [-1, 3])])
    config = 'cc_model_filenames { key: "9.0" value: "h.plan" }'
    model = open_model(config=config, files={"model.plan": plan(), "h.plan": other})

    with pytest.raises(
        InvalidArgument, match=r"h.plan' on GPU 1 has other inputs, outputs or profiles than that on GPU 0"
    ):
        model.loaded.create_instance(Placement("m_0", "KIND_GPU", 1))


def test_a_file_that_is_listed_and_missing(open_model):
    with pytest.raises(NotFound, match=r"unable to find '.*/1/h.plan' for model 'm'; .* holds 'model.plan'"):
        open_model(config='cc_model_filenames { key: "8.6" value: "h.plan" }')


def test_the_files_name_may_be_another(open_model):
    open_model(config='default_model_filename: "net.engine"', files={"net.engine": plan()})


REFUSED = [
    (
        plan(version="8.6.1.6"),
        (
            f"the engine was built with TensorRT 8.6.1.6, and {VERSION} is installed: build it again with {VERSION}, or build it to be "
            f"version-compatible and serve with --backend-config=tensorrt,version-compatible=true"
        ),
    ),
    (
        plan(compute="9.0"),
        (
            "the engine was built for GPUs of compute capability 9.0, and this one has 8.6: build it on such a GPU; "
            "cc_model_filenames lists engines for several kinds of GPUs"
        ),
    ),
    (
        plan(plugin="YoloLayer"),
        (
            "the engine uses the plugin YoloLayer, which no library has registered: name its library with "
            "--backend-config=tensorrt,plugins=PATH or in the config's model_operations"
        ),
    ),
    (
        plan(is_compatible=True, version="8.6"),
        (
            "the engine is a version-compatible one: if you trust who made it, serve with "
            "--backend-config=tensorrt,version-compatible=true"
        ),
    ),
    (b"\x00garbage", "Magic tag does not match"),
    (b"", "the file is empty"),
    (b"version https://git-lfs.github.com/spec/v1\n", "the file is a Git LFS pointer"),
]


@pytest.mark.parametrize(("content", "text"), REFUSED)
def test_why_a_file_is_refused_and_what_to_do(open_model, gpu, content, text):
    with pytest.raises(InvalidArgument) as caught:
        open_model(content)

    message = caught.value.message
    assert message.startswith("model 'm': TensorRT cannot load '")
    assert "model.plan' on GPU 0: " in message
    assert text in message


def test_reports_of_other_versions_are_understood(machine):
    advise = import_module("bireme.backends.tensorrt.advice").advise
    told = "Version tag does not match. Note: Current Version: 239, Serialized Engine Version: 237)"
    assert advise(told, "10.3") == (
        "the engine was built with another version of TensorRT than the installed one (10.3): build it again (TensorRT says: "
        f"{told})"
    )
    assert advise("something else", "10.3") == "something else"
    assert "another version" in advise("expecting library version 10.12.0.36 got .", "10.12")


def test_version_compatible_engines_are_run_when_they_are_trusted(open_model):
    open_model(plan(is_compatible=True, version="8.6"), version_compatible="true")


def test_a_tensorrt_that_does_not_start(open_model, gpu, monkeypatch):
    def fail(_logger):
        raise TypeError("pybind11::init(): factory function returned nullptr")

    monkeypatch.setattr(gpu.trt_module, "Runtime", fail)
    with pytest.raises(BackendFailed, match="TensorRT cannot be started on GPU 0; see the log"):
        open_model()


def test_no_memory_for_the_weights(open_model, gpu):
    gpu.reset("8.6", memory=1000)
    with pytest.raises(InvalidArgument, match="Requested size was 4096 bytes"):
        open_model()


def test_a_gpu_that_is_not_there(open_model):
    with pytest.raises(BackendFailed, match=r"cudaSetDevice\(5\) failed: invalid device ordinal"):
        open_model(config="instance_group { gpus: 5 }", num_gpus=6)


@pytest.mark.parametrize(
    ("config", "num_gpus", "kind"),
    [
        ("", 0, "KIND_CPU"),
        ("instance_group { kind: KIND_CPU }", 2, "KIND_CPU"),
        ("instance_group { kind: KIND_MODEL }", 2, "KIND_MODEL"),
    ],
)
def test_engines_run_on_gpus_alone(open_model, config, num_gpus, kind):
    with pytest.raises(Unsupported) as caught:
        open_model(config=config, num_gpus=num_gpus)

    assert caught.value.message == (
        f"unable to load model 'm': TensorRT backend supports only GPU device, and an instance group is {kind}; KIND_AUTO is "
        f"KIND_GPU on a machine with an NVIDIA GPU and its driver"
    )


def test_an_instance_elsewhere_is_refused(open_model):
    with pytest.raises(Unsupported, match="an instance group is KIND_CPU"):
        open_model().loaded.create_instance(Placement("m_0"))


@pytest.mark.parametrize("name", ["INPUT", "OUTPUT"])
def test_vectorised_formats_are_refused_and_all_given_back(open_model, gpu, name):
    tensors = [{**each, "format": "CHW4"} if each["mode"] == name else each for each in (X, Y)]
    with pytest.raises(
        Unsupported, match=rf"{name.lower()} '[xy]' of the engine has the format CHW4; only LINEAR"
    ):
        open_model(plan(tensors=tensors))


# --- TensorRT's log, plugins ---


def test_tensorrts_log_is_ours(open_model, caplog):
    caplog.set_level("INFO", "bireme.backends.tensorrt")
    open_model()
    assert "Loaded engine size" in caplog.text
    assert "model.plan' is on GPU 0" in caplog.text


@pytest.fixture
def libraries(machine, monkeypatch):
    """Libraries that exist, and those that were opened."""
    runtime = import_module("bireme.backends.tensorrt.runtime")
    opened = []

    def open_library(name, mode=0):
        if name is not None and "missing" in name:
            raise OSError(f"{name}: cannot open shared object file")
        opened.append((name, mode))
        return name

    monkeypatch.setattr(runtime.ctypes, "CDLL", open_library)
    monkeypatch.setattr(runtime, "_loaded", {})
    return opened


def test_plugins_are_loaded_once_with_tensorrts_own(open_model, gpu, libraries):
    for _ in range(2):
        open_model(plugins="/lib/a.so; /lib/b.so;")

    assert gpu.trt.plugins_registered == 1
    assert libraries[1:] == [("/lib/a.so", ctypes.RTLD_GLOBAL), ("/lib/b.so", ctypes.RTLD_GLOBAL)]


def test_a_models_own_plugins_are_looked_up_beside_it(open_model, libraries, tmp_path):
    (tmp_path / "own.so").touch()
    open_model(config='model_operations { op_library_filename: [ "own.so", "/lib/other.so" ] }')

    assert [name for name, _ in libraries[1:]] == [str(tmp_path / "own.so"), "/lib/other.so"]


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({"plugins": "/missing.so"}, "", "backend 'tensorrt': plugin library '/missing.so' cannot be loaded"),
        (
            {},
            'model_operations { op_library_filename: "missing.so" }',
            "model 'm': model_operations: plugin library 'missing.so' cannot be loaded",
        ),
    ],
)
def test_a_plugin_library_that_cannot_be_loaded(open_model, libraries, settings, config, message):
    with pytest.raises(InvalidArgument, match=message):
        open_model(config=config, **settings)


def test_tensorrts_own_plugins_may_be_missing(open_model, gpu, libraries, caplog, monkeypatch):
    monkeypatch.setattr(gpu.trt_module, "init_libnvinfer_plugins", lambda _logger, _namespace: False)
    open_model()
    assert "TensorRT's own plugins could not be registered" in caplog.text


# --- what is needed ---


def test_the_backend_is_found_by_its_name(machine):
    assert registry.get_backend("tensorrt").name == "tensorrt"


def test_a_tensorrt_that_is_too_old_is_told(machine, monkeypatch):
    old = ModuleType("tensorrt")
    vars(old).update(vars(machine.trt_module), __version__="8.6.1")
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    _forget(monkeypatch)

    with pytest.raises(Unsupported, match=r"TensorRT 8.6.1 is installed; the backend needs 10 or later"):
        registry.get_backend("tensorrt")


def test_what_to_install_without_tensorrt_or_without_cuda(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    _forget(monkeypatch)
    with pytest.raises(Unsupported, match="pip install cuda-bindings"):
        registry.get_backend("tensorrt")


def _forget(monkeypatch):
    """Have the backend imported anew, in this test alone."""
    for name in [name for name in sys.modules if name.startswith("bireme.backends.tensorrt")]:
        monkeypatch.delitem(sys.modules, name)


def test_error_recorders_keep_what_fits(machine):
    recorder = import_module("bireme.backends.tensorrt.runtime").ErrorRecorder()
    for number in range(20):
        recorder.report_error(3, f"error\n{number % 18}")

    assert recorder.num_errors() == recorder.get_num_errors() == 16
    assert recorder.has_overflowed()
    assert (recorder.get_error_code(1), recorder.get_error_desc(1)) == (3, "error\n1")
    assert recorder.take("none").startswith("error 0; error 1; ")
    assert not recorder.has_overflowed()
    assert recorder.take("none") == "none"
