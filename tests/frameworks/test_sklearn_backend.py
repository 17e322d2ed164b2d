"""Estimators and pipelines of scikit-learn, against their own methods."""

import logging
import pickle
import sys
import threading
import warnings
from types import ModuleType

import joblib
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest, RandomForestClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from bireme.backends.interface import Placement
from bireme.backends.sklearn import estimator_file, tables
from bireme.backends.sklearn.backend import SklearnBackend
from bireme.backends.sklearn.estimators import is_foreign, limit_jobs, parts_of, select_by_number
from bireme.types import InvalidArgument, NotFound, Unsupported
from served_models import (
    RNG,
    ROWS,
    THREE_CLASSES,
    TWO_CLASSES,
    OpenModel,
    context,
    parameters,
    place,
    serving,
)

WORDS = np.array(["no", "yes"], np.object_)[TWO_CLASSES]
TOWNS = np.array(["Berne", "Genève", "Ulm"], np.object_)[RNG.integers(0, 3, len(ROWS))]
FLOORS = RNG.integers(0, 3, len(ROWS))
DOCUMENTS = ["a good day" if yes else "a bad night" for yes in TWO_CLASSES]


def mixed_table() -> np.ndarray:
    """Size, town, floor."""
    table = np.empty((len(ROWS), 3), np.object_)
    table[:, 0], table[:, 1], table[:, 2] = ROWS[:, 0], TOWNS, FLOORS
    return table


def encode(texts) -> np.ndarray:
    """As the server has them: a column of bytes."""
    return np.array([[text.encode()] for text in texts], np.object_)


@pytest.fixture(scope="module")
def flats():
    """A pipeline for tables with a column of texts."""
    encoder = ColumnTransformer([("size", StandardScaler(), [0]), ("place", OneHotEncoder(), [1, 2])])
    return make_pipeline(encoder, LogisticRegression()).fit(mixed_table(), WORDS)


@pytest.fixture(scope="module")
def flats_by_name(flats):
    """As if it had been fitted on a DataFrame: columns have names, and are selected by them."""
    named = pickle.loads(pickle.dumps(flats))
    names = np.array(["size", "town", "floor"], np.object_)
    encoder = named.steps[0][1]
    for part in (named.steps[0][1],):
        part.feature_names_in_ = names
    encoder.transformers_ = [
        (name, part, [names[number] for number in selected]) for name, part, selected in encoder.transformers_
    ]
    encoder.transformers_[0][1].feature_names_in_ = names[:1]
    encoder.transformers_[1][1].feature_names_in_ = names[1:]
    return named


@pytest.fixture
def open_model(tmp_path):
    def open_it(estimator, config="", filename="model.joblib", **settings) -> OpenModel:
        path = place(tmp_path, "m", filename)
        joblib.dump(estimator, path)
        return OpenModel(SklearnBackend(), path, config, **settings)

    return open_it


def test_a_classifier_gives_classes_and_probabilities(open_model):
    estimator = LogisticRegression().fit(ROWS, TWO_CLASSES)
    model = open_model(estimator)

    found = model.run(input=ROWS)

    assert [
        ("input", "FP64", (4,)),
        ("predict", "INT64", (1,)),
        ("predict_proba", "FP64", (2,)),
    ] == model.tensors()
    assert np.array_equal(found["predict"][:, 0], estimator.predict(ROWS))
    assert np.array_equal(found["predict_proba"], estimator.predict_proba(ROWS))


def test_classes_may_be_words(open_model):
    estimator = SVC().fit(ROWS, WORDS)
    model = open_model(estimator, parameters(outputs="predict, decision_function"))

    found = model.run(input=ROWS)

    assert ("predict", "BYTES", (1,)) == model.tensors()[1]
    assert estimator.predict(ROWS).tolist() == found["predict"][:, 0].tolist()
    assert np.array_equal(found["decision_function"][:, 0], estimator.decision_function(ROWS))


