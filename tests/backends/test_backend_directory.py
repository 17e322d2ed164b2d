"""Backends that are a directory with a model.py: which names they serve, and where their models look."""

from pathlib import Path

import pytest

from bireme.backends import registry
from bireme.backends.registry import available_backends, find_backend_directory, get_backend
from bireme.engine import ServerOptions
from bireme.engine.version_loader import VersionLoader
from bireme.testing import FakeBackend
from bireme.types import InvalidArgument


@pytest.fixture
def directory(tmp_path):
    """Hold the backends 'mine', 'vllm' and 'onnxruntime', and an empty folder."""
    for name in ("mine", "vllm", "onnxruntime"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.py").touch()
    return str(tmp_path)


@pytest.mark.parametrize("name", ["mine", "vllm"])
def test_a_directory_with_a_model_py_is_a_backend(directory, name):
    assert find_backend_directory(name, directory) == Path(directory) / name
    assert get_backend(name, directory).name == "python"


def test_a_backend_that_is_built_in_comes_first(directory):
    assert find_backend_directory("onnxruntime", directory) is None
    assert get_backend("onnxruntime", directory).name == "onnxruntime"


def test_a_backend_of_an_installed_package_comes_first(directory, monkeypatch):
    monkeypatch.setattr(registry, "_plugins", lambda: {"mine": None})

    assert find_backend_directory("mine", directory) is None


@pytest.mark.parametrize("name", ["empty", "", ".", "..", "mine/", "mine/../vllm", "*"])
def test_other_names_are_none(directory, name):
    assert find_backend_directory(name, directory) is None
    with pytest.raises(
        InvalidArgument, match=r"this server runs .*'mine', 'onnxruntime', .*'python', .*'vllm'"
    ):
        get_backend(name, directory)


@pytest.mark.parametrize("directory", ["", "/nowhere/at/all", __file__])
def test_a_directory_that_is_missing_has_no_backends(directory):
    assert find_backend_directory("mine", directory) is None
    assert available_backends(directory) == available_backends()


def test_a_relative_directory_counts_from_the_working_directory(directory, monkeypatch):
    monkeypatch.chdir(directory)

    assert find_backend_directory("mine", ".") == Path(directory) / "mine"


def test_the_default_is_tritons():
    assert ServerOptions().backend_directory == "/opt/tritonserver/backends"


def test_loads_hand_the_directory_to_the_backend(directory):
    loader = VersionLoader(ServerOptions(backend_directory=directory), {"vllm": FakeBackend()}, None)

    assert loader._directory_of("mine") == Path(directory) / "mine"
    assert loader._directory_of("vllm") is None, "the server was given a backend of that name"
    assert loader._backend("mine").name == "python"
