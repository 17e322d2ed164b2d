"""What the server makes of a forest, whichever library it is of."""

from dataclasses import replace

import numpy as np
import pytest

from bireme.backends.interface import ModelContext, Placement
from bireme.backends.predictor import PredictorModel
from bireme.backends.trees.fil import FilPredictor
from bireme.backends.trees.fil_settings import ignored_parameters, read_fil_settings
from bireme.backends.trees.predictor import ForestPredictor
from bireme.backends.trees.settings import BEST, is_worth_threads, read_settings
from bireme.config import ModelConfig, parse_text
from bireme.config.model_config import ModelInstanceGroup
from bireme.types import BackendFailed, InvalidArgument, Unsupported


class FakeForest:
    """Adds up its features; a classifier's values are made of that."""

    num_features = 3
    threshold = 0.5

    def __init__(self, *, groups=1, values=1, classes=0, trees=5, datatype="FP32") -> None:
        self.num_groups = groups
        self.num_values = values
        self.num_classes = classes
        self.num_trees = trees
        self.datatype = datatype
        self.dtypes: list[str] = []
        self.expected: list[int] = []

    def expect(self, max_rows):
        self.expected.append(max_rows)

    def predict(self, rows):
        self.dtypes.append(rows.dtype.name)
        assert rows.flags.c_contiguous
        return rows.sum(axis=1, keepdims=True) * np.arange(1, self.num_values + 1)

    def margins(self, rows):
        return np.repeat(rows.sum(axis=1, keepdims=True), self.num_groups, axis=1)

    def leaves(self, rows):
        return np.ones((len(rows), self.num_trees))

    def contributions(self, rows):
        return np.ones((len(rows), self.num_groups, self.num_features + 1))


ROWS = np.array([[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]], np.float32)


def config_of(text: str = "", **parameters: str) -> ModelConfig:
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    ]
    parsed = parse_text("\n".join(['name: "m"', text, *lines]), "config.pbtxt")
    return replace(parsed, instance_group=parsed.instance_group or (ModelInstanceGroup("m", "KIND_CPU", 1),))


def open_model(predictor, text="", tmp_path=None, backend_config=None, **parameters):
    config = config_of(text, **parameters)
    ctx = ModelContext("m", 1, tmp_path, tmp_path, config, backend_config or {})
    model = PredictorModel("fake", ctx, predictor)
    final = model.complete_config(config)
    model.check_config(final)
    return model, final


def run(predictor, text="", rows=ROWS, name="input", **parameters):
    model, _ = open_model(predictor, text, **parameters)
    return model.create_instance(Placement("m_0")).execute({name: rows})


def dims(config):
    return {output.name: (output.data_type, tuple(output.dims)) for output in config.output}


def test_a_config_is_completed_with_what_the_library_predicts():
    _, config = open_model(ForestPredictor(FakeForest()))

    assert {"predict": ("TYPE_FP32", (1,))} == dims(config)
    assert 4 == config.max_batch_size


def test_all_outputs_of_several_groups():
    names = "predict, margin,leaf,contributions,label"
    _, config = open_model(ForestPredictor(FakeForest(groups=3, values=3, classes=3, trees=6)), outputs=names)

    assert {
        "predict": ("TYPE_FP32", (3,)),
        "margin": ("TYPE_FP32", (3,)),
        "leaf": ("TYPE_INT32", (6,)),
        "contributions": ("TYPE_FP32", (3, 4)),
        "label": ("TYPE_INT64", (1,)),
    } == dims(config)


def test_results_have_the_types_and_dims_of_the_config():
    found = run(ForestPredictor(FakeForest(classes=2)), outputs="predict,margin,leaf,contributions,label")

    shapes = {name: (array.dtype.name, array.shape) for name, array in found.items()}
    assert {
        "predict": ("float32", (2, 1)),
        "margin": ("float32", (2, 1)),
        "leaf": ("int32", (2, 5)),
        "contributions": ("float32", (2, 4)),
        "label": ("int64", (2, 1)),
    } == shapes
    assert [[0], [1]] == found["label"].tolist()


