"""XGBoost's models, against the library's own predict."""

import logging
import threading

import numpy as np
import pytest
import xgboost

from bireme.backends.interface import Placement
from bireme.backends.trees import xgboost_dense
from bireme.backends.trees.xgboost import XGBoostBackend
from bireme.types import BackendFailed, InvalidArgument, NotFound, Unsupported
from served_models import ROWS, THREE_CLASSES, TWO_CLASSES, OpenModel, context, parameters, place, serving

X = ROWS.astype(np.float32)
ALL = "predict, margin, leaf, contributions"


def train(y, rounds=5, **settings) -> xgboost.Booster:
    matrix = xgboost.DMatrix(X, y)
    return xgboost.train({"nthread": 1, "max_depth": 3, **settings}, matrix, rounds)


@pytest.fixture(scope="module")
def boosters():
    return {
        "binary": train(TWO_CLASSES, objective="binary:logistic"),
        "raw": train(TWO_CLASSES, objective="binary:logitraw"),
        "classes": train(THREE_CLASSES, objective="multi:softprob", num_class=3),
        "class": train(THREE_CLASSES, objective="multi:softmax", num_class=3),
        "regression": train(ROWS[:, 0]),
        "targets": train(ROWS[:, :2]),
        "dart": train(ROWS[:, 1], booster="dart"),
        "linear": train(ROWS[:, 1], booster="gblinear"),
        "forest": train(ROWS[:, 1], rounds=2, num_parallel_tree=3),
    }


@pytest.fixture
def open_model(boosters, tmp_path):
    def open_it(name="binary", *, filename="model.ubj", config="", **settings) -> OpenModel:
        path = place(tmp_path, "m", filename)
        boosters[name].save_model(path)
        return OpenModel(XGBoostBackend(), path, config, **settings)

    return open_it


def own(booster, rows=X, **kind):
    return booster.predict(xgboost.DMatrix(rows), strict_shape=True, **kind)


@pytest.mark.parametrize(
    "name", ["binary", "raw", "classes", "class", "regression", "targets", "dart", "forest"]
)
def test_every_output_is_the_librarys_own(open_model, boosters, name):
    model = open_model(name, config=parameters(outputs=ALL))
    booster = boosters[name]

    found = model.run(input=X)

    groups = own(booster, output_margin=True).shape[1]
    shap = own(booster, pred_contribs=True)
    assert np.allclose(found["predict"], own(booster), atol=1e-6)
    assert np.allclose(found["margin"], own(booster, output_margin=True), atol=1e-6)
    assert np.array_equal(found["leaf"], own(booster, pred_leaf=True).reshape(len(X), -1))
    assert np.allclose(found["contributions"], shap[:, 0] if groups == 1 else shap, atol=1e-6)
    for tensor in model.config.output:
        assert tuple(tensor.dims) == found[tensor.name].shape[1:]


def test_a_linear_booster_has_no_leaves(open_model, boosters):
    model = open_model("linear", config=parameters(outputs="predict,margin,contributions"))

    assert np.allclose(model.run(input=X)["predict"], own(boosters["linear"]), atol=1e-6)
    assert "leaf" not in model.loaded._predictor.describe(model.config).outputs


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("binary", TWO_CLASSES[:, None]),
        ("raw", TWO_CLASSES[:, None]),
        ("classes", THREE_CLASSES[:, None]),
        ("class", THREE_CLASSES[:, None]),
    ],
)
def test_labels_are_class_numbers(open_model, name, labels):
    model = open_model(name, config=parameters(outputs="label"))

    found = model.run(input=X)["label"]

    assert np.int64 == found.dtype
    assert (found == labels).mean() > 0.95


@pytest.mark.parametrize("filename", ["model.ubj", "model.json"])
def test_a_file_tells_its_tensors(open_model, filename):
    model = open_model("classes", filename=filename)

    assert [("input", "FP32", (4,)), ("predict", "FP32", (3,))] == model.tensors()
    assert 4 == model.config.max_batch_size
    assert model.config.dynamic_batching is not None


def test_the_name_of_a_file_need_not_tell_its_format(boosters, tmp_path):
    path = place(tmp_path, "m", "model.bst")
    path.write_bytes(boosters["binary"].save_raw("json"))

    assert [("input", "FP32", (4,)), ("predict", "FP32", (1,))] == OpenModel(XGBoostBackend(), path).tensors()


@pytest.mark.parametrize("kind", ["FP64", "FP16", "INT32", "UINT8", "BOOL"])
def test_rows_of_any_number_are_taken(open_model, boosters, kind):
    rows = np.round(np.abs(ROWS)).astype(
        {"FP64": "f8", "FP16": "f2", "INT32": "i4", "UINT8": "u1", "BOOL": "?"}[kind]
    )
    model = open_model(config=f'input {{ name: "input" data_type: TYPE_{kind} dims: 4 }} max_batch_size: 128')

    assert np.allclose(
        model.run(input=rows)["predict"], own(boosters["binary"], rows.astype("f4")), atol=1e-6
    )


