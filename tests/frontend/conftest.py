"""For all tests of the front ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bireme.frontend import tls_connection
from bireme.frontend.grpc import connection
from bireme.frontend.http import receiver


@pytest.fixture(autouse=True, scope="session")
def _turns_end_where_a_test_says_so() -> Iterator[None]:
    """Let no turn of the loop end by the clock: a busy machine would divide what a test sends at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiver, "_TURN_NS", 1 << 60)
        patch.setattr(connection, "_TURN_S", 1e9)
        patch.setattr(tls_connection, "_TURN_S", 1e9)
        yield
