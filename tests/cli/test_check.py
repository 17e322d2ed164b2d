"""``bireme repo check`` tells all that is wrong with a repository at once, each with its place."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from bireme.cli.check import ModelReport, check_repositories
from bireme.cli.main import run
from bireme.engine.options import ServerOptions
from onnx_models import add_model, save_add, save_identity, save_plus_one

GOOD = """
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
input { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] label_filename: "labels.txt" }
model_warmup { name: "zeros" batch_size: 2
  inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 16 ] zero_data: true } }
  inputs { key: "INPUT1" value { data_type: TYPE_FP32 dims: [ 16 ] zero_data: true } } }
"""


def check(*repositories: Path, opens_models: bool = True, **options: object) -> dict[str, ModelReport]:
    settings = ServerOptions(model_repository=tuple(map(str, repositories)), **options)
    return {report.name: report for report in check_repositories(settings, opens_models=opens_models)}


def batched_add(path: Path) -> Path:
    return save_add(path, batch=True)


def test_good_models_have_no_faults(tmp_path):
    model_dir = add_model(tmp_path, "add", batched_add, config=GOOD, versions=(1, 3))
    (model_dir / "labels.txt").write_text("a\nb\n")
    add_model(tmp_path, "bare", save_plus_one)

    found = check(tmp_path)

    assert {"add": [], "bare": []} == {name: report.faults for name, report in found.items()}
    assert ("onnxruntime", (3,)) == (found["add"].backend, found["add"].versions)


def test_every_fault_of_a_config_is_told_with_its_place(tmp_path):
    config = """name: "add"
max_batch_size: -1
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 0 ] }
input { name: "INPUT1" dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] label_filename: "labels.txt" }
"""
    path = add_model(tmp_path, "add", save_add, config=config) / "config.pbtxt"

    faults = check(tmp_path)["add"].faults

    expected = [
        (f"{path}:2:1: ", "max_batch_size"),
        (f"{path}:3:45: ", "INPUT0"),
        ("", "unable to read label file"),
    ]
    for place, text in expected:
        assert any(fault.startswith(place) and text in fault for fault in faults), (place, text, faults)


def test_every_fault_of_a_syntax_error_is_its_own(tmp_path):
    config = 'name: 3\nmax_batchsize: 4\ninput { nam: "x" }\n'
    path = add_model(tmp_path, "add", save_add, config=config) / "config.pbtxt"

    assert [f"{path}:1", f"{path}:2", f"{path}:3"] == [
        re.sub(r"(:\d+):\d+: .*", r"\1", fault) for fault in check(tmp_path)["add"].faults
    ]


def test_a_config_that_contradicts_the_model_file_is_told_in_its_words(tmp_path):
    config = 'backend: "onnxruntime"\ninput { name: "X" data_type: TYPE_INT32 dims: [ 4 ] }\n'
    path = add_model(tmp_path, "plus", save_plus_one, config=config) / "config.pbtxt"

    (fault,) = check(tmp_path)["plus"].faults

    assert fault.startswith(f"{path}:2:")
    assert "X" in fault
    assert "INT32" in fault


def test_a_faulty_config_does_not_hide_what_the_model_file_says(tmp_path):
    config = """
max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: [ 4 ] }
instance_group { count: -1 }
dynamic_batching { priority_levels: 1 default_priority_level: 3 }
"""
    add_model(tmp_path, "plus", save_plus_one, config=config)

    faults = check(tmp_path)["plus"].faults

    assert any("default_priority_level" in fault for fault in faults), faults
    assert any("'X'" in fault and "INT32" in fault for fault in faults), faults


def test_a_torn_model_file_is_told_with_its_version(tmp_path):
    model_dir = add_model(tmp_path, "plus", save_plus_one)
    (model_dir / "1" / "model.onnx").write_bytes(b"\x08torn")

    (fault,) = check(tmp_path)["plus"].faults

    assert fault.startswith(f"{model_dir / '1'}: ")


def test_models_are_not_opened_where_that_is_not_wanted(tmp_path):
    model_dir = add_model(tmp_path, "plus", save_plus_one)
    (model_dir / "1" / "model.onnx").write_bytes(b"\x08torn")

    assert check(tmp_path, opens_models=False)["plus"].is_good


def test_missing_and_odd_versions_are_told(tmp_path):
    (tmp_path / "empty").mkdir()
    add_model(tmp_path, "odd", save_plus_one)
    (tmp_path / "odd" / "01").mkdir()
    config = 'backend: "onnxruntime"\nversion_policy { specific { versions: [ 7 ] } }'
    add_model(tmp_path, "policy", save_plus_one, config=config)

    found = check(tmp_path)

    assert found["odd"].is_good
    assert [
        f"{tmp_path / 'odd' / '01'}: ignored, a version directory is a positive integer without leading zero"
    ] == (found["odd"].notes)
    assert not found["empty"].is_good
    assert any("specific 7" in fault for fault in found["policy"].faults)


def test_a_name_in_two_repositories_is_a_fault_of_both(tmp_path):
    add_model(tmp_path / "a", "twin", save_plus_one)
    add_model(tmp_path / "b", "twin", save_plus_one)

    (fault,) = check(tmp_path / "a", tmp_path / "b")["twin"].faults

    assert "a name must be unique over all repositories" in fault
    assert str(tmp_path / "a") in fault
    assert str(tmp_path / "b") in fault


def test_a_config_is_mandatory_without_auto_completion(tmp_path):
    add_model(tmp_path, "bare", save_plus_one)

    faults = check(tmp_path, disable_auto_complete_config=True)["bare"].faults

    assert any("the config file is mandatory while auto-completion is disabled" in fault for fault in faults)


def test_what_is_not_supported_yet_is_a_fault(tmp_path):
    add_model(tmp_path, "p", save_plus_one, config='backend: "dali"')

    found = check(tmp_path)

    assert any("backend 'dali' is not supported yet" in fault for fault in found["p"].faults), found[
        "p"
    ].faults


def test_repository_agents_work_as_in_a_load(tmp_path):
    agent = tmp_path / "agents" / "fetch" / "agent.py"
    agent.parent.mkdir(parents=True)
    agent.write_text("""
