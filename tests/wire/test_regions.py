"""Outputs in shared memory: which of them a backend may write there itself, and what is copied when it has not."""

from __future__ import annotations

import numpy as np
import pytest

from bireme.types import InferenceResponse, NotFound, Tensor
from bireme.wire.encoded import MAX_COPY_BYTES, copies_much
from bireme.wire.regions import MIN_TARGET_BYTES as LARGE, NO_REGIONS, OutputRegion, Place
from bireme.wire.wanted_outputs import WantedOutput, find_targets
from shm_objects import FakeRegions


def wanted(regions: FakeRegions, *place) -> WantedOutput:
    return WantedOutput(region=output(regions, *place))


def output(regions: FakeRegions, name: str, offset: int, byte_size: int) -> OutputRegion:
    return OutputRegion(name, offset, byte_size, regions.slice(name, offset, byte_size))


@pytest.fixture
def regions():
    return FakeRegions(r=4 * LARGE, s=2 * LARGE)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([], ["Y", "Z"]),
        ([Place("r", 0, LARGE)], ["Y", "Z"]),
        ([Place("r", 0, LARGE + 1)], ["Z"]),
        ([Place("r", 2 * LARGE - 1, 1)], ["Z"]),
        ([Place("r", 2 * LARGE, 8)], ["Y", "Z"]),
        ([Place("s", 0, 8), Place("r", LARGE, 8)], []),
    ],
)
def test_large_outputs_may_be_written_where_no_input_lies(regions, inputs, expected):
    outputs = {
        "J": WantedOutput(),
        "Y": wanted(regions, "r", LARGE, LARGE),
        "Z": wanted(regions, "s", 0, LARGE),
        "small": wanted(regions, "r", 3 * LARGE, LARGE - 1),
    }
    targets = find_targets(regions, inputs, outputs)

    assert list(targets or ()) == expected
    assert targets is None or all(targets[name] is outputs[name].region.memory for name in expected)


def test_small_outputs_are_not_asked_for(regions):
    def fail(_first, _second):
        raise AssertionError

    regions.overlap = fail

    assert find_targets(regions, [Place("r", 0, 8)], {"Y": wanted(regions, "r", 0, 8)}) is None


def test_nothing_overlaps_where_nothing_is():
    assert len(NO_REGIONS) == 0
    assert not NO_REGIONS.overlap(Place("r", 0, 1), Place("r", 0, 1))
    with pytest.raises(NotFound):
        NO_REGIONS.slice("r", 0, 1)


def at(region: OutputRegion, shape: tuple[int, ...]) -> np.ndarray:
    return np.ndarray(shape, np.float32, region.memory)


def test_an_output_that_is_there_already_is_not_copied(regions):
    region = output(regions, "r", LARGE, 2 * LARGE)
    there = Tensor.from_numpy("Y", at(region, (LARGE // 4,)))
    assert region.has(there)
    regions.memory["r"][LARGE : LARGE + 3] = b"abc"

    assert region.write(there) == LARGE
    assert regions.memory["r"][LARGE : LARGE + 3] == b"abc"


def test_what_is_elsewhere_or_packed_otherwise_is_copied(regions):
    region = output(regions, "r", 0, 2 * LARGE)
    values = np.arange(LARGE // 4, dtype=np.float32)
    at(region, (LARGE // 4,))[:] = values
    strided = at(region, (LARGE // 4,))[::2]
    beside = np.ndarray((4,), np.float32, region.memory, 4)

    assert not region.has(Tensor.from_numpy("Y", values))
    assert not region.has(Tensor.from_numpy("Y", strided))
    assert not region.has(Tensor.from_numpy("Y", beside))
    assert region.write(Tensor.from_numpy("Y", strided)) == LARGE // 2
    np.testing.assert_array_equal(at(region, (LARGE // 8,)), values[::2])


def test_small_regions_are_not_looked_at(regions):
    region = output(regions, "r", 0, 64)

    assert not region.has(Tensor.from_numpy("Y", at(region, (4,))))
    assert not region.has(Tensor.from_numpy("Y", np.array([b"x"], np.object_)))


def test_only_what_is_to_be_copied_takes_time():
    size = MAX_COPY_BYTES + 4
    regions = FakeRegions(r=size)
    region = output(regions, "r", 0, size)
    by_name = {"Y": WantedOutput(region=region)}

    def copies(*tensors: Tensor) -> bool:
        return copies_much(InferenceResponse("m", 1, "", tensors), by_name)

    assert copies(Tensor.from_numpy("Y", np.zeros(size // 4, np.float32)))
    assert copies(Tensor("Y", "BYTES", (1,), None, bytes(size)))
    assert not copies(Tensor.from_numpy("Z", np.zeros(size // 4, np.float32)))
    assert not copies(Tensor.from_numpy("Y", at(region, (size // 4,))))
    assert not copies(Tensor.from_numpy("Y", np.zeros(MAX_COPY_BYTES // 4, np.float32)))
