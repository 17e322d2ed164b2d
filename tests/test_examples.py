"""The examples' own code, without the models that `make demo-vision` installs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageDraw

from bireme.cli.check import check_repositories
from bireme.engine.options import ServerOptions
from example_files import EXAMPLES, load
from onnx_models import add_model, save_plus_one


@pytest.fixture
def tasks(monkeypatch):
    return load("vision/tasks.py", monkeypatch)


def test_the_quickstart_runs(monkeypatch, tmp_path, capsys):
    maker = load("quickstart/make_model.py", monkeypatch)
    program = load("quickstart/in_process.py", monkeypatch)
    monkeypatch.setattr(maker, "REPOSITORY", tmp_path)
    monkeypatch.setattr(program, "REPOSITORY", tmp_path)

    maker.main()
    program.main()

    shown = capsys.readouterr().out
    assert "plain script: [[11.0, 22.0, 33.0]]" in shown
    assert "async program: [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]" in shown
    assert "a mistake: [request id: <id_unknown>] expected 2 inputs but got 1" in shown


def test_the_vision_repository_has_sound_configs():
    options = ServerOptions(model_repository=(str(EXAMPLES / "vision" / "models"),))
    faults = [
        fault
        for report in check_repositories(options, opens_models=False)
        for fault in report.faults
        if "version" not in fault
        and "file_type/labels.txt" not in fault  # those come with `make demo-vision`
    ]

    assert [] == faults


def test_the_sample_picture_is_drawn_and_steps_report_what_they_made(monkeypatch, tmp_path):
    build = load("vision/build.py", monkeypatch)
    step = build.Step(tmp_path / "pictures" / "sample.png", "", build.draw_sample)
    monkeypatch.setattr(build, "STEPS", (step,))
    monkeypatch.setattr(build, "HERE", tmp_path)
    said: list[str] = []

    assert (1, 0) == (build.build(said.append), build.build(said.append))

    assert 1 == len(said)
    assert "pictures/sample.png" in said[0]
    with Image.open(step.target) as picture:
        assert (640, 200) == picture.size


def test_a_missing_package_is_named(monkeypatch):
    packages = load("packages.py", monkeypatch)

    with pytest.raises(SystemExit, match="package 'no_such_package' is not installed"):
        packages.package_file("no_such_package", "x")


def test_regions_become_text_boxes_from_top_to_bottom(tasks):
    picture = Image.new("L", (320, 96))
    drawing = ImageDraw.Draw(picture)
    drawing.rectangle((100, 60, 250, 75), fill=255)
    drawing.rectangle((20, 10, 120, 25), fill=255)
    drawing.point((300, 90), fill=255)  # too small
    probability = np.asarray(picture, np.float32) / 255

    boxes = tasks.text_boxes(probability, Image.new("RGB", (640, 192)))

    assert [True, True] == [box.score == 1.0 for box in boxes]
    first, second = boxes
    assert first.left < 40
    assert first.top < 20
    assert first.right > 240
    assert second.top > first.bottom


def test_a_slanted_line_counts_although_it_fills_little_of_its_box(tasks):
    picture = Image.new("L", (320, 96))
    ImageDraw.Draw(picture).line((20, 20, 300, 60), fill=255, width=7)
    probability = np.asarray(picture, np.float32) / 255

    (box,) = tasks.text_boxes(probability, picture)

    assert box.score == 1.0
    assert box.top > 10
    assert box.bottom < 70


def test_a_region_that_joins_two_is_one(tasks):
    mask = np.zeros((5, 9), bool)
    mask[:, 1] = mask[:, 7] = mask[4, 1:8] = True

    assert [(slice(0, 5), slice(1, 8))] == tasks._regions(mask)


def test_faces_are_decoded_and_doubles_dropped(tasks):
    heat, size, offset = (np.zeros((channels, 8, 8), np.float32) for channels in (1, 2, 2))
    heat[0, 3, 4], heat[0, 3, 5] = 0.9, 0.8
    size[:] = np.log(4)  # 16 pixels

    (face,) = tasks.faces(heat, size, offset)

    assert (10, 6, 26, 22) == (face.left, face.top, face.right, face.bottom)
    assert face.score == pytest.approx(0.9)


def test_letters_are_read_without_repeats(tasks, monkeypatch, tmp_path):
    folder = tmp_path / "models" / "text_reader"
    folder.mkdir(parents=True)
    (folder / "alphabet.txt").write_text("a\nb\n")
    monkeypatch.setattr(tasks, "HERE", tmp_path)
    steps = np.eye(4, dtype=np.float32)[[1, 1, 0, 1, 2, 3, 2, 0]]

    assert [("aab b", 1.0), ("", 0.0)] == tasks.read_lines(np.stack([steps, np.eye(4)[[0] * 8]]))


def test_bytes_are_cut_and_padded(tasks):
    values = tasks.file_type_input(b"  \nhello \n")[0]

    assert list(b"hello \n") == values[:7].tolist()
    assert list(b"  \nhello") == values[-8:].tolist()
    assert {256} == set(values[7:-8].tolist())
    assert (1, 2048) == tasks.file_type_input(b"x" * 9000).shape


def test_pictures_are_normalised(tasks):
    assert (1, 3, 224, 224) == tasks.orientation_input(Image.new("RGB", (300, 400), "white")).shape
    assert (1, 3, 64, 96) == tasks.face_input(Image.new("RGB", (100, 70))).shape
    assert {1.0} == set(tasks.text_input(Image.new("RGB", (64, 40), "white")).ravel().tolist())
    lines = tasks.reader_input(
        Image.new("RGB", (100, 50)), [tasks.Box(0, 0, 100, 25, 1), tasks.Box(0, 25, 10, 50, 1)]
    )
    assert (2, 3, 48, 320) == lines.shape


def test_close_reasons_are_read_from_the_metrics_page(monkeypatch, tmp_path):
    client = load("vision/client.py", monkeypatch)
    page = (
        "# TYPE bireme_batch_close_total counter\n"
        'bireme_batch_close_total{model="m",version="1",reason="full"} 3\n'
        'bireme_batch_close_total{model="other",version="1",reason="full"} 5\n'
        'bireme_batch_close_total{model="m",version="1",reason="delay"} 1\n'
    )

    class Page:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self):
            return page.encode()

    monkeypatch.setattr(client.urllib.request, "urlopen", lambda url: Page())

    assert Counter(full=3, delay=1) == client.close_reasons("host:1", "m")


@pytest.mark.slow
def test_a_server_listens_while_the_context_lasts(monkeypatch, tmp_path):
    serving = load("serving.py", monkeypatch)
    add_model(tmp_path / "models", "plus", save_plus_one)

    with serving.served(tmp_path / "models", tmp_path / "out" / "server.log") as addresses:
        assert serving.answers(f"http://{addresses.http}/v2/models/plus/ready")
        assert serving.answers(f"http://{addresses.metrics}/metrics")

    assert not serving.answers(f"http://{addresses.http}/v2/health/live")
    assert '"stopped"' in (tmp_path / "out" / "server.log").read_text()


@pytest.mark.slow
def test_the_log_of_a_server_that_does_not_start_is_shown(monkeypatch, tmp_path):
    serving = load("serving.py", monkeypatch)

    with (
        pytest.raises(SystemExit, match="the server ended with exit status 1") as ended,
        serving.served(tmp_path / "nowhere", tmp_path / "server.log"),
    ):
        pass

    assert f"{tmp_path / 'server.log'}:\nError: --model-repository" in str(ended.value)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise SystemExit(3)", "ended with exit status 3"),
        ("import time; time.sleep(60)", "is not ready yet"),
    ],
)
def test_a_program_that_does_not_become_ready_is_an_error(monkeypatch, tmp_path, code, text):
    serving = load("serving.py", monkeypatch)
    monkeypatch.setattr(serving, "START_TIMEOUT_S", 0.2 if "sleep" in code else 20)

    with (
        pytest.raises(SystemExit, match=text),
        serving.running(["-c", code], tmp_path / "log", lambda: False),
    ):
        pass
