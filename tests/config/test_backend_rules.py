"""Which backend, platform and file a model gets, from its config or from the files that are there."""

import pytest

from bireme.config import ModelConfig, complete_backend
from bireme.config.backend_rules import RULES
from bireme.config.model_config import EnsembleStep, ModelEnsembling
from bireme.types import InvalidArgument


@pytest.fixture
def version_dir(tmp_path):
    version = tmp_path / "1"
    version.mkdir()
    return version


def fields(config: ModelConfig) -> tuple[str, str, str]:
    return config.backend, config.platform, config.default_model_filename


FILES = [
    ("model.onnx", "onnxruntime", "onnxruntime_onnx"),
    ("model.onnx/", "onnxruntime", "onnxruntime_onnx"),
    ("model.ort", "onnxruntime", "onnxruntime_onnx"),
    ("model.savedmodel/", "tensorflow", "tensorflow_savedmodel"),
    ("model.graphdef", "tensorflow", "tensorflow_graphdef"),
    ("model.plan", "tensorrt", "tensorrt_plan"),
    ("model.xml", "openvino", ""),
    ("model.pt", "pytorch", "pytorch_libtorch"),
    ("model.pt2", "pytorch", "torch_aoti"),
    ("model.py", "python", ""),
    ("model.jax", "jax", ""),
    ("model.joblib", "sklearn", ""),
    ("model.pkl", "sklearn", ""),
    ("model.skops", "sklearn", ""),
    ("model.ubj", "xgboost", ""),
    ("model.json", "xgboost", ""),
    ("model.bst", "xgboost", ""),
    ("model.txt", "lightgbm", ""),
    ("xgboost.ubj", "fil", ""),
    ("xgboost.json", "fil", ""),
    ("xgboost.model", "fil", ""),
    ("checkpoint.tl", "fil", ""),
]


def make(version_dir, name):
    if name.endswith("/"):
        (version_dir / name).mkdir()
    else:
        (version_dir / name).touch()


@pytest.mark.parametrize(("file", "backend", "platform"), FILES)
def test_file_in_the_version_directory_decides(version_dir, file, backend, platform):
    make(version_dir, file)

    config = complete_backend(ModelConfig(), "m", version_dir)

    assert config.name == "m"
    assert fields(config) == (backend, platform, file.rstrip("/"))


def test_earlier_rule_wins(version_dir):
    for file in ("model.py", "model.onnx", "model.pt"):
        make(version_dir, file)

    assert complete_backend(ModelConfig(), "m", version_dir).backend == "onnxruntime"


@pytest.mark.parametrize("file", ["model.savedmodel", "model.plan/", "model.pt/", "model.graphdef/"])
def test_directory_where_a_file_belongs_and_the_reverse_do_not_count(version_dir, file):
    make(version_dir, file)

    with pytest.raises(InvalidArgument, match="Could not determine backend"):
        complete_backend(ModelConfig(), "m", version_dir)