@pytest.mark.parametrize(
    ("forest", "labels"),
    [
        (FakeForest(classes=2), [[0], [1]]),
        (FakeForest(classes=2, groups=2, values=2), [[0, 1], [1, 1]]),  # two answers, each yes or no
        (FakeForest(classes=3, groups=3, values=3), [[2], [2]]),
    ],
)
def test_labels(forest, labels):
    assert labels == run(ForestPredictor(forest), outputs="label")["label"].tolist()


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float32"),
        ("int64", "float32"),
        ("bool", "float32"),
    ],
)
def test_rows_are_converted_only_where_the_library_cannot_take_them(given, passed):
    forest = FakeForest()
    kind = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "int64": "INT64", "bool": "BOOL"}[given]
    text = f'input {{ name: "input" data_type: TYPE_{kind} dims: 3 }} max_batch_size: 4'

    run(ForestPredictor(forest), text, np.ones((2, 3), given)[:, ::-1])

    assert [passed] == forest.dtypes


def test_rows_that_lie_oddly_in_memory_are_copied():
    memory = np.zeros(2 * 3 * 4 + 1, np.uint8)
    rows = memory[1:].view(np.float32).reshape(2, 3)
    rows[:] = ROWS
    seen: list[bool] = []
    forest = FakeForest()
    forest.margins = lambda rows: (seen.append(rows.flags.aligned), rows[:, :1])[1]

    found = run(ForestPredictor(forest), rows=rows, outputs="margin")["margin"]

    assert not rows.flags.aligned
    assert [True] == seen
    assert np.array_equal(ROWS[:, :1], found)


def test_no_rows_have_no_results():
    found = run(ForestPredictor(FakeForest()), rows=ROWS[:0], outputs="predict,contributions,leaf")

    assert {"predict": (0, 1), "contributions": (0, 4), "leaf": (0, 5)} == {
        name: array.shape for name, array in found.items()
    }


def test_a_forest_knows_how_long_runs_may_be():
    forest = FakeForest()
    model, _ = open_model(ForestPredictor(forest), "max_batch_size: 64")

    model.create_instance(Placement("m_0"))
    model.create_instance(Placement("m_1"))

    assert [64] == forest.expected


def test_a_default_of_the_batch_size_is_the_backends_to_set():
    _, config = open_model(ForestPredictor(FakeForest()), backend_config={"default-max-batch-size": "9"})

    assert 9 == config.max_batch_size
    with pytest.raises(InvalidArgument, match="backend 'fake': setting 'default-max-batch-size' is 'x'"):
        open_model(ForestPredictor(FakeForest()), backend_config={"default-max-batch-size": "x"})


def test_an_output_that_there_is_not_is_refused():
    with pytest.raises(
        InvalidArgument, match="names 'leaf'; this model can give 'predict', 'margin', 'contributions'"
    ):
        open_model(ForestPredictor(FakeForest(trees=0)), outputs="leaf")


def test_faults_of_a_config_are_told():
    text = 'input { name: "rows" data_type: TYPE_FP32 dims: 3 } output { name: "predict" data_type: TYPE_FP32 dims: 1 }'
    with pytest.raises(
        InvalidArgument, match="unable to load model 'm': input 'rows' is in the config, but not in the"
    ):
        open_model(ForestPredictor(FakeForest()), f"max_batch_size: 4 {text}")


def test_gpus_are_refused():
    model, _ = open_model(ForestPredictor(FakeForest()))

    with pytest.raises(Unsupported, match="KIND_GPU is not supported by the fake backend"):
        model.create_instance(Placement("m_0", "KIND_GPU"))


def test_what_is_closed_says_so():
    model, _ = open_model(ForestPredictor(FakeForest()))
    instance = model.create_instance(Placement("m_0"))
    assert instance.may_run_inline

    instance.close()
    model.close()

    with pytest.raises(BackendFailed, match="the instance is closed"):
        instance.execute({"input": ROWS})


# Settings