def test_a_regression_may_have_several_targets(open_model):
    estimator = Ridge().fit(ROWS, ROWS[:, :2])
    model = open_model(estimator)

    assert [("input", "FP64", (4,)), ("predict", "FP64", (2,))] == model.tensors()
    assert np.array_equal(model.run(input=ROWS)["predict"], estimator.predict(ROWS))


@pytest.mark.parametrize(
    ("estimator", "outputs"),
    [
        (PCA(2), {"transform": ("FP64", (2,))}),
        (KMeans(3, n_init=1), {"predict": ("INT32", (1,))}),
        (IsolationForest(n_estimators=3), {"predict": ("INT64", (1,))}),
        (StandardScaler(), {"transform": ("FP64", (4,))}),
    ],
)
def test_other_estimators_give_what_they_are_for(open_model, estimator, outputs):
    estimator.fit(ROWS)
    model = open_model(estimator)

    assert outputs == {name: rest for name, *rest in model.tensors()[1:] for rest in [tuple(rest)]}
    (name,) = outputs
    own = getattr(estimator, name)(ROWS)
    assert np.array_equal(model.run(input=ROWS)[name], own.reshape(len(ROWS), -1))


def test_every_method_may_be_asked_for(open_model):
    estimator = KMeans(3, n_init=1).fit(ROWS)
    config = """
        max_batch_size: 200
        input { name: "input" data_type: TYPE_FP32 dims: 4 }
        output [
          { name: "transform" data_type: TYPE_FP32 dims: 3 }, { name: "predict" data_type: TYPE_INT64 dims: 1 }
        ]
    """
    rows = ROWS.astype(np.float32)

    found = open_model(estimator, config).run(input=rows)

    assert ("float32", "int64") == (found["transform"].dtype.name, found["predict"].dtype.name)
    assert np.allclose(found["transform"], estimator.transform(rows), atol=1e-5)


def test_documents_go_in_as_texts(open_model):
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(DOCUMENTS, WORDS)
    model = open_model(pipeline)

    found = model.run(input=encode(DOCUMENTS))

    assert ("input", "BYTES", (1,)) == model.tensors()[0]
    assert pipeline.predict(DOCUMENTS).tolist() == found["predict"][:, 0].tolist()


def test_sparse_results_are_filled_up(open_model):
    vectorizer = TfidfVectorizer().fit(DOCUMENTS)

    found = open_model(vectorizer).run(input=encode(DOCUMENTS[:3]))["transform"]

    assert np.array_equal(found, vectorizer.transform(DOCUMENTS[:3]).toarray())


def test_columns_of_different_kinds_are_inputs_of_their_own(open_model, flats):
    model = open_model(flats)

    found = model.run(x0=ROWS[:, :1], x1=encode(TOWNS), x2=FLOORS[:, np.newaxis])

    assert [("x0", "FP64", (1,)), ("x1", "BYTES", (1,)), ("x2", "INT64", (1,))] == model.tensors()[:3]
    assert flats.predict(mixed_table()).tolist() == found["predict"][:, 0].tolist()
    assert np.array_equal(found["predict_proba"], flats.predict_proba(mixed_table()))


def test_columns_that_a_dataframe_named_keep_their_names_and_need_no_dataframe(
    open_model, flats, flats_by_name
):
    model = open_model(flats_by_name)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")  # as the backend does, once
        found = model.run(size=ROWS[:, :1], town=encode(TOWNS), floor=FLOORS[:, np.newaxis])

    assert ["size", "town", "floor"] == [tensor.name for tensor in model.config.input]
    assert np.array_equal(found["predict_proba"], flats.predict_proba(mixed_table()))


