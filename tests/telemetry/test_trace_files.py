"""Trace files on a disk that is full for a while."""

from __future__ import annotations

import json
from io import FileIO
from types import SimpleNamespace

import pytest

from bireme.telemetry.tracing import files


class Disk(FileIO):
    """A file on a disk with room for so many bytes; what does not fit is written in part, as by Linux."""

    room = 0

    def write(self, data):
        fits = bytes(data)[: max(0, Disk.room - self.tell())]
        if not fits and len(data):
            raise OSError(28, "No space left on device")
        return super().write(fits)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(files, "FileIO", Disk)
    monkeypatch.setattr(files, "write_objects", lambda trace: json.dumps(trace.number).encode())
    return Disk


@pytest.mark.parametrize("room", range(10))
def test_what_a_full_disk_had_no_room_for_is_left_out_and_the_file_stays_json(disk, tmp_path, room):
    written = files.TraceFiles(str(tmp_path / "trace.json"))
    setting = SimpleNamespace(log_frequency=0, count=-1)

    def write(*numbers):
        written.take([SimpleNamespace(setting=setting, number=number) for number in numbers])

    def content():
        text = (tmp_path / "trace.json").read_text()
        return json.loads(text) if text else []

    disk.room = room
    write(11, 12)  # 7 bytes
    held = content()
    assert held == ([11, 12] if room >= 7 else [])
    write(13)  # 3 more
    held += [13] if room >= (10 if held else 4) else []
    assert content() == held
    disk.room = 100
    write(14)

    assert content() == [*held, 14]
    written.close()


def test_a_file_that_cannot_be_written_is_told_once_each_time(disk, tmp_path, caplog):
    written = files.TraceFiles(str(tmp_path / "trace.json"))

    class Setting(SimpleNamespace):
        __hash__ = object.__hash__

    def write(log_frequency=0):
        setting = Setting(log_frequency=log_frequency, count=-1)
        written.take([SimpleNamespace(setting=setting, number=1)])

    for room in (0, 0, 100, 3, 3):
        disk.room = room
        write()
    (tmp_path / "trace.json.0").mkdir()
    write(log_frequency=1)
    reasons = [record.getMessage() for record in caplog.records]
    assert len(reasons) == 2
    assert all("No space left on device; traces are lost until it works" in reason for reason in reasons)
    write(log_frequency=1)  # to a file of its own, which works
    (tmp_path / "trace.json.2").mkdir()
    write(log_frequency=1)
    assert "Is a directory" in caplog.records[2].getMessage()
    written.close()
