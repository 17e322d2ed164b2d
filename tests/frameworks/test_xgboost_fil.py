"""Models made for Triton's FIL backend, with their configs unchanged, of XGBoost and of LightGBM."""

import logging

import lightgbm
import numpy as np
import pytest
import xgboost

from bireme.backends.trees.fil import FilBackend
from bireme.types import InvalidArgument, NotFound, Unsupported
from served_models import ROWS, THREE_CLASSES, TWO_CLASSES, OpenModel, context, parameters, place, serving

X = ROWS.astype(np.float32)


@pytest.fixture(scope="module")
def xgb():
    def train(objective, y, **settings):
        return xgboost.train({"objective": objective, "nthread": 1, **settings}, xgboost.DMatrix(X, y), 5)

    return {
        "binary": train("binary:logistic", TWO_CLASSES),
        "classes": train("multi:softprob", THREE_CLASSES, num_class=3),
        "regression": train("reg:squarederror", ROWS[:, 0]),
    }


@pytest.fixture(scope="module")
def lgb():
    settings = {"objective": "multiclass", "num_class": 3, "verbose": -1, "num_threads": 1}
    return lightgbm.train(settings, lightgbm.Dataset(ROWS, THREE_CLASSES), 5)


def fil_config(num_values: int, *outputs: str, **values: str) -> str:
    """The config as Triton's documentation has it."""
    return f"""
        backend: "fil"
        max_batch_size: 32768
        input [ {{ name: "input__0" data_type: TYPE_FP32 dims: [ 4 ] }} ]
        output [
          {{ name: "output__0" data_type: TYPE_FP32 dims: [ {num_values} ] }}
          {"".join("," + output for output in outputs)}
        ]
        instance_group [{{ kind: KIND_AUTO }}]
        {parameters(**values)}
        dynamic_batching {{}}
    """


SHAP = '{ name: "treeshap_output" data_type: TYPE_FP32 dims: [ 5 ] }'


@pytest.fixture(scope="module")
def served(xgb, lgb, tmp_path_factory):
    root = tmp_path_factory.mktemp("fil")

    def add(name, filename, booster, config) -> None:
        booster.save_model(place(root, name, filename, config))

    json = {"model_type": "xgboost_json", "is_classifier": "true"}
    old = {"output_class": "true", "algo": "ALGO_AUTO", "storage_type": "AUTO", "blocks_per_sm": "0"}
    add("binary", "xgboost.json", xgb["binary"], fil_config(1, SHAP, **json, threshold="0.7"))
    add("both", "xgboost.json", xgb["binary"], fil_config(2, **json, predict_proba="true"))
    add(
        "one",
        "xgboost.ubj",
        xgb["binary"],
        fil_config(1, model_type="xgboost_ubj", predict_proba="true", **old),
    )
    add("classes", "xgboost.json", xgb["classes"], fil_config(1, **json))
    add("probabilities", "xgboost.json", xgb["classes"], fil_config(3, **json, predict_proba="true"))
    add(
        "regression",
        "xgboost.ubj",
        xgb["regression"],
        fil_config(1, model_type="xgboost_ubj", is_classifier="false"),
    )
    add("lgb", "model.txt", lgb, fil_config(1, model_type="lightgbm", is_classifier="true"))
    add("bare", "xgboost.ubj", xgb["classes"], "")
    with serving(root) as running:
        yield running


def own(booster, **kind):
    return booster.predict(xgboost.DMatrix(X), strict_shape=True, **kind)


def test_a_binary_classifier_gives_classes_by_its_threshold(served, xgb):
    found = served.infer("binary", input__0=X)

    assert np.float32 == found["output__0"].dtype
    assert np.array_equal(found["output__0"], own(xgb["binary"]) > 0.7)
    assert np.allclose(found["treeshap_output"], own(xgb["binary"], pred_contribs=True)[:, 0], atol=1e-6)