def test_a_config_that_lists_columns_has_them_apart(open_model):
    estimator = LogisticRegression().fit(ROWS, TWO_CLASSES)
    config = " ".join(f'input {{ name: "x{index}" data_type: TYPE_FP32 dims: 1 }}' for index in range(4))
    model = open_model(estimator, f"max_batch_size: 128 {config}")

    found = model.run(**{f"x{index}": ROWS[:, [index]].astype(np.float32) for index in range(4)})

    assert np.array_equal(found["predict"][:, 0], estimator.predict(ROWS.astype(np.float32)))


def test_a_parameter_has_columns_apart(open_model):
    estimator = LogisticRegression().fit(ROWS, TWO_CLASSES)

    model = open_model(estimator, parameters(inputs="columns", outputs="predict"))

    assert ["x0", "x1", "x2", "x3"] == [tensor.name for tensor in model.config.input]
    assert (len(ROWS), 1) == model.run(**{f"x{index}": ROWS[:, [index]] for index in range(4)})[
        "predict"
    ].shape


def test_texts_that_are_all_categories_are_a_matrix(open_model):
    encoder = OneHotEncoder(handle_unknown="ignore").fit(np.column_stack([TOWNS, WORDS]))
    model = open_model(encoder)
    table = np.hstack([encode(TOWNS), encode(WORDS)])

    assert [("input", "BYTES", (2,)), ("transform", "FP64", (5,))] == model.tensors()
    expected = encoder.transform(np.column_stack([TOWNS, WORDS])).toarray()
    assert np.array_equal(model.run(input=table)["transform"], expected)


def test_texts_that_are_no_utf8_are_the_callers_mistake(open_model):
    encoder = OneHotEncoder().fit(TOWNS[:, np.newaxis])

    with pytest.raises(InvalidArgument, match=r"input 'input' is not UTF-8 text .*b'\\xff'"):
        open_model(encoder).run(input=np.array([[b"\xff"]], np.object_))


class Frames:
    """Stands for a package of data frames."""

    made: list[dict] = []  # noqa: RUF012

    @classmethod
    def DataFrame(cls, columns):
        cls.made.append(columns)
        return np.column_stack(list(columns.values()))


@pytest.mark.parametrize("inputs", ["columns", "matrix"])
def test_a_dataframe_is_made_where_the_config_asks_for_one(open_model, monkeypatch, inputs):
    monkeypatch.setattr(tables, "import_module", lambda name: Frames)
    Frames.made.clear()
    estimator = LogisticRegression().fit(ROWS, TWO_CLASSES)
    model = open_model(estimator, parameters(frame="polars", inputs=inputs))
    columns = {f"x{index}": ROWS[:, [index]] for index in range(4)}

    found = model.run(**(columns if inputs == "columns" else {"input": ROWS}))

    assert np.array_equal(found["predict"][:, 0], estimator.predict(ROWS))
    assert ["x0", "x1", "x2", "x3"] == list(Frames.made[-1])
    assert (len(ROWS),) == Frames.made[-1]["x0"].shape


def test_a_pipeline_that_needs_a_dataframe_gets_one(open_model):
    table = pd.DataFrame({"width": ROWS[:, 0], "town": TOWNS, "floor": FLOORS})
    pipeline = make_pipeline(
        FunctionTransformer(pd.DataFrame.eval, kw_args={"expr": "area = width * floor"}),
        ColumnTransformer(
            [("town", OneHotEncoder(handle_unknown="ignore"), ["town"])], remainder="passthrough"
        ),
        LogisticRegression(max_iter=1000),
    ).fit(table, WORDS)
    columns = "".join(
        f'input {{ name: "{name}" data_type: TYPE_{kind} dims: 1 }} '
        for name, kind in [("width", "FP64"), ("town", "STRING"), ("floor", "INT64")]
    )

    found = open_model(pipeline, parameters(frame="pandas") + "max_batch_size: 128 " + columns).run(
        width=ROWS[:, :1], town=encode(TOWNS), floor=FLOORS[:, np.newaxis]
    )

    assert pipeline.predict(table).tolist() == found["predict"][:, 0].tolist()
    assert np.allclose(found["predict_proba"], pipeline.predict_proba(table))


