"""The OCR example: its own code, and the cascade as ensemble, as script and behind a gateway."""

from __future__ import annotations

import io
import urllib.error
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import tritonclient.http as triton
from PIL import Image

from bireme.cli.check import check_repositories
from bireme.engine.options import ServerOptions
from example_files import EXAMPLES, load

OCR = EXAMPLES / "ocr"
LINES = ["Hello World 2026", "Invoice No. 4711", "TOTAL: 129.50 EUR"]
MODELS = ("ocr", "ocr_bls")


@pytest.fixture
def steps(monkeypatch) -> ModuleType:
    return load("ocr/ocr_steps.py", monkeypatch)


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def file_of(picture: np.ndarray) -> bytes:
    target = io.BytesIO()
    Image.fromarray(picture).save(target, "PNG")
    return target.getvalue()


def test_the_configs_are_sound(monkeypatch):
    load("ocr/build.py", monkeypatch).build(len)  # an ensemble is checked against models that have a file
    options = ServerOptions(model_repository=(str(OCR / "models"),))

    assert [] == [
        fault for report in check_repositories(options, opens_models=False) for fault in report.faults
    ]


def test_pictures_get_sides_that_the_detector_takes(steps):
    assert (1, 3, 64, 96) == steps.detector_input(np.zeros((70, 100, 3), np.uint8)).shape
    assert (1, 3, 640, 1280) == steps.detector_input(np.zeros((2000, 4000, 3), np.uint8)).shape
    assert (1, 3, 32, 32) == steps.detector_input(np.zeros((1, 1, 3), np.uint8)).shape
    red = np.full((32, 32, 3), (255, 0, 0), np.uint8)
    assert [-1, -1, 1] == steps.detector_input(red)[0, :, 0, 0].tolist()


@pytest.mark.parametrize("content", [b"", b"no picture", file_of(np.zeros((4, 4, 3), np.uint8))[:45]])
def test_a_file_that_is_no_picture_is_told(steps, content):
    with pytest.raises(steps.BadPicture, match=f"these {len(content)} bytes are no picture"):
        steps.decode(content)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 4), (0, 4, 3)])
def test_an_array_that_is_no_picture_is_told(steps, shape):
    with pytest.raises(steps.BadPicture, match="expected \\[height, width, 3\\]"):
        steps.checked(np.zeros(shape, np.uint8))


def test_runs_that_touch_are_one_region(steps):
    probability = np.zeros((8, 12), np.float32)
    probability[0:6, 1] = probability[0:6, 7] = probability[5, 1:8] = 0.9  # a U
    probability[0:2, 10:12] = 0.5

    found = sorted(steps.regions(probability), key=lambda region: -region[1])

    assert 2 == len(found)
    (points, _), (others, _) = found
    assert ([1, 0], [8, 6]) == (points.min(axis=0).tolist(), points.max(axis=0).tolist())  # dilated by one
    assert ([10, 0], [11, 2]) == (others.min(axis=0).tolist(), others.max(axis=0).tolist())


def test_the_end_of_a_row_does_not_touch_the_next(steps):
    probability = np.zeros((4, 6), np.float32)
    probability[0, 4:] = probability[2, :2] = 1

    assert 2 == len(steps.regions(probability))


@pytest.mark.parametrize("tilt", [-30, -7, 0, 12, 40])
def test_a_box_has_the_tilt_of_its_line(steps, tilt):
    angle = np.radians(tilt)
    along, down = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    x, y = np.meshgrid(np.arange(100), np.arange(10))
    points = np.stack((x.ravel(), y.ravel()), axis=1) @ np.stack((along, down)) + 50

    corners = steps.rectangle(points.astype(np.float32))

    width, height = np.linalg.norm(corners[1] - corners[0]), np.linalg.norm(corners[3] - corners[0])
    margin = 99 * 9 * 1.6 / (2 * (99 + 9))
    assert (width, height) == pytest.approx((99 + 2 * margin, 9 + 2 * margin), abs=1)
    assert (corners[1] - corners[0]) / width == pytest.approx(along, abs=0.01)


def test_a_high_box_is_a_line_that_runs_upwards(steps):
    y, x = np.mgrid[:100, :10]

    corners = steps.rectangle(np.stack((x.ravel(), y.ravel()), axis=1).astype(np.float32))

    assert corners[0, 1] > 99
    assert corners[1, 1] < 0
    assert corners[0, 0] == pytest.approx(corners[1, 0], abs=1e-3)