def test_a_binary_classifier_gives_one_probability_or_both(served, xgb):
    second = own(xgb["binary"])

    assert np.allclose(served.infer("one", input__0=X)["output__0"], second)
    assert np.allclose(served.infer("both", input__0=X)["output__0"], np.hstack([1 - second, second]))


def test_several_classes(served, xgb):
    expected = own(xgb["classes"])

    assert np.array_equal(
        served.infer("classes", input__0=X)["output__0"], expected.argmax(axis=1)[:, np.newaxis]
    )
    assert np.allclose(served.infer("probabilities", input__0=X)["output__0"], expected, atol=1e-6)


def test_a_regression(served, xgb):
    assert np.allclose(served.infer("regression", input__0=X)["output__0"], own(xgb["regression"]), atol=1e-6)


def test_a_lightgbm_model(served, lgb):
    expected = lgb.predict(X, num_threads=1).argmax(axis=1)[:, np.newaxis]

    assert np.array_equal(served.infer("lgb", input__0=X)["output__0"], expected)


def test_without_a_config_the_file_says_what_it_is(served, xgb):
    config = served.client.get_model_config("bare")

    assert "fil" == config["backend"]
    assert [("output__0", ["1"])] == [
        (output["name"], [str(dim) for dim in output["dims"]]) for output in config["output"]
    ]
    assert np.array_equal(
        served.infer("bare", input__0=X[:4])["output__0"][:, 0], own(xgb["classes"])[:4].argmax(axis=1)
    )


def test_the_model_type_says_which_of_two_files_it_is(xgb, lgb, tmp_path):
    path = place(tmp_path, "m", "xgboost.json")
    xgb["binary"].save_model(path)
    lgb.save_model(path.with_name("model.txt"))
    config = (
        f'default_model_filename: "xgboost.json" {parameters(model_type="lightgbm", predict_proba="true")}'
    )

    assert ("output__0", "FP32", (3,)) == OpenModel(FilBackend(), path, config).tensors()[1]


def test_parameters_for_gpus_are_noted_and_ignored(xgb, tmp_path, caplog):
    path = place(tmp_path, "m", "xgboost.json")
    xgb["binary"].save_model(path)

    with caplog.at_level(logging.DEBUG, "bireme"):
        OpenModel(FilBackend(), path, parameters(chunk_size="4", algo="NAIVE", layout="layered"))

    assert "parameters without effect on the CPU: algo, chunk_size, layout" in caplog.text


@pytest.mark.parametrize(
    ("filename", "values", "error", "message"),
    [
        ("checkpoint.tl", {"model_type": "treelite_checkpoint"}, Unsupported, "is a Treelite checkpoint"),
        ("checkpoint.tl", {}, Unsupported, "is a Treelite checkpoint"),
        (
            "xgboost.json",
            {"model_type": "catboost"},
            InvalidArgument,
            "'catboost'; expected 'xgboost_json' or",
        ),
        ("xgboost.json", {"model_type": "xgboost_ubj"}, NotFound, "unable to find '.*xgboost.ubj'"),
        ("xgboost.json", {"threshold": "high"}, InvalidArgument, "'threshold' is 'high'; expected a number"),
        ("xgboost.model", {"model_type": "xgboost"}, InvalidArgument, "XGBoost's binary format of old"),
    ],
)
def test_what_cannot_be_served_is_explained(tmp_path, filename, values, error, message):
    path = place(tmp_path, "m", filename)
    path.write_bytes(b"binf")

    with pytest.raises(error, match=message):
        FilBackend().load(context(path, parameters(**values)))


def test_a_config_with_the_wrong_number_of_classes_is_refused(xgb, tmp_path):
    path = place(tmp_path, "m", "xgboost.json")
    xgb["classes"].save_model(path)

    with pytest.raises(
        InvalidArgument, match=r"output 'output__0': .*dims \[2\] .* the model file has \[-1, 3\]"
    ):
        OpenModel(FilBackend(), path, fil_config(2, predict_proba="true", is_classifier="true"))