def test_a_dataframes_package_may_be_missing(open_model, monkeypatch):
    def import_nothing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(tables, "import_module", import_nothing)

    with pytest.raises(
        Unsupported, match="'frame' is 'pandas', which is not installed; install it with: pip install"
    ):
        open_model(LogisticRegression().fit(ROWS, TWO_CLASSES), parameters(frame="pandas"))


def test_half_precision_is_widened(open_model):
    estimator = LogisticRegression().fit(ROWS, TWO_CLASSES)
    config = 'max_batch_size: 128 input { name: "input" data_type: TYPE_FP16 dims: 4 }'
    rows = ROWS.astype(np.float16)

    found = open_model(estimator, config).run(input=rows)["predict_proba"]

    assert np.allclose(found, estimator.predict_proba(rows.astype(np.float32)), atol=1e-6)


# Threads


def test_no_part_starts_more_workers_than_it_may():
    voting = VotingClassifier([("a", RandomForestClassifier(2)), ("b", LogisticRegression())])
    voting.fit(ROWS, TWO_CLASSES)
    voting.n_jobs = 6  # only now: fitting would start processes
    voting.estimators_[0].n_jobs = -1

    assert 3 == limit_jobs(voting, 3)
    assert {None, 1, 3} >= {part.n_jobs for part in parts_of(voting) if hasattr(part, "n_jobs")}
    assert 1 == limit_jobs(LogisticRegression(), 3)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_estimators_of_tree_libraries_are_served_too(open_model, library):
    if library == "xgboost":
        estimator = xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(ROWS, TWO_CLASSES)
    else:
        estimator = lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1).fit(ROWS, TWO_CLASSES)
    own = estimator.predict_proba(ROWS)
    estimator.n_jobs = None  # all cores
    model = open_model(estimator)

    assert np.allclose(own, model.run(input=ROWS)["predict_proba"], atol=1e-6)
    assert 1 == model.loaded._predictor._estimator.n_jobs
    assert model.instance.may_run_inline


def test_what_may_wait_does_not_run_on_the_loop(open_model, tmp_path):
    forest = RandomForestClassifier(2, n_jobs=2).fit(ROWS, TWO_CLASSES)

    assert open_model(forest).instance.may_run_inline
    joblib.dump(forest, tmp_path / "m" / "1" / "model.joblib")
    workers = OpenModel(SklearnBackend(), tmp_path / "m" / "1" / "model.joblib", parameters(num_threads="2"))
    assert not workers.instance.may_run_inline
    assert is_foreign(make_pipeline(FunctionTransformer(), Ridge()))
    assert not is_foreign(make_pipeline(StandardScaler(), Ridge()))


def test_threads_share_an_estimator(open_model):
    estimator = LogisticRegression().fit(ROWS, TWO_CLASSES)
    model = open_model(estimator, "instance_group { count: 2 kind: KIND_CPU }")
    other = model.loaded.create_instance(Placement("m_1"))
    expected = estimator.predict_proba(ROWS)
    wrong: list[bool] = []

    def work(instance) -> None:
        for _ in range(10):
            found = instance.execute({"input": ROWS})["predict_proba"]
            wrong.extend([] if np.array_equal(found, expected) else [True])

    threads = [threading.Thread(target=work, args=(instance,)) for instance in (model.instance, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_selections_by_name_become_numbers(flats, flats_by_name):
    named = pickle.loads(pickle.dumps(flats_by_name))

    select_by_number(named)

    selected = [selection for _, _, selection in named.steps[0][1].transformers_]
    assert [selection for _, _, selection in flats.steps[0][1].transformers_] == selected


# Files


@pytest.mark.parametrize("filename", ["model.pkl", "model.joblib"])
def test_a_pickle_is_read(tmp_path, filename):
    path = place(tmp_path, "m", filename)
    path.write_bytes(pickle.dumps(LogisticRegression().fit(ROWS, THREE_CLASSES)))

    assert ("predict_proba", "FP64", (3,)) == OpenModel(SklearnBackend(), path).tensors()[-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"hello there", "cannot load"),
        (
            pickle.dumps({"a": 1}),
            "holds a dict; expected a fitted estimator, with one of the methods predict",
        ),
        (pickle.dumps(LogisticRegression()), "the estimator is not fitted"),
        (pickle.dumps(ROWS)[:-200], "cannot load"),
        (b"c__main__\nNothing\n.", "put it into a module that can be imported"),
    ],
)
@pytest.mark.parametrize("filename", ["model.pkl", "model.joblib"])
def test_a_file_that_holds_no_estimator_is_explained(tmp_path, content, message, filename):
    path = place(tmp_path, "m", filename)
    path.write_bytes(content)

    with pytest.raises(InvalidArgument, match=message):
        SklearnBackend().load(context(path))