def test_nothing_and_specks_have_no_box(steps):
    assert (0, 4, 2) == steps.find_boxes(np.zeros((32, 32), np.float32), 32, 32).shape
    speck = np.zeros((32, 32), np.float32)
    speck[5, 5:20] = 1  # two pixels high when dilated
    assert (0, 4, 2) == steps.find_boxes(speck, 32, 32).shape
    faint = np.zeros((32, 32), np.float32)
    faint[5:15, 5:25] = 0.4
    assert (0, 4, 2) == steps.find_boxes(faint, 32, 32).shape


def test_boxes_are_in_pixels_of_the_picture_and_inside_of_it(steps):
    probability = np.zeros((32, 64), np.float32)
    probability[:10, :30] = 1

    (found,) = steps.find_boxes(probability, 64, 640)

    assert [0, 0] == found[0].tolist()
    assert 300 < found[2, 0] < 400
    assert np.float32 == found.dtype


@pytest.mark.parametrize("turn", [0, 8, 90, 180])
def test_lines_are_read_row_by_row_however_the_page_lies(steps, turn):
    words = np.stack([box(0, 0, 100, 20), box(200, 5, 260, 25), box(0, 40, 100, 60), box(200, 38, 230, 58)])
    angle = np.radians(turn)
    turned = words @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]], np.float32)

    assert [2, 0, 3, 1] == steps.reading_order(turned[[1, 3, 0, 2]]).tolist()


def test_a_crop_is_turned_upright(steps):
    picture = np.zeros((100, 200, 3), np.uint8)
    picture[:, :100] = 255

    for corners, left in ((box(50, 25, 150, 75), 255), (box(50, 25, 150, 75)[[2, 3, 0, 1]], 0)):
        (line,) = steps.crop_lines(picture, corners[np.newaxis])
        assert (48, 96, 3) == line.shape
        assert (left, 255 - left) == (line[24, 10, 0], line[24, 85, 0])


def test_all_lines_vote_whether_the_picture_stands_on_its_head(steps):
    boxes, lines = np.stack([box(0, 0, 9, 2), box(0, 5, 9, 8)]), [np.zeros((48, 9, 3)), np.ones((48, 8, 3))]

    kept, _ = steps.upright(boxes, lines, np.array([[0.05, 0.95], [0.9, 0.1]]))
    turned, (first, _) = steps.upright(boxes, lines, np.array([[0, 1], [0.4, 0.6]]))

    assert np.array_equal(boxes, kept)
    assert [9, 8] == turned[0, 0].tolist()
    assert 8 == first.shape[1]


def test_lines_of_like_width_share_a_batch(steps):
    widths = [100, 320, 321, 480, 900, *[200] * 8]

    groups = steps.reader_groups([np.zeros((48, width, 3), np.uint8) for width in widths])

    found = [(batch.shape[0], batch.shape[3], numbers) for numbers, batch in groups]
    expected = [(4, 320, [0, 1, 5, 6]), (4, 320, [7, 8, 9, 10]), (2, 320, [11, 12])]
    assert [*expected, (2, 480, [2, 3]), (1, 960, [4])] == found
    (_, batch), *_ = groups
    assert (-1, 0) == (batch[0, 0, 0, 99], batch[0, 0, 0, 100])  # black, then padding


def test_letters_are_decoded_without_repeats(steps):
    probability = np.eye(4, dtype=np.float32)[[[1, 1, 0, 1, 2, 3, 2, 0], [0] * 8]]

    assert [("aab b", 1.0), ("", 0.0)] == steps.decode_letters(probability, ["", "a", "b", " "])


def test_text_is_drawn_where_its_box_is_and_turned_as_it_is(monkeypatch, steps):
    client = load("ocr/client.py", monkeypatch)
    picture = Image.new("RGB", (800, 100), "white")
    upright, on_its_head = box(100, 20, 300, 80), box(500, 20, 700, 80)[[2, 3, 0, 1]]

    drawn = client.draw(picture, steps.Found(np.stack([upright, on_its_head]), ["L", "L"], [1, 1]))

    assert (1608, 100) == drawn.size
    ink = np.asarray(drawn.convert("L"))[:, 808:] < 128
    assert ink[20:80, 100:300].sum() == ink.sum() / 2 == ink[20:80, 500:700].sum()
    assert ink[60:80, 100:300].sum() > ink[20:40, 100:300].sum()  # the foot of the L
    assert ink[20:40, 500:700].sum() > ink[60:80, 500:700].sum()