GIVEN = [
    ({"backend": "onnxruntime"}, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    (
        {"backend": "onnxruntime", "default_model_filename": "net.onnx"},
        ("onnxruntime", "onnxruntime_onnx", "net.onnx"),
    ),
    ({"platform": "onnxruntime_onnx"}, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    ({"default_model_filename": "model.onnx"}, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    ({"platform": "tensorflow_savedmodel"}, ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
    (
        {"backend": "tensorflow", "default_model_filename": "model.savedmodel"},
        ("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    ),
    ({"backend": "tensorflow"}, ("tensorflow", "", "")),
    ({"platform": "tensorrt_plan"}, ("tensorrt", "tensorrt_plan", "model.plan")),
    ({"backend": "tensorrt"}, ("tensorrt", "tensorrt_plan", "model.plan")),
    ({"backend": "openvino"}, ("openvino", "", "model.xml")),
    ({"backend": "pytorch"}, ("pytorch", "pytorch_libtorch", "model.pt")),
    ({"backend": "pytorch", "platform": "torch_aoti"}, ("pytorch", "torch_aoti", "model.pt2")),
    ({"platform": "libtorch"}, ("pytorch", "libtorch", "model.pt")),
    ({"backend": "pytorch", "runtime": "model.py"}, ("pytorch", "pytorch_libtorch", "model.py")),
    (
        {"backend": "pytorch", "platform": "pytorch_libtorch", "runtime": "model.py"},
        ("pytorch", "pytorch_libtorch", "model.py"),
    ),
    ({"default_model_filename": "model.pt2"}, ("pytorch", "torch_aoti", "model.pt2")),
    ({"backend": "python"}, ("python", "", "model.py")),
    ({"backend": "dali"}, ("dali", "", "")),
    ({"backend": "dali", "platform": "p", "default_model_filename": "f"}, ("dali", "p", "f")),
    ({"backend": "onnxruntime", "platform": "odd"}, ("onnxruntime", "odd", "model.onnx")),
    ({"platform": "ensemble"}, ("", "ensemble", "")),
    ({"platform": "odd"}, ("", "odd", "")),
    ({"default_model_filename": "net.bin"}, ("", "", "net.bin")),
]


@pytest.mark.parametrize(("given", "completed"), GIVEN)
def test_config_decides_without_files(given, completed):
    assert fields(complete_backend(ModelConfig(**given), "m", None)) == completed


def test_files_do_not_count_where_the_config_says_something(version_dir):
    make(version_dir, "model.onnx")

    assert complete_backend(ModelConfig(backend="python"), "m", version_dir).backend == "python"
    assert complete_backend(ModelConfig(platform="ensemble"), "m", version_dir).backend == ""


@pytest.mark.parametrize(
    ("backend", "file", "platform"),
    [
        ("tensorflow", "model.graphdef", "tensorflow_graphdef"),
        ("pytorch", "model.pt2", "torch_aoti"),
        ("pytorch", "model.py", "pytorch_libtorch"),
    ],
)
def test_named_backend_finds_its_platform_by_file(version_dir, backend, file, platform):
    make(version_dir, file)

    assert fields(complete_backend(ModelConfig(backend=backend), "m", version_dir)) == (
        backend,
        platform,
        file,
    )


def test_model_named_after_its_backend():
    assert fields(complete_backend(ModelConfig(), "x.identity", None)) == ("identity", "", "model.identity")


def test_name_of_the_config_stays():
    assert complete_backend(ModelConfig(name="other", backend="python"), "m", None).name == "other"


def test_says_what_was_looked_for_and_what_was_found(version_dir):
    make(version_dir, "modle.onnx")

    with pytest.raises(InvalidArgument) as caught:
        complete_backend(ModelConfig(), "m", version_dir)

    assert caught.value.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>', or one of these in '1': "
        f"{', '.join(dict.fromkeys(rule.filename for rule in RULES))}. Found: modle.onnx; did you mean 'model.onnx' instead of 'modle.onnx'?"
    )


def test_a_file_in_place_of_a_folder_is_told_and_the_other_way_round(version_dir):
    make(version_dir, "model.savedmodel")
    with pytest.raises(InvalidArgument, match=r"'model\.savedmodel' must be a folder, but is a file"):
        complete_backend(ModelConfig(), "m", version_dir)

    (version_dir / "model.savedmodel").unlink()
    (version_dir / "model.xml").symlink_to("nowhere")
    with pytest.raises(InvalidArgument, match=r"'model\.xml' is a link that leads nowhere"):
        complete_backend(ModelConfig(), "m", version_dir)

    (version_dir / "model.xml").unlink()
    (version_dir / "model.graphdef").mkdir()
    with pytest.raises(InvalidArgument, match=r"'model\.graphdef' must be a file, but is a folder"):
        complete_backend(ModelConfig(), "m", version_dir)


def test_says_that_there_is_nothing(version_dir):
    with pytest.raises(InvalidArgument, match="Found: nothing"):
        complete_backend(ModelConfig(), "m", version_dir)
    with pytest.raises(InvalidArgument, match="Found: nothing"):
        complete_backend(ModelConfig(), "m", version_dir / "gone")
    with pytest.raises(InvalidArgument, match="or a version directory such as 'm/1' with a model file in it"):
        complete_backend(ModelConfig(), "m", None)


def test_ensemble_without_platform_is_told_what_to_write():
    config = ModelConfig(ensemble_scheduling=ModelEnsembling(step=(EnsembleStep(model_name="a"),)))

    with pytest.raises(InvalidArgument, match='an ensemble must say platform: "ensemble"'):
        complete_backend(config, "m", None)
