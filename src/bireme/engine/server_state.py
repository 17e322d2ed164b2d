"""ServerState: where a server is between its start and its end."""

from __future__ import annotations

from enum import StrEnum


class ServerState(StrEnum):
    """State of a whole server."""

    NEW = "new"
    INITIALIZING = "initializing"
    READY = "ready"
    EXITING = "exiting"
    STOPPED = "stopped"
    FAILED = "failed"
