"""Models with implicit state, served: what clients see of sequences whose memory is the server's."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pytest

from bireme import Server
from bireme.testing import FakeBackend
from bireme.types import BackendFailed, DeadlineExceeded, SequenceSlot
from model_dirs import until

CONFIG = """
backend: "fake"
max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}
sequence_batching {{
  {}
  state {{ input_name: "SUM" output_name: "SUM_NEXT" data_type: TYPE_FP32 dims: [ 1 ] }}
  state {{
    input_name: "PRODUCT" output_name: "PRODUCT_NEXT" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state {{ name: "one" data_type: TYPE_FP32 dims: [ 1 ] data_file: "one" }}
  }}
}}
instance_group {{ kind: KIND_CPU count: {} }}
"""
STRATEGIES = {"oldest": "oldest { max_candidate_sequences: 16 }", "direct": "direct { }"}


class Calculator(FakeBackend):
    """Adds and multiplies the numbers of each sequence: Y is the sum times a thousand and the product."""

    def __init__(self, *, may_run_inline: bool = True) -> None:
        super().__init__(self._calculate, may_run_inline=may_run_inline)

    def _calculate(self, inputs):
        if (inputs["X"] < 0).any():
            raise ValueError("negative")
        total, product = inputs["SUM"] + inputs["X"], inputs["PRODUCT"] * inputs["X"]
        return {"Y": total * 1000 + product, "SUM_NEXT": total, "PRODUCT_NEXT": product}


@pytest.fixture
def serve(tmp_path):
    """Run a test's coroutine with a server that has the model "calculator"."""

    def run(scenario, *, strategy="oldest", num_instances=1, extra="", backend=None):
        folder = tmp_path / "calculator"
        (folder / "1").mkdir(parents=True)
        (folder / "initial_state").mkdir()
        (folder / "initial_state/one").write_bytes(np.float32(1).tobytes())
        (folder / "config.pbtxt").write_text(CONFIG.format(STRATEGIES[strategy] + extra, num_instances))

        async def main():
            async with Server(tmp_path, backends={"fake": backend or Calculator()}) as server:
                await scenario(server)

        asyncio.run(main())

    return run


async def ask(server, sequence, x, *, start=False, end=False, **parameters):
    result = await server.ainfer(
        "calculator",
        {"X": [[x]]},
        sequence_id=sequence,
        sequence_start=start,
        sequence_end=end,
        parameters=parameters or None,
    )
    assert ["Y"] == list(result)
    return result["Y"].item()


def place_of(sequence: str) -> list:
    """Return the place of a live sequence: nothing else has its states."""
    return [
        found
        for found in gc.get_objects()
        if isinstance(found, SequenceSlot) and found.sequence_id == sequence
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_instances", [1, 2])
def test_interleaved_sequences_have_their_own_states(serve, strategy, num_instances):
    async def one(server, sequence):
        numbers = [sequence % 3 + 1, 2, sequence % 5 + 1]
        total, product = 0, 1
        for index, x in enumerate(numbers):
            total, product = total + x, product * x
            found = await ask(server, sequence, x, start=index == 0, end=index == 2)
            assert total * 1000 + product == found

    async def scenario(server):
        await asyncio.gather(*(one(server, sequence) for sequence in range(1, 21)))

    serve(scenario, strategy=strategy, num_instances=num_instances)


def test_a_failure_costs_the_sequence_nothing(serve):
    async def scenario(server):
        assert 3003 == await ask(server, 7, 3, start=True)
        with pytest.raises(BackendFailed, match="negative"):
            await ask(server, 7, -1)
        assert 5006 == await ask(server, 7, 2)

    serve(scenario)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_request_whose_deadline_passed_while_it_ran_leaves_the_state_as_it_was(serve, strategy):
    """Its caller has heard that it failed, and sends it again."""
    backend = Calculator(may_run_inline=False)

    async def scenario(server):
        assert 3003 == await ask(server, 7, 3, start=True)
        assert 4004 == await ask(server, 8, 4, start=True)
        backend.gate.clear()
        try:
            other = asyncio.ensure_future(ask(server, 8, 2, end=True))
            with pytest.raises(DeadlineExceeded, match="while it ran"):
                await ask(server, 7, 2, bireme_deadline_us=20_000)
            again = asyncio.ensure_future(ask(server, 7, 2, end=True))
            await asyncio.sleep(0)
        finally:
            backend.gate.set()
        assert 5006 == await again
        assert 6008 == await other

    serve(scenario, strategy=strategy, backend=backend, extra="max_sequence_idle_microseconds: 5000000")


def test_a_sequence_begun_anew_has_the_initial_state(serve):
    async def scenario(server):
        await ask(server, "a text", 3, start=True)
        assert 2002 == await ask(server, "a text", 2, start=True)

    serve(scenario)


@pytest.fixture
def _no_collection():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("way", ["end", "idle"])
def test_a_state_goes_with_its_sequence_and_needs_no_collection(serve, way):
    async def scenario(server):
        await ask(server, way, 3, start=True)
        (place,) = place_of(way)
        held = [weakref.ref(array) for array in place.state.values()]
        assert 2 == len([each for each in held if each() is not None])
        del place

        if way == "end":
            await ask(server, way, 3, end=True)
        await until(lambda: place_of(way) == [])
        assert [None, None] == [each() for each in held]

    serve(scenario, extra="max_sequence_idle_microseconds: 30000" if way == "idle" else "")
