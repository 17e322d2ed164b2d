"""PollTracker: from a series of snapshots to the changes that may be acted on. Pure: whoever polls brings the looks.

A model that is being copied in looks different in every poll; so does one that is being replaced. A change counts only
when two looks in a row found the same, which means that a half-copied model is never loaded and a model that is
missing for a moment, while somebody replaces its folder, is not unloaded.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from bireme.repository.catalogue import Snapshot
from bireme.repository.fingerprint import Fingerprint

_MAX_RETRY_POLLS = 64


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do now; each a sorted list of model names."""

    added: list[str]
    modified: list[str]
    deleted: list[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.modified or self.deleted)


class PollTracker:
    """Remembers what was acted on and what the last look saw.

    A model whose load failed is tried again although its files stay the same, because the cause may lie elsewhere (a
    missing package, no memory): after 1, 2, 4 … 64 polls, so that a model that can never load does not take a loading
    thread every time.
    """

    def __init__(self) -> None:
        self._settled: dict[str, Fingerprint] = {}
        self._seen: dict[str, Fingerprint] = {}
        self._retries: dict[str, _Retry] = {}
        self._num_polls = 0

    def observe(self, snapshot: Snapshot) -> Changes:
        """Take a look into account and return the changes to act on; each is returned once."""
        self._num_polls += 1
        changes = Changes([], [], [])
        for name in sorted({*snapshot.models, *self._settled}):
            if name in snapshot.unreadable:
                continue  # nothing is known: keep what there is
            now = snapshot.models.get(name)
            if now is None and not snapshot.is_complete:
                continue
            if now == self._seen.get(name):
                self._settle(name, now, changes)
        known = self._seen
        self._seen = dict(snapshot.models)
        for name in known.keys() - self._seen.keys():
            if name in snapshot.unreadable or not snapshot.is_complete:
                self._seen[name] = known[name]
        return changes

    def mark_failed(self, name: str) -> None:
        """Say that acting on ``name`` failed: it is returned as modified again later, even unchanged."""
        retry = self._retries.setdefault(name, _Retry())
        retry.due_poll = self._num_polls + retry.wait_polls
        retry.wait_polls = min(2 * retry.wait_polls, _MAX_RETRY_POLLS)

    def mark_loaded(self, name: str) -> None:
        """Say that ``name`` has been loaded."""
        self._retries.pop(name, None)

    def _settle(self, name: str, now: Fingerprint | None, changes: Changes) -> None:
        before = self._settled.get(name)
        if now is None:
            changes.deleted.append(name)
            del self._settled[name]
            self._retries.pop(name, None)
            return
        if before == now:
            retry = self._retries.get(name)
            if retry is not None and self._num_polls >= retry.due_poll:
                retry.due_poll = sys.maxsize  # until the attempt has ended
                changes.modified.append(name)
            return
        self._retries.pop(name, None)
        self._settled[name] = now
        (changes.added if before is None else changes.modified).append(name)


@dataclass(slots=True)
class _Retry:
    due_poll: int = 0
    wait_polls: int = 1