import shutil
from bireme.repository.agents import RepositoryAgent

class Agent(RepositoryAgent):
    def load(self):
        folder = self.model.make_directory()
        return shutil.copytree(self.model.directory / "hidden", folder, dirs_exist_ok=True)
""")
    models = tmp_path / "models"
    hidden = 'backend: "onnxruntime" model_repository_agents { agents [{ name: "fetch" }] }'
    model_dir = add_model(models, "hidden", save_add, config=hidden)
    (model_dir / "hidden").mkdir()
    (model_dir / "1").rename(model_dir / "hidden" / "1")
    digest = 'model_repository_agents { agents [{ name: "checksum" parameters { key: "MD5:1/model.onnx" value: "0" } }] }'
    add_model(models, "changed", save_add, config=digest)

    found = check(models, repoagent_directory=str(tmp_path / "agents"))

    assert [] == found["hidden"].faults
    assert (1,) == found["hidden"].versions
    (fault,) = found["changed"].faults
    assert "Mismatched MD5 hash for file 1/model.onnx, expect: 0" in fault


def add_ensemble(
    root: Path, name: str, *models: str, datatype: str = "FP32", version_dir: bool = True
) -> None:
    tensors = ["X", *(f"t{index}" for index in range(1, len(models))), "Y"]
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{tensors[index]}" }} '
        f'output_map {{ key: "Y" value: "{tensors[index + 1]}" }} }}\n'
        for index, model in enumerate(models)
    )
    (root / name / ("1" if version_dir else "")).mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(
        'platform: "ensemble"\n'
        f'input {{ name: "X" data_type: TYPE_{datatype} dims: [ -1 ] }}\n'
        f'output {{ name: "Y" data_type: TYPE_{datatype} dims: [ -1 ] }}\n'
        f"ensemble_scheduling {{\n{steps}}}\n"
    )


def test_with_namespaces_each_repository_is_its_own(tmp_path):
    for name in "ab":
        add_model(tmp_path / name, "m", save_plus_one)
    options = ServerOptions(
        model_repository=(str(tmp_path / "a"), str(tmp_path / "b")), model_namespacing=True
    )

    found = list(check_repositories(options))

    assert [("m", str(tmp_path / name / "m"), []) for name in "ab"] == [
        (report.name, report.location, report.faults) for report in found
    ]


def test_ensembles_are_compared_with_what_they_consist_of(tmp_path):
    add_model(tmp_path, "m", save_plus_one)
    add_model(tmp_path, "bad", save_plus_one, config='backend: "tensorrt"')
    add_ensemble(tmp_path, "a_outer", "inner", "m")
    add_ensemble(tmp_path, "inner", "m", "m", version_dir=False)
    add_ensemble(tmp_path, "wrong_type", "m", datatype="INT32")
    add_ensemble(tmp_path, "with_bad", "m", "bad")
    add_ensemble(tmp_path, "with_none", "nowhere")
    add_ensemble(tmp_path, "outer_of_wrong", "wrong_type", datatype="INT32")
    add_ensemble(tmp_path, "circle", "circle2")
    add_ensemble(tmp_path, "circle2", "circle")

    found = check(tmp_path)

    assert found["a_outer"].faults == found["inner"].faults == []
    assert (found["inner"].backend, found["inner"].versions) == ("ensemble", (1,))
    for name, fault in {
        "wrong_type": "inconsistent data type",
        "with_bad": "step 1 ('bad'): model 'bad' would not load",
        "with_none": "step 0 ('nowhere'): model 'nowhere' is in none of the repositories, or in several",
        "outer_of_wrong": "step 0 ('wrong_type'): model 'wrong_type' would not load",
        "circle": "circular dependency between ensembles: 'circle' -> 'circle2' -> 'circle'",
        "circle2": "circular dependency between ensembles: 'circle2' -> 'circle' -> 'circle2'",
    }.items():
        assert len(found[name].faults) == 1, found[name].faults
        assert fault in found[name].faults[0]
        assert found[name].faults[0].startswith(str(tmp_path / name / "config.pbtxt"))


def test_ensembles_in_ensembles_are_checked_however_many(tmp_path):
    add_model(tmp_path, "m", save_plus_one)
    names = ["m", *(f"e{index}" for index in range(150))]
    for below, name in pairwise(names):
        add_ensemble(tmp_path, name, below)
    found = check(tmp_path)

    assert not found["e60"].faults
    assert "more than 64 levels" in str(found["e64"].faults)
    assert "'e148' would not load" in str(found["e149"].faults)


def test_without_opening_models_an_ensemble_is_compared_with_complete_configs_only(tmp_path):
    add_model(tmp_path, "m", save_plus_one)
    complete = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }'
    add_model(tmp_path, "told", save_plus_one, config=complete)
    add_ensemble(tmp_path, "e", "m", datatype="INT32")
    add_ensemble(tmp_path, "told_wrong", "told", datatype="INT32")
    add_ensemble(tmp_path, "told_right", "told")

    found = check(tmp_path, opens_models=False)

    assert found["e"].faults == found["told_right"].faults == []
    assert "inconsistent data type" in found["told_wrong"].faults[0]


@pytest.mark.parametrize("datatype", ["BYTES", "FP16"])
def test_models_of_other_data_types_are_checked_too(tmp_path, datatype):
    add_model(tmp_path, "same", partial(save_identity, datatype=datatype))

    assert check(tmp_path)["same"].is_good


def test_the_command_prints_reports_and_exits_with_1_if_any_is_faulty(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add_model(tmp_path / "models", "good", save_plus_one)
    add_model(tmp_path / "models", "bad", save_plus_one, config="max_batch_sise: 3")

    assert 1 == run(["repo", "check", "models"])

    shown = capsys.readouterr().out
    assert "ok      good  onnxruntime, version 1\n" in shown
    assert "FAULTY  bad" in shown
    assert "        models/bad/config.pbtxt:1:1: unknown field 'max_batch_sise'" in shown
    assert "2 models, 1 faulty, 1 fault\n" in shown


def test_the_command_exits_with_0_if_all_is_well_and_speaks_json(tmp_path, capsys):
    add_model(tmp_path, "good", save_plus_one)

    assert 0 == run(["repo", "check", str(tmp_path), "--json"])

    (report,) = json.loads(capsys.readouterr().out)
    assert ("good", "onnxruntime", [1], []) == tuple(
        report[key] for key in ("name", "backend", "versions", "faults")
    )


def test_a_repository_that_is_none_is_an_error(tmp_path, capsys):
    assert 1 == run(["repo", "check", str(tmp_path / "nothing")])
    assert "not a valid directory" in capsys.readouterr().err


def test_what_is_odd_is_noted_and_the_model_is_good(tmp_path):
    add_model(tmp_path, "m", save_plus_one, config="response_cache { enable: true }")
    path = add_model(tmp_path, "n", save_plus_one, config="")
    (path / "config.pbtxt").rename(path / "config.pbtx")

    found = check(tmp_path)

    assert all(report.is_good for report in found.values())
    assert found["m"].notes == [
        "'response_cache' has an effect on a server with a cache alone (--cache-config)"
    ]
    assert [f"{path / 'config.pbtx'}: ignored; a config file is called config.pbtxt"] == found["n"].notes


def test_a_model_in_place_of_a_repository_is_recognised(tmp_path):
    add_model(tmp_path, "m", save_plus_one)

    (fault,) = check(tmp_path / "m")["1"].faults

    assert fault.endswith(
        f"'{tmp_path / 'm'}' seems to be a model, not a repository: the repository is '{tmp_path}'"
    )


def test_a_repository_without_models_is_an_error(tmp_path, capsys):
    assert 1 == run(["repo", "check", str(tmp_path)])

    assert (
        f"no models in {tmp_path}: a model is a directory such as NAME/1/model.onnx"
        in capsys.readouterr().err
    )