def test_parameters_are_read():
    settings = read_settings(config_of(num_threads="3", iterations="best", missing="-1"), 8)

    assert (3, BEST, -1.0) == (settings.num_threads, settings.num_iterations, settings.missing)
    assert 7 == read_settings(config_of(iterations="7"), 8).num_iterations
    assert 8 == read_settings(config_of(num_threads="0"), 8).num_threads
    assert np.isnan(read_settings(config_of(), 8).missing)


@pytest.mark.parametrize("value", ["none", "0", "-1", "1.5", ""])
def test_a_number_of_rounds_is_one(value):
    with pytest.raises(
        InvalidArgument, match=r"parameter 'iterations' is .*; expected 'all', 'best' or a number of rounds"
    ):
        read_settings(config_of(iterations=value), 8)


def test_only_long_runs_are_worth_threads():
    assert not is_worth_threads(1, 1000)
    assert is_worth_threads(100, 1000)


# FIL


def fil(forest, text="", **parameters):
    return FilPredictor(forest, read_fil_settings(config_of(text, **parameters), 8))


def fil_run(forest, text="", **parameters):
    return run(fil(forest, text, **parameters), text, name="input__0", **parameters)["output__0"]


BOTH = 'max_batch_size: 4 output { name: "output__0" data_type: TYPE_FP32 dims: 2 }'


@pytest.mark.parametrize(
    ("forest", "text", "parameters", "values"),
    [
        (FakeForest(classes=2), "", {"is_classifier": "true"}, [[0], [1]]),
        (FakeForest(classes=2), "", {}, [[0], [1]]),
        (FakeForest(classes=2), "", {"is_classifier": "true", "threshold": "0.7"}, [[0], [0]]),
        (FakeForest(classes=2), "", {"output_class": "true", "predict_proba": "true"}, [[0.3], [0.6]]),
        (
            FakeForest(classes=2),
            BOTH,
            {"is_classifier": "true", "predict_proba": "true"},
            [[0.7, 0.3], [0.4, 0.6]],
        ),
        (FakeForest(classes=2), "", {"is_classifier": "false"}, [[0.3], [0.6]]),
        (FakeForest(), "", {"predict_proba": "true"}, [[0.3], [0.6]]),
        (FakeForest(classes=3, groups=3, values=3), "", {}, [[2], [2]]),
        (FakeForest(classes=3, groups=3, values=2), "", {"predict_proba": "true"}, [[0.3, 0.6], [0.6, 1.2]]),
    ],
)
def test_fils_output_follows_from_its_parameters(forest, text, parameters, values):
    found = fil_run(forest, text, **parameters)

    assert np.float32 == found.dtype
    assert np.allclose(found, values)


def test_fils_shap_values_are_flat():
    text = """
        max_batch_size: 4
        output [
          { name: "output__0" data_type: TYPE_FP32 dims: 3 },
          { name: "treeshap_output" data_type: TYPE_FP32 dims: 12 }
        ]
    """
    forest = FakeForest(groups=3, values=3)

    assert (2, 12) == run(fil(forest, text), text, name="input__0")["treeshap_output"].shape


def test_fils_threads_are_its_own_parameter():
    assert 3 == read_fil_settings(config_of(cpu_nthread="3"), 8).forest.num_threads
    assert 8 == read_fil_settings(config_of(cpu_nthread="-1"), 8).forest.num_threads


def test_fils_parameters_for_gpus_are_known():
    assert ["algo", "layout"] == ignored_parameters(config_of(layout="layered", algo="x", threshold="1"))


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"model_type": "treelite_checkpoint"}, Unsupported, "is a Treelite checkpoint"),
        (
            {"model_type": "pickle"},
            InvalidArgument,
            "'model_type' is 'pickle'; expected 'xgboost_json' or 'xgboost_ubj'",
        ),
        (
            {"is_classifier": "maybe"},
            InvalidArgument,
            "'is_classifier' is 'maybe'; expected true, on, yes or 1; or false",
        ),
        ({"cpu_nthread": "many"}, InvalidArgument, "'cpu_nthread' is 'many'; expected an integer"),
    ],
)
def test_fils_parameters_are_checked(parameters, error, message):
    with pytest.raises(error, match=message):
        read_fil_settings(config_of(**parameters), 8)
