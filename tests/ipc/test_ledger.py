"""Ledger: what is copied and what is lent, for how long, in both directions and across three processes' ledgers."""

from __future__ import annotations

import gc
import random
import socket
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bireme.ipc import ledger as ledger_module
from bireme.ipc.arena import Arena
from bireme.ipc.channel import make_pair
from bireme.ipc.ledger import INLINE_SIZE, Ledger, block_of
from bireme.ipc.messages import BlockRef, TensorData
from bireme.ipc.segment import Segment
from bireme.types import Internal, Tensor, Unavailable
from bireme.types.datatypes import NUMPY_DTYPES


class Side:
    """A ledger, as its process would have it."""

    def __init__(self, arena: Arena, introductions: socket.socket) -> None:
        self.arena = arena
        self.ledger = Ledger(arena, introductions)
        self.peer: Side

    def give(self, tensor: Tensor | np.ndarray, **options) -> Tensor:
        """Hand a tensor over: to the other side's."""
        tensor = tensor if isinstance(tensor, Tensor) else Tensor.from_numpy("X", tensor)
        return self.peer.ledger.adopt(travel(self.ledger.export(tensor)), **options)

    def settle(self) -> None:
        """Send what is not needed any more, both ways, until nothing is left to say."""
        while self.ledger.released or self.peer.ledger.released:
            self.peer.ledger.take_back(self.ledger.take_released())
            self.ledger.take_back(self.peer.ledger.take_released())


def travel(data: TensorData) -> TensorData:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(data), type=TensorData)


@pytest.fixture
def connect():
    sockets = []

    def connect(arena: Arena, other: Arena) -> tuple[Side, Side]:
        ends = make_pair()
        sockets.extend(ends)
        first, second = (Side(each, end) for each, end in zip((arena, other), ends, strict=True))
        first.peer, second.peer = second, first
        return first, second

    yield connect
    for end in sockets:
        end.close()


@pytest.fixture
def sides(connect):
    return connect(Arena(), Arena())


def in_arena(arena: Arena, array: np.ndarray) -> np.ndarray:
    placed = np.ndarray(array.shape, array.dtype, arena.allocate(array.nbytes))
    placed[...] = array
    return placed


def large(shape=(100, 1000), dtype=np.float32) -> np.ndarray:
    return np.arange(np.prod(shape)).astype(dtype).reshape(shape)


def num_descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def num_mappings() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:bireme")


# Values


@pytest.mark.parametrize("datatype", [name for name in NUMPY_DTYPES if name != "BYTES"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7,), (100, 100)])
@pytest.mark.parametrize("writable", [True, False])
def test_every_data_type_and_shape_arrives(sides, datatype, shape, writable):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(NUMPY_DTYPES[datatype]).reshape(shape)
    tensor = sides[0].give(Tensor("A", datatype, shape, array), writable=writable)

    assert (tensor.name, tensor.datatype, tensor.shape) == ("A", datatype, shape)
    found = tensor.to_numpy()
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert found.flags.writeable == writable
    assert found.flags.aligned


@pytest.mark.parametrize("length", [0, 10, 100_000])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_arrive_encoded(sides, length, wrap):
    encoded = wrap(length.to_bytes(4, "little") + b"x" * length)
    tensor = sides[0].give(Tensor("S", "BYTES", (1,), None, encoded))

    assert tensor.is_encoded
    assert tensor.to_numpy().tolist() == [b"x" * length]


def test_bytes_elements_are_encoded_once(sides):
    tensor = Tensor.from_numpy("S", np.array([b"a", "ü"], dtype=object))

    assert sides[0].give(tensor).to_numpy().tolist() == [b"a", "ü".encode()]
    assert tensor._encoded is not None


@pytest.mark.parametrize("turn", [np.transpose, lambda array: array[::2], lambda array: array[:, 10:900]])
@pytest.mark.parametrize("is_placed", [True, False])
def test_strided_arrays_arrive_in_order(sides, turn, is_placed):
    array = turn(in_arena(sides[0].arena, large()) if is_placed else large())

    np.testing.assert_array_equal(sides[0].give(array).to_numpy(), array)


# Copies


def test_few_bytes_travel_in_the_message(sides):
    data = sides[0].ledger.export(
        Tensor.from_numpy("X", in_arena(sides[0].arena, np.zeros(INLINE_SIZE, "u1")))
    )

    assert type(data.data) is bytes
    assert sides[0].ledger.num_lent == 0


def test_a_foreign_array_is_copied_once_into_the_arena(sides):
    array = large()
    tensor = sides[0].give(array)
    array[...] = 0

    assert tensor.to_numpy()[5, 5] == 5005
    assert sides[0].arena.used_bytes >= array.nbytes
    assert sides[1].arena.statistics().reserved == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array,
        lambda array: array[3:60],
        lambda array: array.reshape(-1)[10:],
        lambda array: array.view(np.int32),
        lambda array: np.frombuffer(memoryview(array).cast("B")[4000:80_000], np.float32),
        lambda array: np.frombuffer(Tensor.from_numpy("X", array).to_buffer(), np.float32),
        lambda array: np.asarray(memoryview(array)),
    ],
)
def test_any_contiguous_view_of_a_block_is_lent_as_it_is(sides, view):
    array = view(in_arena(sides[0].arena, large()))
    used = sides[0].arena.used_bytes
    tensor = sides[0].give(array)

    np.testing.assert_array_equal(tensor.to_numpy(), array)
    assert sides[0].arena.used_bytes == used
    tensor.to_numpy().reshape(-1)[7] = 42
    assert array.reshape(-1)[7] == 42


