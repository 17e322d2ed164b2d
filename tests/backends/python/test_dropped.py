"""Telling a model of a sequence that is over without its END."""

import asyncio

import pytest

from bireme.backends.python import dropped


class Told:
    def __init__(self):
        self.ids = []

    def drop_sequence(self, sequence_id):
        self.ids.append(sequence_id)


class ToldAsync(Told):
    async def drop_sequence(self, sequence_id):
        await asyncio.sleep(0)
        self.ids.append(sequence_id)


class Broken:
    def drop_sequence(self, sequence_id):
        raise SystemExit(f"no {sequence_id}")


def fail(text):
    raise AssertionError(text)


@pytest.mark.parametrize("kind", [Told, ToldAsync])
def test_the_hook_gets_the_id(kind):
    model = kind()
    dropped.tell(model, 7, fail)
    asyncio.run(dropped.tell_async(model, "eight", fail))
    assert model.ids == [7, "eight"]


def test_what_the_hook_raises_is_logged_and_ends_nothing():
    errors = []
    dropped.tell(Broken(), 7, errors.append)
    asyncio.run(dropped.tell_async(Broken(), "eight", errors.append))
    assert [error.split(" failed: ")[0] for error in errors] == [
        "drop_sequence(7)",
        "drop_sequence('eight')",
    ]
    assert "no 7" in errors[0]