def test_without_the_librarys_c_functions_its_python_method_goes(open_model, boosters, monkeypatch):
    monkeypatch.setattr(xgboost_dense, "getattr", lambda *_: None, raising=False)
    model = open_model("classes", config=parameters(outputs="predict,margin"))

    found = model.run(input=X)

    assert np.allclose(found["predict"], own(boosters["classes"]), atol=1e-6)
    assert np.allclose(found["margin"], own(boosters["classes"], output_margin=True), atol=1e-6)


def test_an_error_of_a_c_function_is_raised(open_model):
    model = open_model()

    with pytest.raises(BackendFailed, match="Number of columns in data must equal"):
        model.run(input=np.zeros((1, 5), np.float32))


def test_rows_may_be_strided_and_read_only(open_model, boosters):
    wide = np.repeat(X, 2, axis=1)[:, ::2]
    wide.flags.writeable = False

    assert np.array_equal(open_model().run(input=wide)["predict"], own(boosters["binary"]))


def test_rows_may_lie_oddly_in_memory(open_model, boosters):
    rows = np.zeros(X.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(X.shape)
    rows[:] = X

    assert np.array_equal(open_model().run(input=rows)["predict"], own(boosters["binary"]))


def test_categories_are_their_codes(tmp_path):
    rows = X.copy()
    rows[:, 3] = np.arange(len(X)) % 5
    settings = {"feature_types": ["q", "q", "q", "c"], "enable_categorical": True}
    matrix = xgboost.DMatrix(rows, TWO_CLASSES, **settings)
    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1, "max_cat_to_onehot": 1}, matrix, 5)
    path = place(tmp_path, "m", "model.ubj")
    booster.save_model(path)

    found = OpenModel(XGBoostBackend(), path).run(input=rows)["predict"]

    assert np.allclose(found[:, 0], booster.predict(matrix), atol=1e-6)


def test_missing_values_follow_the_models_default_ways(open_model, boosters):
    rows = X.copy()
    rows[::2, 0] = np.nan

    assert np.array_equal(open_model().run(input=rows)["predict"], own(boosters["binary"], rows))


def test_another_value_may_mean_missing(open_model, boosters):
    model = open_model(config=parameters(missing="-999"))
    rows = X.copy()
    rows[::2, 0] = -999
    with_nan = np.where(rows == -999, np.nan, rows)

    assert np.array_equal(model.run(input=rows)["predict"], own(boosters["binary"], with_nan))


def test_only_the_first_rounds_may_be_used(open_model, boosters):
    model = open_model(config=parameters(iterations="2", outputs="predict,leaf"))

    found = model.run(input=X)

    assert np.array_equal(found["predict"], own(boosters["binary"], iteration_range=(0, 2)))
    assert (len(X), 2) == found["leaf"].shape


def test_the_best_round_is_the_files_to_say(boosters, tmp_path):
    matrix = xgboost.DMatrix(X, TWO_CLASSES)
    noise = xgboost.DMatrix(X, 1 - TWO_CLASSES)
    stopped = xgboost.train(
        {"nthread": 1, "objective": "binary:logistic"},
        matrix,
        9,
        evals=[(noise, "noise")],
        early_stopping_rounds=3,
        verbose_eval=False,
    )
    path = place(tmp_path, "m", "model.ubj")
    stopped.save_model(path)

    model = OpenModel(XGBoostBackend(), path, parameters(iterations="best"))

    assert 0 == stopped.best_iteration
    assert np.array_equal(model.run(input=X)["predict"], own(stopped, iteration_range=(0, 1)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"iterations": "best"}, "the model file does not say which round was"),
        ({"iterations": "6"}, "parameter 'iterations' is '6', but the model file has 5 rounds"),
        (
            {"iterations": "-1"},
            "parameter 'iterations' is '-1'; expected 'all', 'best' or a number of rounds",
        ),
        ({"missing": "none"}, "parameter 'missing' is 'none'; expected a number"),
        ({"num_threads": "-2"}, "parameter 'num_threads' is '-2'; expected a number of threads"),
        (
            {"outputs": "predict,leafs"},
            "parameter 'outputs' names 'leafs'; this model can give 'predict', 'margin'",
        ),
    ],
)
def test_a_wrong_parameter_is_named(open_model, values, message):
    with pytest.raises(InvalidArgument, match=message):
        open_model(config=parameters(**values))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b'{"a":' * 100_000, "its values are 100000 levels deep"),
        (
            b"binf\x00\x00\x00\x00",
            "it is neither JSON nor UBJSON: it begins with b'binf'. If it has XGBoost's binary format",
        ),
        (b"{}", r"is it what save_model\(\) wrote\?"),
        (b'{"model": 1}', r"is it what save_model\(\) wrote\?"),
        (b'{"learner": {}, "version": [3, 2, 0]}', r"is it what save_model\(\) wrote\?"),
        (b"{L" + bytes(7) + b"\x07learner", r"it ends after 17 bytes, in the midst of a value"),
    ],
)
def test_a_file_that_is_no_model_is_explained(tmp_path, content, message):
    path = place(tmp_path, "m", "model.ubj")
    path.write_bytes(content)

    with pytest.raises(InvalidArgument, match=message) as caught:
        XGBoostBackend().load(context(path))

    assert f"cannot load '{path}'" in caught.value.message
    assert "Stack trace" not in caught.value.message