def test_a_module_that_is_missing_is_named(tmp_path):
    path = place(tmp_path, "m", "model.pkl")
    path.write_bytes(b"cno_such_package.models\nThing\n.")

    with pytest.raises(
        Unsupported, match="needs the Python module 'no_such_package', which is not installed here"
    ):
        SklearnBackend().load(context(path))


def test_another_version_of_scikit_learn_is_told_in_the_log(tmp_path, caplog):
    path = place(tmp_path, "m", "model.pkl")
    written = pickle.dumps(LogisticRegression().fit(ROWS, TWO_CLASSES))
    version = estimator_file.sklearn.__version__.encode()
    path.write_bytes(written.replace(version, b"0" * len(version)))

    with caplog.at_level(logging.WARNING, "bireme"):
        OpenModel(SklearnBackend(), path).run(input=ROWS)

    assert (
        "model 'm': InconsistentVersionWarning: Trying to unpickle estimator LogisticRegression from version 00000"
        in caplog.text
    )


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(NotFound, match=r"unable to find '.*model\.joblib' for model 'm'"):
        SklearnBackend().load(context(place(tmp_path, "m", "model.joblib")))


class FakeSkops:
    """The two functions of skops.io."""

    def __init__(self, estimator) -> None:
        self.estimator = estimator

    def get_untrusted_types(self, *, file):
        return ["my.Scaler", "my.Model"]

    def load(self, file, trusted):
        return self.estimator


def test_skops_loads_only_types_that_are_trusted(tmp_path, monkeypatch):
    path = place(tmp_path, "m", "model.skops")
    path.touch()
    package = ModuleType("skops")
    package.io = FakeSkops(LogisticRegression().fit(ROWS, TWO_CLASSES))
    monkeypatch.setitem(sys.modules, "skops", package)

    with pytest.raises(
        InvalidArgument, match=r"types that are not trusted: my\.Model; if they are meant, name them in"
    ):
        SklearnBackend().load(context(path, parameters(trusted_types="my.Scaler")))
    model = OpenModel(SklearnBackend(), path, parameters(trusted_types="my.Scaler, my.Model"))
    assert ("input", "FP64", (4,)) == model.tensors()[0]


def test_skops_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skops", None)
    path = place(tmp_path, "m", "model.skops")
    path.touch()

    with pytest.raises(
        Unsupported, match="needs the package 'skops', which is not installed; install it with: pip"
    ):
        SklearnBackend().load(context(path))


class Odd(BaseEstimator):
    """Refuses made-up rows, and gives something that is no array."""

    n_features_in_ = 2
    classes_ = np.array([3, 5])

    def predict(self, table):
        if not table.all():
            message = "zeros are not real"
            raise ValueError(message)
        return np.array([3] * len(table))

    def predict_proba(self, table):
        if not table.all():
            raise ZeroDivisionError
        return np.ones((len(table), 2)) / 2

    def transform(self, table):
        return [table, table]


