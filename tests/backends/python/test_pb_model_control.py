"""Loading and unloading models from within a model."""

import pytest

from bireme.backends.python import pb_utils
from bireme.types import InvalidArgument, Unsupported


def refused(text):
    return pytest.raises(pb_utils.TritonModelException, match=text)


def test_what_the_server_is_asked(server):
    pb_utils.load_model("m")
    pb_utils.load_model(model_name="m", config="{}", files={"file:1/model.onnx": b"x"})
    pb_utils.unload_model("m")
    pb_utils.unload_model(model_name="m", unload_dependents=True)

    assert pb_utils.is_model_ready("m")
    assert pb_utils.is_model_ready(model_name="m", model_version="3")
    assert server.calls == [
        ("load", "m", "", None),
        ("load", "m", "{}", {"file:1/model.onnx": b"x"}),
        ("unload", "m", False),
        ("unload", "m", True),
        ("ready", "m", ""),
        ("ready", "m", "3"),
    ]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: pb_utils.load_model("m"), "Failed to load model: no"),
        (lambda: pb_utils.unload_model("m"), "Failed to unload model: no"),
        (lambda: pb_utils.is_model_ready("m"), "Failed to check model readiness: no"),
    ],
)
@pytest.mark.parametrize("error", [Unsupported, InvalidArgument, RuntimeError])
def test_refusals_are_told(server, call, text, error):
    server.failure = error("no")

    with refused(f"^{text}$"):
        call()


def test_files_are_a_dictionary(server):
    with refused("failed to load model 'm', files should be a dictionary of file paths and file contents"):
        pb_utils.load_model("m", "{}", [b"x"])


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb_utils.load_model(None),
        lambda: pb_utils.load_model("m", {}),
        lambda: pb_utils.load_model("m", "{}", {"file:1/m": "text"}),
        lambda: pb_utils.unload_model(1),
        lambda: pb_utils.is_model_ready("m", 1),
    ],
)
def test_arguments_of_the_wrong_type(server, call):
    with pytest.raises(TypeError, match="must be"):
        call()


@pytest.mark.parametrize("version", ["x", "-1", "1.5", "²"])
def test_versions_are_numbers(server, version):
    with refused("failed to get model version from specified version string"):
        pb_utils.is_model_ready("m", version)


def test_outside_of_models_there_is_no_server(nowhere):
    with refused("Failed to load model: no model is running"):
        pb_utils.load_model("m")


def test_the_directory_of_the_model(server):
    assert pb_utils.get_model_dir() == "/models/asker/1"
