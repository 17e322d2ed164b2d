"""Importing a model's file, finding its class, and telling where its code failed."""

import sys
import textwrap

import pytest

from bireme.backends.python.model_file import format_error, load_model_class
from bireme.types import InvalidArgument, NotFound

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return NAME
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Writes files of one model and loads it; the interpreter is as before afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield ModelDirectory(tmp_path / "m")
    for name in set(sys.modules) - before:
        del sys.modules[name]


class ModelDirectory:
    def __init__(self, root):
        self.root = root
        self.version = root / "1"
        self.version.mkdir(parents=True)

    def write(self, text, name="1/model.py"):
        path = self.root / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(text))
        return path

    def load(self, name="1/model.py", **places):
        return load_model_class(self.root / name, model_dir=self.root, version_dir=self.version, **places)


def test_the_class_and_its_module(model):
    model.write("NAME = __name__" + MODEL)
    found = model.load()

    assert found().execute([]) == "1.model"
    assert sys.modules["1.model"].TritonPythonModel is found
    assert sys.modules["1"].model is sys.modules["1.model"]
    assert sys.modules["1.model"].__package__ == "1"


def test_files_beside_the_model(model):
    model.write("NAME = 'absolute'", "1/beside_version.py")
    model.write("NAME = 'relative'", "1/inner/__init__.py")
    model.write("NAME = 'above'", "beside_model.py")
    model.write("NAME = 'backend'", "backend/beside_backend.py")
    model.write(
        """
        import beside_version, beside_model, beside_backend
        from . import inner
        from .beside_version import NAME as again
        NAME = [beside_version.NAME, inner.NAME, beside_model.NAME, beside_backend.NAME, again]
        """
        + textwrap.indent(MODEL, " " * 8)
    )
    backend = model.root / "backend"

    assert model.load(backend_dir=backend)().execute([]) == [
        "absolute",
        "relative",
        "above",
        "backend",
        "absolute",
    ]
    assert sys.path[-3:] == [str(model.version), str(model.root), str(backend)]


def test_the_path_grows_once(model):
    model.write(MODEL)
    model.load()
    size = len(sys.path)
    model.load()

    assert len(sys.path) == size


def test_other_file_names(model):
    model.write("NAME = __name__" + MODEL, "1/my-model.v2.py")

    assert model.load("1/my-model.v2.py")().execute([]) == "1.my-model.v2"


def test_a_version_that_is_a_package(model):
    model.write("VALUE = 5", "1/__init__.py")
    model.write("from . import VALUE as NAME" + MODEL)

    assert model.load()().execute([]) == 5


def test_models_of_one_process_are_kept_apart(model):
    model.write("NAME = 'one'", "1/part.py")
    path = model.write("from .part import NAME" + MODEL)
    first = model.load(package="model_1")
    model.write("NAME = 'two'", "2/part.py")
    model.write(path.read_text(), "2/model.py")
    second = model.load("2/model.py", package="model_2")

    assert (first().execute([]), second().execute([])) == ("one", "two")
    assert first.__module__ == "model_1.model"
    assert "1" not in sys.modules


def test_a_second_load_sees_changed_files(model):
    model.write("NAME = 'old'", "1/part.py")
    model.write("from .part import NAME" + MODEL)
    old = model.load()
    model.write("NAME = 'new!'", "1/part.py")

    assert model.load()().execute([]) == "new!"
    assert old().execute([]) == "old"


def test_a_backend_may_be_called_like_its_framework(model):
    """The file of a backend named ``json`` must get the real module from ``import json``."""
    model.write("import json\nNAME = json.dumps([1])" + MODEL, "json/model.py")
    backend = model.root / "json"

    assert model.load("json/model.py", backend_dir=backend)().execute([]) == "[1]"
    assert "backend_json.model" in sys.modules


def test_a_missing_file(model):
    model.write("", "1/model.onnx")

    with pytest.raises(
        NotFound, match=r"Python model file not found in '.*model\.py'; '.*' holds 'model\.onnx'"
    ):
        model.load()
    with pytest.raises(NotFound, match="there is no directory"):
        model.load("7/model.py")


def test_an_empty_directory(model):
    with pytest.raises(NotFound, match="holds nothing"):
        model.load()


def test_a_file_that_is_no_python(model):
    model.write(MODEL, "1/model.txt")

    with pytest.raises(
        InvalidArgument, match=r"Model name must end with '\.py'\. Model name is \"model\.txt\"\."
    ):
        model.load("1/model.txt")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from pathlib import Path", "it has no class at all"),
        ("class Model: ...\nclass Other: ...", "its classes are 'Model', 'Other'"),
        ("TritonPythonModel = 3", "it has no class at all"),
    ],
)
def test_a_file_without_the_class(model, text, found):
    path = model.write(text)

    with pytest.raises(InvalidArgument) as caught:
        model.load()
    assert caught.value.message == f"model file '{path}' has no class TritonPythonModel; {found}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("def run(self): ...", "'run'"),
        ("pass", "nothing"),
        ("execute = None", "nothing"),
    ],
)
def test_a_class_that_cannot_execute(model, body, found):
    path = model.write(f"class TritonPythonModel:\n    {body}")

    with pytest.raises(InvalidArgument) as caught:
        model.load()
    assert (
        caught.value.message
        == f"Python model {path} does not implement `execute` method. TritonPythonModel has {found}"
    )


def test_an_inherited_execute_will_do(model):
    model.write(
        """
        class Base:
            def execute(self, requests): ...
        class TritonPythonModel(Base): ...
        """
    )

    assert model.load().__name__ == "TritonPythonModel"


def test_a_file_that_fails_is_told_with_its_own_frames(model):
    part = model.write("def fail():\n    raise ValueError('so it is')\n", "1/part.py")
    path = model.write("from .part import fail\n\nfail()\n")

    with pytest.raises(ValueError, match="so it is") as caught:
        model.load()
    text = format_error(caught.value)

    assert text.startswith("ValueError: so it is\n\nAt:\n")
    assert text.splitlines()[3:5] == [f"  {part}(2): fail", f"  {path}(3): <module>"]
    assert "importlib" not in text
    assert "model_file.py(" not in text.replace("test_model_file.py(", "")
    assert "1.model" not in sys.modules


def test_a_file_with_a_syntax_error(model):
    model.write("def")

    with pytest.raises(SyntaxError) as caught:
        model.load()
    assert format_error(caught.value).startswith("SyntaxError: invalid syntax (model.py, line 1)")


def test_an_error_that_was_never_raised_has_no_frames():
    assert format_error(ValueError("x")) == "ValueError: x"


def test_an_error_without_a_text():
    assert format_error(KeyError()) == "KeyError: <EMPTY MESSAGE>"


def test_an_error_whose_text_fails():
    class Torn(Exception):
        def __str__(self):
            raise ValueError

    assert format_error(Torn()) == "Torn: <its text cannot be had: ValueError>"


def test_notes_of_an_error():
    error = ValueError("x")
    error.add_note("first")
    error.add_note("second")

    assert format_error(error) == "ValueError: x\n__notes__ (len=2):\nfirst\nsecond"


def test_words_of_the_server_are_passed_on():
    assert format_error(NotFound("no file")) == "no file"
