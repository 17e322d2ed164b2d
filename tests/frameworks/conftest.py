"""What tests of several files here share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def only_s3_server() -> Iterator[Any]:
    from s3_server import S3Server

    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def s3_server(only_s3_server):
    """Return the S3 server, with an empty bucket."""
    only_s3_server.empty()
    return only_s3_server
