"""LightGBM's models, against the library's own predict."""

import logging

import lightgbm
import numpy as np
import pytest

from bireme.backends.interface import Placement
from bireme.backends.trees.lightgbm import LightGbmBackend
from bireme.types import InvalidArgument, NotFound, Unsupported
from served_models import ROWS, THREE_CLASSES, TWO_CLASSES, OpenModel, context, parameters, place, serving


def train(objective, y, rounds=5, **settings) -> lightgbm.Booster:
    settings = {"objective": objective, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5, **settings}
    return lightgbm.train(settings, lightgbm.Dataset(ROWS, y), rounds)


@pytest.fixture(scope="module")
def boosters():
    return {
        "binary": train("binary", TWO_CLASSES),
        "classes": train("multiclass", THREE_CLASSES, num_class=3),
        "one_by_one": train("multiclassova", THREE_CLASSES, num_class=3),
        "regression": train("regression", ROWS[:, 0]),
        "forest": train("regression", ROWS[:, 1], boosting="rf", bagging_freq=1, bagging_fraction=0.5),
    }


@pytest.fixture
def open_model(boosters, tmp_path):
    def open_it(name="binary", *, config="", **settings) -> OpenModel:
        path = place(tmp_path, "m", "model.txt")
        boosters[name].save_model(path)
        return OpenModel(LightGbmBackend(), path, config, **settings)

    return open_it


def own(booster, rows=ROWS, **kind):
    return booster.predict(rows, num_threads=1, **kind).reshape(len(rows), -1)


@pytest.mark.parametrize("name", ["binary", "classes", "one_by_one", "regression", "forest"])
def test_every_output_is_the_librarys_own(open_model, boosters, name):
    model = open_model(name, config=parameters(outputs="predict, margin, leaf, contributions"))
    booster = boosters[name]

    found = model.run(input=ROWS)

    shap = own(booster, pred_contrib=True)
    groups = booster.num_model_per_iteration()
    assert np.allclose(found["predict"], own(booster))
    assert np.allclose(found["margin"], own(booster, raw_score=True))
    assert np.array_equal(found["leaf"], own(booster, pred_leaf=True))
    assert np.allclose(found["contributions"], shap if groups == 1 else shap.reshape(len(ROWS), groups, -1))
    for tensor in model.config.output:
        assert tuple(tensor.dims) == found[tensor.name].shape[1:]


@pytest.mark.parametrize(
    ("name", "labels"), [("binary", TWO_CLASSES), ("classes", THREE_CLASSES), ("one_by_one", THREE_CLASSES)]
)
def test_labels_are_class_numbers(open_model, name, labels):
    found = open_model(name, config=parameters(outputs="label")).run(input=ROWS)["label"]

    assert np.int64 == found.dtype
    assert (found[:, 0] == labels).mean() > 0.95


def test_a_regression_has_no_labels(open_model):
    with pytest.raises(InvalidArgument, match="parameter 'outputs' names 'label'"):
        open_model("regression", config=parameters(outputs="label"))


def test_a_file_tells_its_tensors(open_model):
    model = open_model("classes", default_max_batch_size="32")

    assert [("input", "FP64", (4,)), ("predict", "FP64", (3,))] == model.tensors()
    assert 32 == model.config.max_batch_size


def test_a_config_may_ask_for_single_precision(open_model, boosters):
    config = """
        max_batch_size: 8
        input { name: "input" data_type: TYPE_FP32 dims: 4 }
        output { name: "predict" data_type: TYPE_FP32 dims: 1 }
    """
    rows = ROWS.astype(np.float32)

    found = open_model(config=config).run(input=rows)["predict"]

    assert np.float32 == found.dtype
    assert np.allclose(found, own(boosters["binary"], rows.astype(np.float64)), atol=1e-6)


def test_missing_values_follow_the_models_default_ways(open_model, boosters):
    rows = ROWS.copy()
    rows[::2, 0] = np.nan

    assert np.array_equal(open_model().run(input=rows)["predict"], own(boosters["binary"], rows))


def test_only_the_first_rounds_may_be_used(open_model, boosters):
    model = open_model("classes", config=parameters(iterations="2", outputs="predict,leaf"))

    found = model.run(input=ROWS)

    assert np.allclose(found["predict"], own(boosters["classes"], num_iteration=2))
    assert (len(ROWS), 6) == found["leaf"].shape