def test_a_read_only_view_is_lent_as_well(sides):
    array = in_arena(sides[0].arena, large())
    array.flags.writeable = False
    used = sides[0].arena.used_bytes
    tensor = sides[0].give(array[5:50])

    np.testing.assert_array_equal(tensor.to_numpy(), array[5:50])
    assert sides[0].arena.used_bytes == used


def test_encoded_bytes_in_a_block_are_lent(sides):
    block = sides[0].arena.allocate(20_000)
    encoded = memoryview(block)[96:]
    encoded[:4] = (len(encoded) - 4).to_bytes(4, "little")
    used = sides[0].arena.used_bytes
    tensor = sides[0].give(Tensor("S", "BYTES", (1,), None, encoded))

    assert bytes(tensor.to_buffer()) == bytes(encoded)
    assert sides[0].arena.used_bytes == used
    assert block_of(np.frombuffer(tensor.to_buffer(), "u1")) is not None


# Leases


def test_what_is_lent_stays_until_the_peer_lets_go(sides):
    mine, theirs = sides
    tensor = mine.give(large())
    view = tensor.to_numpy()[50:]
    del tensor
    mine.settle()
    assert (mine.ledger.num_lent, theirs.ledger.num_borrowed) == (1, 1)
    assert mine.arena.used_bytes > 0
    assert view[0, 0] == 50_000
    del view

    assert len(theirs.ledger.released) == 1
    mine.settle()
    assert (mine.ledger.num_lent, theirs.ledger.num_borrowed) == (0, 0)
    assert mine.arena.used_bytes == 0


def test_a_borrowed_tensor_goes_back_as_the_owners_own_memory(sides):
    mine, theirs = sides
    array = in_arena(mine.arena, large())
    back = theirs.give(mine.give(array))

    assert np.shares_memory(back.to_numpy(), array)
    assert theirs.arena.statistics().reserved == 0


def test_a_part_of_a_borrowed_part_is_found_again(sides):
    mine, theirs = sides
    array = in_arena(mine.arena, large())
    part = mine.give(array[10:90])
    back = theirs.give(part.to_numpy()[5:50])

    np.testing.assert_array_equal(back.to_numpy(), array[15:60])
    assert np.shares_memory(back.to_numpy(), array)


def test_a_reference_back_outlives_what_it_was_made_from(sides):
    """A thread may give the lease back before another one's message with the reference has left."""
    mine, theirs = sides
    tensor = mine.give(large())
    data = travel(theirs.ledger.export(tensor))
    del tensor
    mine.ledger.take_back(theirs.ledger.take_released())
    back = mine.ledger.adopt(data)

    np.testing.assert_array_equal(back.to_numpy(), large())
    mine.settle()
    assert (theirs.ledger.num_lent, theirs.ledger.num_borrowed, mine.ledger.num_lent) == (0, 0, 0)
    assert mine.arena.used_bytes > 0
    del back
    assert mine.arena.used_bytes == 0


def test_one_tensor_lent_twice_is_free_after_both(sides):
    mine, _ = sides
    array = in_arena(mine.arena, large())
    first, second = mine.give(array), mine.give(array)
    del array, first
    mine.settle()
    assert mine.arena.used_bytes > 0
    del second
    mine.settle()

    assert mine.arena.used_bytes == 0


def test_a_third_process_gets_the_same_memory(connect):
    server = Arena()
    (to_first, first), (to_second, second) = connect(server, Arena()), connect(server, Arena())
    array = in_arena(first.arena, large())
    at_server = first.give(array)
    at_second = to_second.give(at_server)
    del at_server
    to_first.settle()
    assert first.ledger.num_lent == 1  # the server holds it for the second
    at_second.to_numpy()[0, 0] = 77
    assert array[0, 0] == 77

    back_at_server = second.give(at_second)
    back_at_first = to_first.give(back_at_server)
    assert np.shares_memory(back_at_first.to_numpy(), array)
    assert server.statistics().reserved == second.arena.statistics().reserved == 0
    del at_second, back_at_server, back_at_first, array
    for side in (to_second, to_first, to_second, to_first):
        side.settle()
    assert first.ledger.num_lent == to_second.ledger.num_lent == to_first.ledger.num_lent == 0
    assert first.arena.used_bytes == 0


