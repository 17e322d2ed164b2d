"""Backends by name: built in, from other packages, and what is said of those that are not there."""

import sys
from importlib.metadata import EntryPoint

import pytest

from bireme.backends import registry
from bireme.backends.registry import available_backends, get_backend
from bireme.testing import FakeBackend
from bireme.types import InvalidArgument, Unsupported


@pytest.fixture
def install(monkeypatch):
    """Pretend that another package declares an entry point."""

    def pretend(name: str, value: str) -> None:
        entry = EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda group: [entry])

    return pretend


def test_onnxruntime_is_built_in():
    assert get_backend("onnxruntime").name == "onnxruntime"
    assert "onnxruntime" in available_backends()


def test_another_package_may_bring_a_backend(install):
    install("mine", "bireme.testing:FakeBackend")

    assert isinstance(get_backend("mine"), FakeBackend)
    assert {"mine", "onnxruntime", "python"} <= set(available_backends())


@pytest.mark.parametrize("value", ["nowhere_at_all:Backend", "bireme.testing:Nothing", "math:sqrt"])
def test_a_broken_backend_of_another_package_is_named(install, value):
    install("mine", value)

    with pytest.raises(
        Unsupported, match=rf"backend 'mine' \(entry point '{value}'\) cannot be used: \w+Error: "
    ):
        get_backend("mine")


@pytest.mark.parametrize("name", ["dali", "vllm", "tensorrtllm"])
def test_tritons_other_backends_are_not_supported_yet(name):
    with pytest.raises(
        Unsupported,
        match=f"backend '{name}' is not supported yet; this server runs .*'onnxruntime', .*'python'",
    ):
        get_backend(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("onnx_runtime", "unknown backend 'onnx_runtime'; this server runs {all}; did you mean 'onnxruntime'?"),
        ("", "unknown backend ''; this server runs {all}"),
    ],
)  # fmt: skip
def test_an_unknown_backend_is_answered_with_those_there_are(name, expected):
    with pytest.raises(InvalidArgument) as caught:
        get_backend(name)

    assert caught.value.message == expected.format(
        all=", ".join(f"'{each}'" for each in available_backends())
    )


@pytest.fixture
def break_import(monkeypatch):
    """Make the import of onnxruntime raise an error, as if the backend had never been loaded."""

    def arrange(error: ImportError) -> None:
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "onnxruntime":
                    raise error

        loaded = [name for name in sys.modules if name.startswith("bireme.backends.onnxruntime")]
        for name in [*loaded, "onnxruntime"]:
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])

    return arrange


def test_a_framework_that_is_not_installed_is_answered_with_the_command(break_import):
    break_import(ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime"))

    with pytest.raises(Unsupported, match=r"not installed; install it with: pip install onnxruntime"):
        get_backend("onnxruntime")


def test_a_missing_framework_is_named_not_what_it_would_bring_along(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("bireme.backends.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("joblib", "sklearn"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(Unsupported, match=r"needs the package 'sklearn', .* pip install scikit-learn"):
        get_backend("sklearn")


def test_a_framework_that_cannot_be_imported_is_answered_with_the_cause(break_import):
    break_import(ImportError("libgomp.so.1: cannot open shared object file"))

    with pytest.raises(
        Unsupported, match=r"cannot be used: importing 'onnxruntime' failed: libgomp\.so\.1: cannot open"
    ):
        get_backend("onnxruntime")
