"""The access log: one line per request, whatever the client sent, and never at a request's expense."""

import json
import os
import re

import pytest

from bireme.telemetry import AccessLog, open_access_log
from bireme.types import InferenceRequest, InvalidArgument
from telemetry_events import executed

NOW_NS = 1_716_235_405_829_575_123


def opened(path, **options):
    return AccessLog(str(path), clock_ns=lambda: NOW_NS, **options)


def inference(access, **changes):
    execution = executed(2, 2)
    execution.requests[1].id = "r-7"
    values = {
        "client": "127.0.0.1:5000",
        "bytes_in": 320,
        "bytes_out": 150,
        "total_ns": 900_999,
        "request": execution.requests[1],
        "model_version": 3,
    }
    access.record("POST", "/v2/models/m/infer", 200, **{**values, **changes})


def test_a_text_line_tells_everything_about_an_inference(tmp_path):
    inference(opened(tmp_path / "log"))

    assert (tmp_path / "log").read_text() == (
        '2024-05-20T20:03:25.829575Z 127.0.0.1:5000 "POST /v2/models/m/infer" 200 bytes_in=320 bytes_out=150 '
        'total_us=900 model="m" version=3 id="r-7" batch_size=4 queue_us=20 compute_input_us=3 compute_infer_us=700 '
        "compute_output_us=9\n"
    )


def test_a_json_line_tells_the_same(tmp_path):
    inference(opened(tmp_path / "log", json=True))

    assert json.loads((tmp_path / "log").read_text()) == {
        "time": "2024-05-20T20:03:25.829575Z",
        "client": "127.0.0.1:5000",
        "method": "POST",
        "route": "/v2/models/m/infer",
        "status": 200,
        "bytes_in": 320,
        "bytes_out": 150,
        "total_us": 900,
        "model": "m",
        "version": 3,
        "id": "r-7",
        "batch_size": 4,
        "queue_us": 20,
        "compute_input_us": 3,
        "compute_infer_us": 700,
        "compute_output_us": 9,
    }


def test_other_routes_have_no_model(tmp_path):
    access = opened(tmp_path / "log")
    access.record("GET", "/v2/health/live", 200, client="", bytes_in=0, bytes_out=0, total_ns=50_000)

    assert (tmp_path / "log").read_text() == (
        '2024-05-20T20:03:25.829575Z - "GET /v2/health/live" 200 bytes_in=0 bytes_out=0 total_us=50\n'
    )


def test_a_request_that_never_ran_has_no_phases_but_its_error(tmp_path):
    access = opened(tmp_path / "log", json=True)
    request = InferenceRequest("m", {}, lambda *_: None, id="r", model_version=2)
    inference(access, request=request, model_version=None, error="queue is full")

    found = json.loads((tmp_path / "log").read_text())
    assert (found["model"], found["version"], found["id"], found["error"]) == ("m", 2, "r", "queue is full")
    assert "batch_size" not in found
    assert "queue_us" not in found


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize("hostile", ['a"b', "a\nb", "a\x1b[2J", "\udc80", "ü"])
def test_no_text_of_a_client_can_break_a_line(tmp_path, is_json, hostile):
    access = opened(tmp_path / "log", json=is_json)
    request = InferenceRequest(hostile, {}, lambda *_: None, id=hostile)
    inference(access, request=request, error=hostile)

    data = (tmp_path / "log").read_bytes()
    assert data.count(b"\n") == 1
    assert not re.search(rb"[\x00-\x09\x0b-\x1f]", data)
    if is_json:
        assert json.loads(data)["id"] == hostile


def test_lines_are_appended(tmp_path):
    (tmp_path / "log").write_text("old\n")
    inference(opened(tmp_path / "log"))

    assert (tmp_path / "log").read_text().startswith("old\n2024-")


def test_a_rotated_file_is_left_for_a_new_one(tmp_path):
    access = opened(tmp_path / "log")
    inference(access)
    (tmp_path / "log").rename(tmp_path / "log.1")
    inference(access)
    access.reopen()
    inference(access)

    assert len((tmp_path / "log.1").read_text().splitlines()) == 2
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_a_failed_reopen_keeps_the_old_file(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    access = opened(folder / "log")
    folder.rename(tmp_path / "moved")
    access.reopen()
    inference(access)

    assert "still writing to the old file" in caplog.text
    assert len((tmp_path / "moved" / "log").read_text().splitlines()) == 1


def test_dash_is_standard_output(capfd):
    access = opened("-")
    inference(access)
    access.close()
    os.write(1, b"still open\n")

    assert re.fullmatch(r"2024-.*\nstill open\n", capfd.readouterr().out)


def test_lost_lines_are_counted_and_told_once(caplog):
    access = opened("/dev/full")
    for _ in range(3):
        inference(access)
    access.close()

    assert access.num_lost == 3
    assert caplog.messages == ["access log '/dev/full': lines are lost: No space left on device"]


def test_a_file_that_cannot_be_opened_is_told(tmp_path):
    with pytest.raises(
        InvalidArgument, match=r"cannot open access log '.*/x/log': No such file or directory"
    ):
        open_access_log(str(tmp_path / "x" / "log"))


def test_off_means_there_is_no_log(tmp_path):
    assert open_access_log("") is None

    access = open_access_log(str(tmp_path / "log"))
    assert isinstance(access, AccessLog)
    access.close()