def test_the_demo_breaks_no_line_and_ends_when_the_ways_differ(monkeypatch, tmp_path, steps):
    demo = load("ocr/demo.py", monkeypatch)
    monkeypatch.setattr(demo.client, "PICTURES", tmp_path)
    for name in demo.client.SAMPLES:
        (tmp_path / name).touch()

    assert "first line ·\nsecond line" == str(demo.joined(["first line", "second line"], 20))
    with pytest.raises(SystemExit, match="the ways do not agree on sample"):
        demo.show_ways({way: lambda _, way=way: steps.Found(np.zeros((1, 4, 2)), [way], [1]) for way in "ab"})


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """The server and the gateway, a client, and the program of the client."""
    with pytest.MonkeyPatch.context() as patch:
        load("ocr/build.py", patch).build(len)
        demo = load("ocr/demo.py", patch)
        with (
            demo.served(tmp_path_factory.mktemp("logs")) as (http, gateway),
            triton.InferenceServerClient(http, concurrency=8) as connection,
        ):
            yield SimpleNamespace(gateway=gateway, triton=connection, program=demo.client)


def counts(service: SimpleNamespace, model: str) -> tuple[int, int]:
    """Return how many inferences the model has made, and in how many runs."""
    (statistics,) = service.triton.get_inference_statistics(model)["model_stats"]
    return statistics["inference_count"], statistics["execution_count"]


def all_ways(service: SimpleNamespace, content: bytes) -> list:
    """Return what each of the three ways finds."""
    inside = [service.program.ask(service.triton, model, content) for model in MODELS]
    return [*inside, service.program.ask_gateway(service.gateway, content)]


@pytest.mark.slow
@pytest.mark.parametrize("num_quarter_turns", [0, 2])
def test_three_ways_find_the_same_text(service, num_quarter_turns):
    content = (service.program.PICTURES / "sample.png").read_bytes()
    picture = np.rot90(np.asarray(Image.open(io.BytesIO(content))), num_quarter_turns)

    first, *others = all_ways(service, file_of(picture))

    assert LINES == first.texts
    assert min(first.scores) > 0.9
    for other in others:
        assert first.texts == other.texts
        assert np.allclose(first.boxes, other.boxes)
        assert first.scores == pytest.approx(other.scores, abs=1e-3)


@pytest.mark.slow
def test_a_picture_without_text_ends_at_the_detector(service):
    """White has no text in any of the three ways; the ensemble's last step is not even asked."""
    before = counts(service, "read_boxes")

    for found in all_ways(service, file_of(np.full((64, 96, 3), 255, np.uint8))):
        assert ((0, 4, 2), [], []) == (found.boxes.shape, found.texts, found.scores)
    assert before == counts(service, "read_boxes")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_what_is_no_picture_is_an_error_of_the_caller(service, model):
    with pytest.raises(triton.InferenceServerException, match="these 4 bytes are no picture file") as caught:
        service.program.ask(service.triton, model, b"text")
    assert "400" in caught.value.status()


@pytest.mark.slow
def test_the_gateway_tells_whose_mistake_it_is(service):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        service.program.ask_gateway(service.gateway, b"text")


@pytest.mark.slow
def test_pixels_are_read_like_a_file(service):
    pixels = np.asarray(Image.open(service.program.PICTURES / "sample.png").convert("RGB"))
    for model in MODELS:
        tensor = triton.InferInput("PIXELS", pixels.shape, "UINT8")
        tensor.set_data_from_numpy(pixels)
        texts = service.triton.infer(model, [tensor]).as_numpy("TEXT")
        assert LINES == [text.decode() for text in texts]


@pytest.mark.slow
def test_lines_of_several_pictures_share_batches(service):
    """Six pictures at once: the reader runs less often than it has lines, and the texts are the same."""
    content = (service.program.PICTURES / "sample.png").read_bytes()

    lines_before, batches_before = counts(service, "reader")
    found = service.program.ask_all(service.triton, "ocr", [content] * 6)
    lines, batches = counts(service, "reader")

    assert [LINES] * 6 == [each.texts for each in found]
    assert 18 == lines - lines_before
    assert batches - batches_before < 12, "each picture alone has two batches: lines of two widths"
