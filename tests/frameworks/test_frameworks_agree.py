"""One network in the format of every framework, served without configs where the files tell enough: the answers agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tritonclient.http as triton_http

from bireme.cli.check import check_repositories
from bireme.cli.main import run
from bireme.engine.options import ServerOptions
from example_files import load
from serve_process import ServeProcess, running

NETWORKS = {
    "resnet_onnx": "onnxruntime",
    "resnet_torchscript": "pytorch",
    "resnet_pt2": "pytorch",
    "resnet_savedmodel": "tensorflow",
    "resnet_openvino": "openvino",
    "resnet_jax": "jax",
}
TABLES = {"flowers_sklearn": "sklearn", "flowers_xgboost": "xgboost", "flowers_lightgbm": "lightgbm"}

# Eight frameworks are imported twice, to write and to serve: on a busy machine that alone can take a minute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def demo() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        yield load("frameworks/demo.py", patch)


@pytest.fixture(scope="module")
def models(demo, tmp_path_factory) -> Path:
    """The example's repository, with a network small enough for tests."""
    folder = tmp_path_factory.mktemp("frameworks")
    reports: list[str] = []
    made = demo.build.build(reports.append, size="tiny", models=folder)
    assert len(NETWORKS) + len(TABLES) == made, reports
    return folder


@pytest.fixture(scope="module")
def server(models) -> Iterator[triton_http.InferenceServerClient]:
    with running(ServeProcess(f"--model-repository={models}")) as process:
        process.wait_for("models loaded in|failed to load all models", timeout_s=120)
        client = triton_http.InferenceServerClient(f"127.0.0.1:{process.port}", network_timeout=50.0)
        yield client
        client.close()


@pytest.fixture(scope="module")
def expected(demo) -> np.ndarray:
    """What torch itself says to two pictures."""
    with pytest.MonkeyPatch.context() as patch:
        resnet = load("frameworks/resnet.py", patch)
    pictures = demo.network.pictures(demo.network.TINY, 2)
    return resnet.make(demo.network.TINY)(resnet.torch.from_numpy(pictures)).numpy()


@pytest.mark.parametrize("model", NETWORKS)
def test_a_framework_says_what_torch_says(demo, server, expected, model):
    answer = demo.ask(server, model, demo.network.pictures(demo.network.TINY, 2), 1)

    assert NETWORKS[model] == answer.backend
    assert (2, 10) == answer.logits.shape
    assert demo.apart(answer.logits, expected) < demo.TOLERANCE


@pytest.mark.parametrize("model", TABLES)
def test_trees_tell_the_flowers_apart(demo, server, model):
    measures = np.array([[5.1, 3.5, 1.4, 0.2], [6.0, 2.9, 4.5, 1.5], [6.3, 3.3, 6.0, 2.5]], np.float32)

    answer = demo.ask(server, model, measures, 1)

    assert TABLES[model] == answer.backend
    assert [0, 1, 2] == demo.kinds(answer.logits)


def test_the_demo_s_comparison_holds_all_networks_together(demo, server, capsys):
    assert demo.compare(server, demo.network.TINY)

    shown = capsys.readouterr().out
    for model in NETWORKS:
        assert model in shown


FLAGS = {"resnet_torchscript": ("--input=x:FP32:3,32,32", "--output=logits:FP32:10", "--max-batch-size=4")}


@pytest.mark.parametrize("model", [*NETWORKS, *TABLES])
def test_bireme_import_makes_a_folder_of_each_file_and_runs_it(demo, models, tmp_path, capsys, model):
    built = demo.build.ALL[model]
    file = models / model / "1" / built.filename

    status = run(["import", str(file), "--to", str(tmp_path), "--name=m", *FLAGS.get(model, ())])

    printed = capsys.readouterr()
    assert (0, "") == (status, printed.err)
    assert f"served by backend '{(NETWORKS | TABLES)[model]}'" in printed.out
    assert " rows in " in printed.out
    assert (tmp_path / "m" / "1" / built.filename).exists()
    assert {"backend", "max_batch_size", "dynamic_batching"} <= set(
        re.findall(r"^\w+", (tmp_path / "m" / "config.pbtxt").read_text(), re.MULTILINE)
    )


def test_check_finds_nothing_wrong_with_folders_that_have_no_config(models):
    options = ServerOptions(model_repository=(str(models),))
    reports = {report.name: report for report in check_repositories(options, opens_models=False)}

    assert NETWORKS | TABLES == {name: report.backend for name, report in reports.items()}
    assert {} == {name: report.faults for name, report in reports.items() if report.faults}
