"""Packages of AOTInductor: the C interface of a compiled library, through a library in C that has the same.

Compiling a real package takes torch most of a minute; ``examples/frameworks/build.py --aoti`` makes one.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import zipfile

import numpy as np
import pytest

from bireme.backends.pytorch.runtime import torch
from bireme.types import BackendFailed, InvalidArgument, Unsupported
from pytorch_models import EXPORTED, OpenModel, tensors

LIBRARY = r"""
#include <stddef.h>
#include <unistd.h>
typedef void *Handle;

int AOTInductorModelContainerCreateWithDevice(Handle *c, size_t n, const char *device, const char *dir) {
    *c = (Handle)n;
    return CREATE;
}
int AOTInductorModelContainerDelete(Handle c) { return 0; }
int AOTInductorModelContainerGetNumInputs(Handle c, size_t *n) { *n = 2; return 0; }
int AOTInductorModelContainerGetNumOutputs(Handle c, size_t *n) { *n = 2; return 0; }
int AOTInductorModelContainerGetCallSpec(Handle c, const char **in, const char **out) {
    *in = IN;
    *out = OUT;
    return 0;
}
/* Returns its inputs the other way round: a model becomes the owner of what it is given. */
int AOTInductorModelContainerRun(
    Handle c, Handle *in, size_t num_in, Handle *out, size_t num_out, void *stream, void *proxy) {
    usleep(SLEEP_US);
    out[0] = in[1];
    out[1] = in[0];
    return RUN;
}
"""
LEAF = {"type": None, "context": None, "children_spec": []}
NONE = {"type": "builtins.dict", "context": "[]", "children_spec": []}
ARGUMENTS = {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF, LEAF]}
INPUTS = {"type": "builtins.tuple", "context": "null", "children_spec": [ARGUMENTS, NONE]}
OUTPUTS = {"type": "builtins.dict", "context": '["b", "a"]', "children_spec": [LEAF, LEAF]}
SOURCE = """
    if (arg0_1_expected_dtype != arg0_1_dtype) {
        ss << "input_handles[0]: unmatched dtype, "
           << "expected: " << arg0_1_expected_dtype << "(at::kFloat), "
    if (arg0_1_size[0] < 2) {
        ss << "input_handles[0]: dim value is too small at 0, "
           << "expected it to be >= 2, " << "but got: "
    if (arg0_1_size[0] > 16) {
        ss << "input_handles[0]: dim value is too large at 0, "
           << "expected to be <= 16, " << "but got: "
        ss << "input_handles[1]: unmatched dtype, "
           << "expected: " << arg1_1_expected_dtype << "(at::kLong), "
    if (1 != arg1_1_stride[0]) {
        ss << "input_handles[1]: unmatched stride value at 0, "
"""
"""As torch writes it, shortened."""
CONFIG = tensors("ARGS[0]:FP32:-1 INPUT__1:INT64:-1", "a:FP32:-1 OUTPUT__0:INT64:-1")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Return a function that compiles the library, once for each set of macros."""
    built = {}

    def compile_library(**macros):
        texts = {"IN": json.dumps([1, INPUTS]), "OUT": json.dumps([1, OUTPUTS])}
        macros = {
            "CREATE": 0,
            "RUN": 0,
            "SLEEP_US": 0,
            **{name: json.dumps(text) for name, text in texts.items()},
        } | macros
        key = tuple(sorted(macros.items()))
        if key not in built:
            folder = tmp_path_factory.mktemp("library")
            source = folder / "model.c"
            source.write_text(LIBRARY)
            flags = [f"-D{name}={value}" for name, value in macros.items()]
            subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", folder / "model.so", source], check=True)
            built[key] = (folder / "model.so").read_bytes()
        return built[key]

    return compile_library


@pytest.fixture
def save(tmp_path, build):
    """Return a function that writes a package; more entries may lie in it."""

    def save_package(*, device="cpu", entries=(), source=SOURCE, **macros):
        path = tmp_path / EXPORTED
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            folder = "m/data/aotinductor/model"
            archive.writestr("m/archive_format", "pt2")
            archive.writestr("m/archive_version", "0")
            archive.writestr("m/byteorder", "little")
            archive.writestr("m/.data/version", "3\n")
            archive.writestr(f"{folder}/c.wrapper.so", build(**macros))
            metadata = {"AOTI_DEVICE_KEY": device, "AOTI_PLATFORM": "linux", "AOTI_MACHINE": "x86_64"}
            archive.writestr(f"{folder}/c.wrapper_metadata.json", json.dumps(metadata))
            if source:
                archive.writestr(f"{folder}/c.wrapper.cpp", source)
            for entry in entries:
                archive.writestr(entry, "{}")
        return tmp_path

    return save_package


def given():
    return {"ARGS[0]": np.ones(2, np.float32), "INPUT__1": np.array([5, 6, 7])}


def test_a_package_is_called_through_its_c_interface(save):
    with OpenModel(save(), CONFIG) as model:
        for _ in range(3):
            results = model.execute(**given())

    assert results["a"].tolist() == [1, 1]
    assert results["OUTPUT__0"].tolist() == [5, 6, 7]


def test_other_threads_go_on_while_it_runs(save):
    ended = []

    with OpenModel(save(SLEEP_US=50_000), CONFIG) as model:
        thread = threading.Thread(target=lambda: ended.append(model.execute(**given()) and time.monotonic()))
        thread.start()
        turns = 0
        while thread.is_alive():
            turns += 1

    assert ended
    assert turns > 1000


def test_a_run_that_fails_is_told_with_what_it_was_given(save):
    with (
        OpenModel(save(RUN=1), CONFIG) as model,
        pytest.raises(
            BackendFailed,
            match=r"compiled for other inputs than torch.float32\[2\], torch.int64\[3\]; it wrote",
        ),
    ):
        model.execute(**given())


def test_a_library_that_cannot_start_is_told(save):
    with pytest.raises(InvalidArgument, match="CreateWithDevice of the compiled library failed"):
        OpenModel(save(CREATE=1), CONFIG)


def test_the_names_are_told_where_the_config_has_none(save):
    with pytest.raises(InvalidArgument) as caught:
        OpenModel(save())

    assert 'input [ { name: "ARGS[0]"' in str(caught.value)
    assert 'output [ { name: "b" data_type: TYPE_FP32 dims: [ ... ] }, { name: "a"' in str(caught.value)


def test_a_config_is_compared_with_the_source(save):
    with pytest.raises(InvalidArgument) as caught:
        OpenModel(save(), tensors("ARGS[0]:FP64:-1 INPUT__1:INT64:-1,2", "a:FP32:-1"))

    assert "input 'ARGS[0]': the config's data_type is TYPE_FP64, but the model file has TYPE_FP32" in str(
        caught.value
    )
    assert "input 'INPUT__1': the config's dims [-1, 2], but the model file has [-1]" in str(caught.value)
    with pytest.raises(
        InvalidArgument, match="max_batch_size is 17, but the model was exported for at most 16"
    ):
        OpenModel(save(), "max_batch_size: 17" + CONFIG.replace("[-1]", "[]"))


def test_inputs_are_filled_in_from_the_source(save):
    with OpenModel(save(), 'output { name: "a" data_type: TYPE_FP32 dims: [1] }') as model:
        assert [(each.name, each.data_type) for each in model.config.input] == [
            ("ARGS[0]", "TYPE_FP32"),
            ("ARGS[1]", "TYPE_INT64"),
        ]


def test_without_a_source_the_config_is_taken_at_its_word(save, caplog):
    with OpenModel(save(source=""), CONFIG) as model:
        assert model.execute(**given())["a"].tolist() == [1, 1]

    assert "tells no types and shapes of its inputs, so the config is taken at its word" in caplog.text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            tensors("ARGS[0]:FP32:-1 ARG[1]:INT64:-1", "a:FP32:-1"),
            "input 'ARG[1]' is in the config, but not in the model file",
        ),
        (
            CONFIG.replace('"a"', '"c"'),
            "output 'c' is in the config, but not in the model file, which has 'b', 'a'",
        ),
    ],
)
def test_unknown_names_are_refused(save, text, fault):
    with pytest.raises(InvalidArgument) as caught:
        OpenModel(save(), text)

    assert fault in str(caught.value)


def test_a_package_for_another_device_is_refused(save):
    with pytest.raises(
        Unsupported, match="was compiled for 'cuda' and cannot run on 'cpu'; compile it for that, or"
    ):
        OpenModel(save(device="cuda"), CONFIG)


def test_a_package_with_more_in_it_goes_to_torchs_own_loader(save, monkeypatch):
    opened = []

    class Package:
        class loader:  # noqa: N801 - torch's name
            @staticmethod
            def get_call_spec():
                return json.dumps([1, INPUTS]), json.dumps([1, OUTPUTS])

            @staticmethod
            def run(arguments):
                return arguments[::-1]

    def load_package(path, name, **named):
        opened.append((name, named))
        return Package

    monkeypatch.setattr("torch._inductor.package.load_package", load_package)

    with OpenModel(save(entries=["m/data/aotinductor/model/custom_ops.json"]), CONFIG, count=2) as model:
        assert model.execute(**given())["a"].tolist() == [1, 1]

    assert opened == [("model", {"num_runners": 1, "device_index": -1})]


def test_a_file_that_is_no_library_is_told(save, tmp_path):
    save()
    path = tmp_path / EXPORTED
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, b"no library" if name.endswith(".so") else content)

    with pytest.raises(
        InvalidArgument, match=r"unable to load model 'm': .*(invalid ELF header|file too short)"
    ):
        OpenModel(tmp_path, CONFIG)


def test_strided_inputs_are_made_straight(save):
    strided = np.arange(6, dtype=np.float32)[::2]

    with OpenModel(save(), CONFIG) as model:
        results = model.execute(**{"ARGS[0]": strided, "INPUT__1": np.array([1])})

    assert results["a"].tolist() == [0, 2, 4]
    assert torch.is_grad_enabled()