@pytest.mark.parametrize("form", ["ubj", "json"])
@pytest.mark.parametrize("part", [0.02, 0.1, 0.5, 0.98])
def test_a_truncated_file_is_refused(boosters, tmp_path, form, part):
    raw = boosters["classes"].save_raw(form)
    path = place(tmp_path, "m", f"model.{form}")
    path.write_bytes(raw[: int(len(raw) * part)])

    with pytest.raises(InvalidArgument, match=r"cannot load .*\(is the file complete"):
        XGBoostBackend().load(context(path))


def test_a_missing_file_is_named(tmp_path):
    path = place(tmp_path, "m", "model.ubj")
    (path.parent / "model.xgb").touch()

    with pytest.raises(NotFound, match=r"unable to find '.*model\.ubj' for model 'm'; .* holds 'model.xgb'"):
        XGBoostBackend().load(context(path))


def test_a_config_is_held_against_the_file(open_model):
    with pytest.raises(
        InvalidArgument, match=r"input 'input': the config's dims \[5\] .* the model file has \[-1, 4\]"
    ):
        open_model(
            config='max_batch_size: 8 input { name: "input" data_type: TYPE_FP32 dims: 5 } '
            'output { name: "predict" data_type: TYPE_FP32 dims: 1 }'
        )


def test_a_gpu_is_refused(open_model):
    with pytest.raises(Unsupported, match="KIND_GPU is not supported by the xgboost backend"):
        open_model().loaded.create_instance(Placement("m_0", "KIND_GPU"))


def test_infinity_is_an_error_in_one_line(open_model):
    rows = X.copy()
    rows[0, 0] = np.inf

    with pytest.raises(BackendFailed, match="contains `inf`") as caught:
        open_model(config=parameters(outputs="leaf")).run(input=rows)

    assert "Stack trace" not in caught.value.message
    assert "\n" not in caught.value.message


def test_closed_instances_say_so(open_model):
    model = open_model()
    model.instance.close()
    model.loaded.close()

    with pytest.raises(BackendFailed, match="closed"):
        model.run(input=X)


def test_runs_may_overlap(open_model, boosters):
    model = open_model("classes", config=parameters(outputs=ALL))
    expected = own(boosters["classes"])
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(20):
            found = model.run(input=X)["predict"]
            wrong.extend([] if np.allclose(found, expected, atol=1e-6) else [seed])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_what_the_library_prints_goes_to_the_log(caplog, capfd):
    from bireme.backends.trees import xgboost as backend

    with caplog.at_level(logging.INFO, "bireme.backends.xgboost"):
        backend._CALLBACK(b"[10:00:00] WARNING: /src/x.cc:1: beware")

    assert ["beware"] == [record.message for record in caplog.records]
    assert ("", "") == capfd.readouterr()


def test_threads_are_taken_for_long_runs_alone(open_model):
    nthread = lambda model: model.loaded._predictor._forest._booster.save_config()  # noqa: E731
    short = open_model(config=f"max_batch_size: 8 {parameters(num_threads='3')}")

    assert '"nthread":"1"' in nthread(short)


# Served


@pytest.fixture(scope="module")
def served(boosters, tmp_path_factory):
    root = tmp_path_factory.mktemp("xgboost")
    for name in ("binary", "classes"):
        boosters[name].save_model(place(root, name, "model.ubj"))
    slow = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 20000 } instance_group { count: 2 }"
    boosters["classes"].save_model(place(root, "batched", "model.json", slow))
    with serving(root) as running:
        yield running


def test_a_folder_without_a_config_is_served(served, boosters):
    assert np.array_equal(served.infer("binary", input=X[:3])["predict"], own(boosters["binary"], X[:3]))


def test_requests_share_a_batch(served, boosters):
    expected = own(boosters["classes"])

    answers, rows, runs = served.infer_at_once("batched", [{"input": X[row : row + 1]} for row in range(8)])

    assert 8 == rows
    assert runs < 8
    assert all(np.allclose(answers[row]["predict"], expected[row : row + 1], atol=1e-6) for row in range(8))


def test_a_wrong_number_of_features_is_the_callers_mistake(served):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match=r"\[400\].*Expected \[-1,4\], got \[1,3\]"):
        served.infer("binary", input=X[:1, :3])