def test_more_rounds_than_there_are_is_a_fault(open_model):
    with pytest.raises(
        InvalidArgument, match="parameter 'iterations' is '6', but the model file has 5 rounds"
    ):
        open_model(config=parameters(iterations="6"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"{}", "it is no model in LightGBM's text format: it begins with b'{}', expected b'tree'"),
        (b"tree\nversion=v4\n\nend of trees\n", "its head has no num_class, num_tree_per_iteration"),
    ],
)
def test_a_file_that_is_no_model_is_explained(tmp_path, content, message):
    path = place(tmp_path, "m", "model.txt")
    path.write_bytes(content)

    with pytest.raises(InvalidArgument, match=message) as caught:
        LightGbmBackend().load(context(path))

    assert f"cannot load '{path}'" in caught.value.message


@pytest.mark.parametrize("part", [0.02, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(boosters, tmp_path, part):
    text = boosters["classes"].model_to_string().encode()
    path = place(tmp_path, "m", "model.txt")
    path.write_bytes(text[: int(text.index(b"end of parameters") * part)])

    with pytest.raises(InvalidArgument, match=r"cannot load .*\(is the file complete"):
        LightGbmBackend().load(context(path))


def test_what_the_library_itself_finds_is_told(boosters, tmp_path):
    path = place(tmp_path, "m", "model.txt")
    path.write_text(boosters["binary"].model_to_string().replace("feature_infos=", "feature_infos=none "))

    with pytest.raises(InvalidArgument, match=r"cannot load .*: Wrong size of feature_infos"):
        LightGbmBackend().load(context(path))


def test_what_the_library_would_print_goes_to_the_log(open_model, capfd, caplog):
    with caplog.at_level(logging.DEBUG, "bireme"):
        open_model()
        lightgbm.Dataset(np.zeros((50, 2)), np.zeros(50), params={"verbose": 1}).construct()

    assert ("", "") == capfd.readouterr()
    assert "There are no meaningful features" in caplog.text


def test_a_missing_file_is_named(tmp_path):
    path = place(tmp_path, "m", "model.txt")

    with pytest.raises(NotFound, match=r"unable to find '.*model\.txt' for model 'm'; .* holds nothing"):
        LightGbmBackend().load(context(path))


def test_a_gpu_is_refused(open_model):
    with pytest.raises(Unsupported, match="KIND_GPU is not supported by the lightgbm backend"):
        open_model().loaded.create_instance(Placement("m_0", "KIND_GPU"))


# Served


@pytest.fixture(scope="module")
def served(boosters, tmp_path_factory):
    root = tmp_path_factory.mktemp("lightgbm")
    boosters["binary"].save_model(place(root, "binary", "model.txt"))
    batching = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    boosters["classes"].save_model(
        place(root, "batched", "model.txt", f"{batching} {parameters(outputs='predict,leaf')}")
    )
    isolated = parameters(isolation="process")
    boosters["classes"].save_model(place(root, "isolated", "model.txt", isolated))
    with serving(root) as running:
        yield running


def test_a_folder_without_a_config_is_served(served, boosters):
    assert np.array_equal(
        served.infer("binary", input=ROWS[:3])["predict"], own(boosters["binary"], ROWS[:3])
    )


def test_requests_share_a_batch(served, boosters):
    answers, rows, runs = served.infer_at_once(
        "batched", [{"input": ROWS[row : row + 1]} for row in range(8)]
    )

    assert 8 == rows
    assert runs < 8
    assert np.allclose(
        np.concatenate([each["predict"] for each in answers]), own(boosters["classes"], ROWS[:8])
    )
    assert [(1, 15)] * 8 == [each["leaf"].shape for each in answers]


def test_a_model_may_have_a_process_of_its_own(served, boosters):
    expected = own(boosters["classes"], ROWS[:3])

    assert np.allclose(served.infer("isolated", input=ROWS[:3])["predict"], expected)


def test_a_wrong_number_of_features_is_the_callers_mistake(served):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match=r"\[400\].*Expected \[-1,4\], got \[1,5\]"):
        served.infer("binary", input=np.ones((1, 5)))
