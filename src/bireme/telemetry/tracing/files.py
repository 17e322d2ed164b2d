"""TraceFiles: the files of mode ``triton``. On the writing thread alone.

Traces of a setting without a count and without a log frequency go to the file at once. Others are collected: a full set goes
to a file of its own, with a number behind its name; what is left when the setting ends goes to the file, too.

The file is a whole JSON array at any time, not only after the server has stopped as with Triton.

Source: Triton ``tracer.cc`` (``TraceSetting::WriteTrace``, ``TraceFile::SaveTraces``).
"""

from __future__ import annotations

import contextlib
import weakref
from io import FileIO
from pathlib import Path

from bireme.telemetry import log as server_log
from bireme.telemetry.tracing.sampled import SampledTrace
from bireme.telemetry.tracing.settings import TraceSetting
from bireme.telemetry.tracing.triton_json import write_objects

log = server_log.get_logger(__name__)


class TraceFiles:
    """``path``, and its siblings with numbers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._size = 0
        """Of the file: what was written whole."""
        self._next_index = 0
        self._collected: dict[TraceSetting, list[bytes]] = {}
        self._num_written: dict[TraceSetting, int] = {}
        self._is_failing = False
        """Whether the last write has failed: said once, not for every batch until the disk has room again."""
        self._retired: weakref.WeakSet[TraceSetting] = weakref.WeakSet()

    def take(self, traces: list[SampledTrace]) -> None:
        """Write, or collect, finished traces."""
        direct: list[bytes] = []
        for trace in traces:
            text = write_objects(trace)
            setting = trace.setting
            if setting in self._retired or not (setting.log_frequency or setting.count >= 0):
                direct.append(text)
            else:
                self._collect(setting, text)
        self._append(direct)

    def _collect(self, setting: TraceSetting, text: bytes) -> None:
        collected = self._collected.setdefault(setting, [])
        collected.append(text)
        self._num_written[setting] = num_written = self._num_written.get(setting, 0) + 1
        is_last = setting.count == 0 and num_written >= setting.num_sampled
        if is_last or (setting.log_frequency and len(collected) >= setting.log_frequency):
            self._write_indexed(collected)
            collected.clear()

    def retire(self, setting: TraceSetting) -> None:
        """Write what was collected of a setting that is valid no more; what still comes of it is not collected."""
        self._retired.add(setting)
        self._num_written.pop(setting, None)
        self._append(self._collected.pop(setting, []))

    def close(self) -> None:
        """Write what is left."""
        for setting in tuple(self._collected):
            self.retire(setting)
        if self._file is not None:
            self._file.close()

    def _append(self, texts: list[bytes]) -> None:
        if not texts:
            return
        try:
            if self._file is None:
                self._file = FileIO(self._path, "w")
            self._write(self._file, (b"," if self._size else b"[") + b",".join(texts) + b"]")
            self._is_failing = False
        except OSError as error:
            self._note_failure(self._path, error)

    def _note_failure(self, path: str, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.error(
                "failed creating trace file: %s: %s; traces are lost until it works", path, error.strerror
            )

    def _write(self, file: FileIO, text: bytes) -> None:
        """Put ``text`` in the place of the closing bracket, or leave the file as it was: a disk that is full may have room later."""
        start = max(0, self._size - 1)
        file.seek(start)
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(start)
                file.seek(start)
                file.write(b"]" if start else b"")
            raise
        self._size = start + len(text)

    def _write_indexed(self, texts: list[bytes]) -> None:
        path = f"{self._path}.{self._next_index}"
        self._next_index += 1
        try:
            Path(path).write_bytes(b"[" + b",".join(texts) + b"]")
            self._is_failing = False
        except OSError as error:
            self._note_failure(path, error)
