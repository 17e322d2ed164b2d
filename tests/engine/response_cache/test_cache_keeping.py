"""What goes into a cache: the cache's own memory, that nobody writes to."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from bireme.engine.response_cache.keeping import keep, own_inputs
from bireme.ipc.arena import Arena
from bireme.ipc.ledger import block_of
from bireme.ipc.shared_memory import SharedMemoryRegions
from bireme.types import InferenceRequest, InferenceResponse, Tensor
from shm_objects import ShmObject


def kept(*tensors: Tensor, **settings: object):
    return keep(InferenceResponse("m", 1, "id", list(tensors), **settings))


def fresh(size: int = 1000) -> Tensor:
    return Tensor("Y", "FP32", (size,), np.arange(size, dtype=np.float32))


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_that_only_the_response_has_is_kept_without_a_copy():
    tensor = fresh()
    place = address(tensor.to_numpy())
    (found,) = kept(tensor).outputs

    assert address(found.data) == place


def test_nobody_can_write_to_what_is_kept():
    tensor = fresh()
    (found,) = kept(tensor).outputs

    assert not found.data.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        tensor.to_numpy()[0] = 5


def test_a_buffer_that_the_model_keeps_is_copied():
    buffer = np.zeros(4, np.float32)
    (found,) = kept(Tensor.from_numpy("Y", buffer)).outputs
    buffer[:] = 7

    assert found.data.tolist() == [0, 0, 0, 0]


def test_a_part_of_a_batch_does_not_hold_the_whole_batch():
    batch = np.zeros((100, 1000), np.float32)
    (found,) = kept(Tensor.from_numpy("Y", batch[3:4])).outputs

    assert found.data.base is None


def test_shared_memory_of_a_process_is_not_held():
    arena = Arena()
    block = arena.allocate(4000)
    tensor = Tensor.from_numpy("Y", block.view(np.ndarray).view(np.float32))
    del block
    response = InferenceResponse("m", 1, "", [tensor])
    entry = keep(response)

    assert arena.used_bytes > 0
    del response, tensor
    assert arena.used_bytes == 0
    assert block_of(entry.outputs[0].data) is None


def test_the_bytes_are_counted_truly():
    entry = kept(fresh(100_000), Tensor.from_numpy("T", np.array([b"x" * 5000], np.object_)))
    size = sum(sys.getsizeof(output.data) for output in entry.outputs)

    assert size <= entry.nbytes <= size + 3000


def test_texts_handed_out_decode_without_the_entry_growing():
    entry = kept(Tensor.from_numpy("T", np.array([b"abc", b""], np.object_)))
    first, second = entry.outputs[0].to_tensor(), entry.outputs[0].to_tensor()

    assert first.to_numpy().tolist() == [b"abc", b""]
    assert second.is_encoded


def test_the_collector_does_not_look_at_entries():
    entry = kept(fresh())

    assert not gc.is_tracked(entry)
    assert not gc.is_tracked(entry.outputs[0])


def test_parameters_are_kept_but_for_the_trace():
    assert kept(fresh(), parameters={"a": 1, "bireme_trace": "{}"}).parameters == {"a": 1}
    assert kept(fresh(), parameters={"bireme_trace": "{}"}).parameters is None


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_inputs_in_a_client_s_memory_are_copied_before_they_count(datatype):
    regions = SharedMemoryRegions(is_allowed=True)
    data = b"\x04\x00\x00\x00abcd" if datatype == "BYTES" else np.ones(2, np.float32).tobytes()
    client = ShmObject(8)
    client.memory[:] = data
    try:
        regions.register_system("r", client.key, 0, 8)
        view = regions.slice("r", 0, 8)
        if datatype == "BYTES":
            tensor = Tensor("X", "BYTES", (1,), None, view)
        else:
            tensor = Tensor("X", "FP32", (2,), np.frombuffer(view, np.float32))
        own = fresh()
        request = InferenceRequest("m", {"X": tensor, "Y": own}, print)
        tensor.to_numpy()  # as the validation does
        own_inputs(request)
        client.memory[:] = bytes(8)

        assert bytes(request.inputs["X"].to_buffer()) == data
        assert request.inputs["Y"] is own
    finally:
        regions.close()
        client.close()