def test_what_cannot_be_tried_follows_from_attributes(open_model):
    sys.modules.setdefault(Odd.__module__, sys.modules[__name__])
    model = open_model(Odd())

    assert [("predict", "INT64", (1,)), ("predict_proba", "FP64", (2,))] == model.tensors()[1:]
    assert not model.instance.may_run_inline
    assert [[3]] == model.run(input=np.ones((1, 2)))["predict"].tolist()
    assert "transform" not in model.loaded._predictor.describe(model.config).outputs


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"outputs": "transform"},
            "this model can give 'predict', 'predict_proba', 'predict_log_proba', 'decision",
        ),
        ({"inputs": "rows"}, "'inputs' is 'rows'; expected 'matrix' or 'columns' or 'texts'"),
        ({"frame": "dask"}, "'frame' is 'dask'; expected 'none' or 'pandas' or 'polars'"),
    ],
)
def test_a_wrong_parameter_is_named(open_model, values, message):
    with pytest.raises(InvalidArgument, match=message):
        open_model(LogisticRegression().fit(ROWS, TWO_CLASSES), parameters(**values))


def test_columns_must_be_known_to_be_apart(open_model):
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(DOCUMENTS, WORDS)

    with pytest.raises(
        InvalidArgument, match="'inputs' is 'columns', but the estimator does not say which columns"
    ):
        open_model(pipeline, parameters(inputs="columns"))


# Served


@pytest.fixture(scope="module")
def served(flats, tmp_path_factory):
    root = tmp_path_factory.mktemp("sklearn")
    joblib.dump(flats, place(root, "flats", "model.joblib"))
    batching = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    classes = LogisticRegression().fit(ROWS, THREE_CLASSES)
    joblib.dump(classes, place(root, "batched", "model.joblib", batching))
    with serving(root) as running:
        yield running


def test_a_folder_without_a_config_is_served(served, flats):
    found = served.infer("flats", x0=ROWS[:4, :1], x1=encode(TOWNS[:4]), x2=FLOORS[:4, np.newaxis])

    assert [word.encode() for word in flats.predict(mixed_table()[:4])] == found["predict"][:, 0].tolist()
    assert np.allclose(found["predict_proba"], flats.predict_proba(mixed_table()[:4]))


def test_requests_share_a_batch(served):
    answers, rows, runs = served.infer_at_once(
        "batched", [{"input": ROWS[row : row + 1]} for row in range(8)]
    )

    assert 8 == rows
    assert runs < 8
    expected = LogisticRegression().fit(ROWS, THREE_CLASSES).predict_proba(ROWS[:8])
    assert np.allclose(np.concatenate([each["predict_proba"] for each in answers]), expected)


def test_missing_values_are_an_error_that_says_so(served):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match=r"\[400\].*Input X contains NaN") as caught:
        served.infer("batched", input=np.full((1, 4), np.nan))

    assert "Traceback" not in caught.value.message()


def test_a_missing_value_fails_no_other_request_of_the_batch(served):
    from tritonclient.utils import InferenceServerException

    rows = [{"input": np.full((1, 4), np.nan) if row == 3 else ROWS[row : row + 1]} for row in range(8)]
    refused, good = [], []

    for row, answer in enumerate(served.send_at_once("batched", rows)):
        try:
            good.append(answer.get_result().as_numpy("predict").item())
        except InferenceServerException as error:
            refused.append((row, error.status()))

    assert refused == [(3, "400")]
    assert good == np.delete(LogisticRegression().fit(ROWS, THREE_CLASSES).predict(ROWS[:8]), 3).tolist()


def test_a_wrong_number_of_features_is_the_callers_mistake(served):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match=r"\[400\].*Expected \[-1,4\], got \[1,5\]"):
        served.infer("batched", input=np.ones((1, 5)))