def test_random_traffic_leaves_nothing(sides):
    rng = random.Random(3)
    held: list[list[Tensor]] = [[], []]
    for _ in range(2000):
        index = rng.randrange(2)
        side, own, others = sides[index], held[index], held[1 - index]
        if own and rng.random() < 0.6:
            tensor = rng.choice(own)
            array = tensor.to_numpy()[rng.randrange(len(tensor.to_numpy())) :]
        else:
            array = np.full(int(2 ** rng.uniform(0, 16)), rng.randrange(100), np.int32)
        others.append(side.give(array))
        np.testing.assert_array_equal(others[-1].to_numpy(), array)
        del array
        if len(others) > 8:
            others.pop(rng.randrange(8))
        if rng.random() < 0.3:
            side.settle()
    held.clear()
    del own, others, tensor
    sides[0].settle()

    for side in sides:
        assert (side.ledger.num_lent, side.ledger.num_borrowed, side.arena.used_bytes) == (0, 0, 0)


def test_many_threads_export_at_once(sides):
    mine, theirs = sides
    found: list[tuple[int, TensorData]] = []

    def work(mark: int) -> None:
        array = np.full(3000, mark)
        found.extend((mark, mine.ledger.export(Tensor.from_numpy("X", array))) for _ in range(100))

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mark, data in found:
        tensor = theirs.ledger.adopt(data)
        assert (tensor.to_numpy() == mark).all()
    del tensor
    mine.settle()

    assert mine.arena.used_bytes == 0


# The end


def test_the_death_of_the_peer_frees_what_it_held_and_unmaps_its_memory_with_the_last_view(connect):
    before = num_descriptors(), num_mappings()
    mine, theirs = connect(Arena(), Arena())
    lent = mine.give(large())
    borrowed = theirs.give(large())
    assert mine.arena.used_bytes > 0
    mine.ledger.drop_all()
    assert mine.arena.used_bytes == 0
    theirs.ledger.drop_all()
    del theirs.arena, theirs.ledger, theirs, lent, mine.peer
    gc.collect()
    np.testing.assert_array_equal(borrowed.to_numpy(), large())
    del borrowed, mine

    assert (num_descriptors(), num_mappings()) == before


def test_others_forget_the_segments_of_a_process_that_is_gone(connect):
    server = Arena()
    (to_first, first), (to_second, second) = connect(server, Arena()), connect(server, Arena())
    at_second = to_second.give(first.give(large()))
    del first.arena, first.ledger
    to_first.ledger.drop_all()
    gc.collect()
    assert len(second.ledger._segments) == 1
    del at_second
    to_second.settle()
    gc.collect()
    to_second.settle()

    assert len(second.ledger._segments) == 0
    assert not to_second.ledger._introduced


def test_an_end_of_connection_is_an_error_of_the_export(sides):
    sides[0].ledger.drop_all()
    with pytest.raises(Unavailable, match="share memory"):
        sides[0].ledger.export(Tensor.from_numpy("X", large()))
    assert sides[0].ledger.num_lent == 0


# What makes no sense


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP32", (2,), bytearray(4)),
        ("FP99", (1,), bytearray(4)),
        ("FP32", (-1,), bytearray(4)),
        ("FP32", (1,), BlockRef(-5, 0, 4, 1)),
    ],
)
def test_a_tensor_that_makes_no_sense_is_refused(sides, datatype, shape, data):
    with pytest.raises(Internal):
        sides[0].ledger.adopt(TensorData("X", datatype, shape, data))


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1 << 40), (1 << 40, 10), (-8, 8), (0, -1)])
def test_a_reference_beside_the_segment_is_refused_and_given_back(sides, offset, nbytes):
    mine, theirs = sides
    ref = mine.ledger.export(Tensor.from_numpy("X", large())).data
    with pytest.raises(Internal):
        theirs.ledger.borrow(BlockRef(ref.segment, offset, nbytes, ref.lease))
    mine.settle()

    assert mine.ledger.num_lent == 0


def test_an_unknown_segment_is_an_error(sides):
    with pytest.raises(Unavailable, match="cannot map"):
        sides[0].ledger.borrow(BlockRef(12_345, 0, 10, 1))


def test_a_segment_that_cannot_be_mapped_is_an_error_and_leaves_no_descriptor(sides):
    before = num_descriptors()
    segment = Segment.allocate(100)
    socket.send_fds(
        sides[1].ledger._introductions, [ledger_module._INTRODUCTION.pack(9, 1 << 20)], [segment.fd]
    )
    del segment
    with pytest.raises(Unavailable, match="cannot map"):
        sides[0].ledger.borrow(BlockRef(9, 0, 10, 1))

    assert num_descriptors() == before


def test_a_segment_of_the_same_number_from_elsewhere_is_copied(sides):
    mine, _ = sides
    mine.give(in_arena(mine.arena, large()))
    imposter = in_arena(Arena(mine.arena._next_segment - 1), large()[::-1].copy())

    np.testing.assert_array_equal(mine.give(imposter).to_numpy(), large()[::-1])


def test_descriptors_that_are_not_read_do_not_block(sides, monkeypatch):
    def fail(*args):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(socket, "send_fds", fail)
    with pytest.raises(Unavailable, match="temporarily"):
        sides[0].give(large())
