"""Class labels of ensembles, and how they follow those of the models that they consist of."""

from __future__ import annotations

from ensemble_world import run
from model_dirs import CONFIG, add_fake_model, touch

ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Z" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step {
    model_name: "inner" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Z" }
} }
"""


def add_models(root, labels):
    add_fake_model(root, "inner")
    config = CONFIG.replace("dims: [ -1 ] }]\ninstance", 'dims: [ -1 ] label_filename: "labels" }]\ninstance')
    (root / "inner" / "config.pbtxt").write_text(config)
    (root / "inner" / "labels").write_text(labels)
    (root / "outer" / "1").mkdir(parents=True)
    (root / "outer" / "config.pbtxt").write_text(ENSEMBLE)


def test_output_has_the_labels_of_the_model_that_makes_it(tmp_path):
    async def scenario(world):
        await world.load("outer")
        assert dict(world.table.latest["outer"].labels) == {"Z": ["a", "b"]}

        (tmp_path / "inner" / "labels").write_text("c\nd\n")
        touch(tmp_path / "inner" / "labels")
        await world.load("inner")
        assert world.table.latest["inner"].labels == {"Y": ["c", "d"]}
        labels = world.table.latest["outer"].labels
        assert dict(labels) == {"Z": ["c", "d"]}
        assert len(labels) == 1

        await world.unload("inner")
        assert not labels

    add_models(tmp_path, "a\nb\n")
    run(scenario, tmp_path)


def test_labels_of_its_own_come_first(tmp_path):
    async def scenario(world):
        await world.load("outer")
        assert dict(world.table.latest["outer"].labels) == {"Z": ["own"]}

    add_models(tmp_path, "a\nb\n")
    own = ENSEMBLE.replace(
        'name: "Z" data_type: TYPE_FP32', 'name: "Z" label_filename: "own" data_type: TYPE_FP32'
    )
    (tmp_path / "outer" / "config.pbtxt").write_text(own)
    (tmp_path / "outer" / "own").write_text("own")
    run(scenario, tmp_path)
