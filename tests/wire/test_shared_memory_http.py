"""Infer bodies whose tensors are in shared memory: where inputs are read from, where outputs go, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bireme.types import (
    BiremeError,
    InferenceResponse,
    Internal,
    InvalidArgument,
    NotFound,
    Tensor,
    encode_bytes,
)
from bireme.wire import http as wire_http
from bireme.wire.encoded import MAX_COPY_BYTES, MAX_SLICE_ELEMENTS
from bireme.wire.http import known_heads
from bireme.wire.regions import MIN_TARGET_BYTES as LARGE
from infer_bodies import LIMITS, joined, make_body, make_input, read_reply, respond
from shm_objects import FakeRegions


def place(region: object = "r", offset: object = 0, byte_size: object = 8) -> dict:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
    }


def an_input(name: str = "X", datatype: str = "FP32", shape: object = (2,), **where) -> dict:
    return make_input(name, datatype, shape, parameters=place(**where))


def an_output(name: str = "Y", **where) -> dict:
    return {"name": name, "parameters": place(**where)}


@pytest.fixture
def regions():
    return FakeRegions(r=64, s=64)


@pytest.fixture(autouse=True)
def no_heads():
    known_heads._layouts.clear()
    yield
    known_heads._layouts.clear()


def decode(regions, document, *blobs, with_length: bool = False):
    body, json_length = make_body(document, *blobs)
    length = json_length if blobs or with_length else None
    return wire_http.decode_infer_request(
        body, length, model_name="m", respond=respond, limits=LIMITS, regions=regions
    )


def refusal(kind: type[BiremeError], act, *args) -> str:
    with pytest.raises(BiremeError) as caught:
        act(*args)
    assert type(caught.value) is kind
    return caught.value.message


def is_view_of(array: np.ndarray, memory: bytearray, offset: int) -> bool:
    start = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return array.__array_interface__["data"][0] == start + offset


# Inputs


@pytest.mark.parametrize("with_length", [False, True])
def test_an_input_is_a_view_of_its_region(regions, with_length):
    regions.memory["r"][16:32] = np.arange(4, dtype="<f4").tobytes()
    for _ in range(2):  # the second time, the head is known
        request = decode(
            regions, {"inputs": [an_input(shape=[2, 2], offset=16, byte_size=16)]}, with_length=with_length
        )
        array = request.inputs["X"].to_numpy()

        np.testing.assert_array_equal(array, [[0, 1], [2, 3]])
        assert is_view_of(array, regions.memory["r"], 16)
    assert len(known_heads._layouts) == 1
    assert regions.asked == [("r", 16, 16)] * 2


def test_bytes_stay_encoded_in_their_region(regions):
    encoded = encode_bytes([b"ab", b"", b"\xff"])
    regions.memory["r"][8 : 8 + len(encoded)] = encoded
    for _ in range(2):
        tensor = decode(regions, {"inputs": [an_input("X", "BYTES", [3], offset=8, byte_size=15)]}).inputs[
            "X"
        ]

        assert tensor.is_encoded
        assert tensor.to_buffer().obj is regions.memory["r"]
        assert tensor.to_numpy().tolist() == [b"ab", b"", b"\xff"]


def test_inputs_in_regions_take_nothing_from_the_body(regions):
    regions.memory["s"][4:6] = b"\x05\x06"
    document = {
        "inputs": [
            make_input("A", "INT8", [2], size=2),
            an_input("B", "INT8", [2], region="s", offset=4, byte_size=2),
            make_input("C", "BYTES", [1], size=5),
            make_input("D", "INT8", [1], size=1),
        ]
    }
    for seed in (1, 7):
        request = decode(regions, document, bytes([seed, 2]), encode_bytes([b"x"]), bytes([seed]))

        assert list(request.inputs) == ["A", "B", "C", "D"]
        assert {name: tensor.to_numpy().tolist() for name, tensor in request.inputs.items()} == {
            "A": [seed, 2],
            "B": [5, 6],
            "C": [b"x"],
            "D": [seed],
        }
    assert isinstance(next(iter(known_heads._layouts.values())), known_heads.RegionLayout)
    assert "unexpected additional input data" in refusal(
        InvalidArgument, decode, regions, document, bytes(20)
    )


def test_json_and_regions_may_be_mixed(regions):
    document = {"inputs": [make_input("A", "INT8", [2], data=[1, 2]), an_input("B")]}
    request = decode(regions, document)

    assert request.inputs["A"].to_numpy().tolist() == [1, 2]
    assert request.inputs["B"].to_numpy().tolist() == [0.0, 0.0]
    assert not known_heads._layouts


def test_the_offset_may_be_absent(regions):
    parameters = place()
    del parameters["shared_memory_offset"]
    decode(regions, {"inputs": [make_input(parameters=parameters)]})

    assert regions.asked == [("r", 0, 8)]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            place(region=1),
            "Unable to parse 'shared_memory_region': {} expects a string, found the integer 1",
        ),
        (
            place(region=None),
            "Unable to parse 'shared_memory_region': {} expects a string, found null",
        ),
        (
            place(offset=-1),
            "Unable to parse 'shared_memory_offset': {} expects an unsigned integer, found the integer -1",
        ),
        (
            place(offset=1.0),
            "Unable to parse 'shared_memory_offset': {} expects an unsigned integer, found the number 1.0",
        ),
        (
            place(byte_size="8"),
            "Unable to parse 'shared_memory_byte_size': {} expects an unsigned integer, found the string \"8\"",
        ),
        (
            place(byte_size=True),
            "Unable to parse 'shared_memory_byte_size': {} expects an unsigned integer, found the boolean true",
        ),
        (
            {"shared_memory_region": "r"},
            "Unable to parse 'shared_memory_byte_size': {} has no such member, expected an unsigned integer",
        ),
    ],
)
def test_ill_typed_places_are_refused(regions, parameters, message):
    as_input = {"inputs": [make_input(parameters=parameters)]}
    as_output = {"inputs": [an_input()], "outputs": [{"name": "Y", "parameters": parameters}]}

    assert refusal(InvalidArgument, decode, regions, as_input) == message.format("input 'X'")
    assert refusal(InvalidArgument, decode, regions, as_output) == message.format("output 'Y'")


@pytest.mark.parametrize("byte_size", [0, 4, 7, 12])
def test_an_input_s_size_is_that_of_its_shape(regions, byte_size):
    assert refusal(
        InvalidArgument, decode, regions, {"id": "1", "inputs": [an_input(byte_size=byte_size)]}
    ) == (
        f"[request id: 1] input byte size mismatch for input 'X' for model 'm'. Expected 8, got {byte_size}"
    )


def test_what_the_regions_refuse_is_refused(regions):
    unknown = "Unable to find shared memory region: 'x'"
    beyond = "Invalid offset + byte size for shared memory region: 'r'"
    for where, kind, message in (
        ({"region": "x"}, NotFound, unknown),
        ({"offset": 57}, InvalidArgument, beyond),
    ):
        as_output = {"inputs": [an_input()], "outputs": [an_output(**where)]}
        assert refusal(kind, decode, regions, {"inputs": [an_input(**where)]}) == message
        assert refusal(kind, decode, regions, as_output) == message
    assert not known_heads._layouts


def test_without_regions_there_is_nothing_to_find():
    body, _ = make_body({"inputs": [an_input()]})
    message = refusal(
        NotFound,
        lambda: wire_http.decode_infer_request(body, None, model_name="m", respond=respond, limits=LIMITS),
    )

    assert message == "Unable to find shared memory region: 'r'"


# Known heads: places are remembered, memory is not


def test_a_known_head_s_regions_are_looked_up_each_time(regions):
    document = {
        "inputs": [an_input()],
        "outputs": [an_output(offset=8), {"name": "Z", "parameters": {"binary_data": True}}],
    }
    for value in (1, 2):
        regions.memory["r"] = bytearray(np.full(16, value, "<f4").tobytes())
        request = decode(regions, document)

        assert request.inputs["X"].to_numpy().tolist() == [value, value]
        assert request.outputs == ["Y", "Z"]
        region = request.context.by_name["Y"].region
        assert (region.name, region.offset, region.byte_size) == ("r", 8, 8)
        assert region.memory.obj is regions.memory["r"]
        assert request.context.by_name["Z"].binary
    assert len(known_heads._layouts) == 1
    del regions.memory["r"]
    assert refusal(NotFound, decode, regions, document) == "Unable to find shared memory region: 'r'"


def test_a_known_head_keeps_no_memory(regions):
    document = {"inputs": [an_input()], "outputs": [an_output("Y"), {"name": "Z"}]}
    decode(regions, document)
    decode(regions, document)

    regions.memory["r"].extend(b"x")  # a bytearray with views cannot grow
    assert len(known_heads._layouts) == 1


@pytest.mark.parametrize("outputs", [[], [an_output()]])
def test_a_known_head_says_how_other_outputs_are_wanted(regions, outputs):
    document = {"inputs": [an_input()]} | ({"outputs": outputs} if outputs else {})
    first, second = (decode(regions, document) for _ in range(2))

    assert first.outputs == second.outputs == (["Y"] if outputs else None)
    assert (first.context.by_name is None) == (second.context.by_name is None) == (not outputs)
    assert not second.context.default_binary


def test_outputs_in_regions_of_binary_inputs(regions):
    document = {"inputs": [make_input(size=8)], "outputs": [an_output()]}
    for value in (b"1234abcd", b"abcd1234"):
        request = decode(regions, document, value)
        assert request.inputs["X"].to_buffer() == value
        assert request.context.by_name["Y"].region.memory.obj is regions.memory["r"]


# Outputs


@pytest.mark.parametrize(
    ("other", "value"), [("classification", 1), ("classification", 0), ("binary_data", True)]
)
def test_one_output_has_one_form(regions, other, value):
    output = {"name": "Y", "parameters": {**place(), other: value}}

    assert refusal(InvalidArgument, decode, regions, {"inputs": [an_input()], "outputs": [output]}) == (
        f"Output can't set both 'shared_memory_region' and '{other}': output 'Y' does"
    )


def test_an_output_that_is_expressly_not_binary_may_go_into_a_region(regions):
    output = {"name": "Y", "parameters": {**place(), "binary_data": False}}
    request = decode(regions, {"inputs": [an_input()], "outputs": [output]})

    assert request.context.by_name["Y"].region is not None


def answer(request, *tensors: Tensor) -> wire_http.EncodedBody:
    return wire_http.encode_infer_response(
        InferenceResponse("m", 1, request.id, tensors), request.context, {}
    )


def fp32(name: str, *values: float) -> Tensor:
    return Tensor.from_numpy(name, np.array(values, np.float32))


def test_an_output_goes_to_its_region_and_only_its_shape_into_the_reply(regions):
    request = decode(regions, {"inputs": [an_input()], "outputs": [an_output(offset=8, byte_size=20)]})
    regions.memory["r"][:] = bytes([7]) * 64
    body = answer(request, fp32("Y", 1, 2))

    assert body.is_complete
    assert read_reply(body) == (
        {
            "model_name": "m",
            "model_version": "1",
            "outputs": [{"name": "Y", "datatype": "FP32", "shape": [2]}],
        },
        b"",
    )
    assert body.json_length is None
    assert regions.memory["r"] == bytes([7]) * 8 + np.array([1, 2], "<f4").tobytes() + bytes([7]) * 48


@pytest.mark.parametrize("order", [["Y", "B", "J", "T"], ["J", "T", "B", "Y"]])
def test_every_output_has_its_own_form(regions, order):
    wanted = {
        "Y": an_output("Y"),
        "B": {"name": "B", "parameters": {"binary_data": True}},
        "J": {"name": "J"},
        "T": an_output("T", region="s", byte_size=64),
    }
    request = decode(regions, {"inputs": [an_input()], "outputs": [wanted[name] for name in order]})
    tensors = {
        "Y": fp32("Y", 1, 2),
        "B": fp32("B", 3),
        "J": fp32("J", 4),
        "T": Tensor.from_numpy("T", np.array([b"ab", b"c"], np.object_)),
    }
    document, blob = read_reply(answer(request, *(tensors[name] for name in order)))

    assert [output["name"] for output in document["outputs"]] == order
    assert {
        output["name"]: set(output) - {"name", "datatype", "shape"} for output in document["outputs"]
    } == {
        "Y": set(),
        "B": {"parameters"},
        "J": {"data"},
        "T": set(),
    }
    assert blob == np.float32(3).tobytes()
    assert regions.memory["r"][:8] == np.array([1, 2], "<f4").tobytes()
    assert regions.memory["s"][:11] == encode_bytes([b"ab", b"c"])


def test_regions_and_binary_outputs_are_answered_at_once(regions):
    outputs = [{"name": "B", "parameters": {"binary_data": True}}, an_output()]
    request = decode(regions, {"inputs": [an_input()], "outputs": outputs})
    body = answer(request, fp32("B", 3), fp32("Y", 1, 2))

    assert body.is_complete
    document, blob = read_reply(body)
    assert document["outputs"][1] == {"name": "Y", "datatype": "FP32", "shape": [2]}
    assert blob == np.float32(3).tobytes()
    assert regions.memory["r"][:8] == np.array([1, 2], "<f4").tobytes()


@pytest.mark.parametrize(
    ("tensor", "nbytes"),
    [
        (fp32("Y", 1, 2, 3), 12),
        (Tensor.from_numpy("Y", np.array([b"12345"], np.object_)), 9),
        (Tensor.from_numpy("Y", np.arange(6, dtype=np.float32)[::2]), 12),
    ],
)
def test_an_output_larger_than_its_place_is_an_error(regions, tensor, nbytes):
    request = decode(regions, {"inputs": [an_input()], "outputs": [an_output()]})

    assert refusal(Internal, answer, request, tensor) == (
        f"shared memory size specified with the request for output 'Y' (8 bytes) should be at least {nbytes} bytes to "
        f"hold the results"
    )
    assert regions.memory["r"] == bytes(64)


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_an_empty_output_needs_no_room(regions, datatype):
    request = decode(regions, {"inputs": [an_input()], "outputs": [an_output(byte_size=0)]})
    empty = np.empty((0, 3), np.object_ if datatype == "BYTES" else np.float32)
    document, _ = read_reply(answer(request, Tensor.from_numpy("Y", empty)))

    assert document["outputs"] == [{"name": "Y", "datatype": datatype, "shape": [0, 3]}]


def test_strided_outputs_are_packed(regions):
    request = decode(regions, {"inputs": [an_input()], "outputs": [an_output(offset=3)]})
    joined(answer(request, Tensor.from_numpy("Y", np.arange(4, dtype=np.float32)[::2])))

    assert regions.memory["r"][3:11] == np.array([0, 2], "<f4").tobytes()


def test_memory_that_is_gone_is_not_written_to(regions):
    class Shrunk(bytearray):
        is_intact = False

    request = decode(regions, {"inputs": [an_input()]})
    regions.memory["r"] = Shrunk(64)
    request = decode(regions, {"inputs": [an_input()], "outputs": [an_output()]})

    assert refusal(InvalidArgument, answer, request, fp32("Y", 1)) == (
        "shared memory region 'r' has become smaller since the request for output 'Y' came; unregister the region and "
        "register it again"
    )
    assert regions.memory["r"] == bytes(64)


@pytest.mark.parametrize(("num_bytes", "is_heavy"), [(MAX_COPY_BYTES, False), (MAX_COPY_BYTES + 4, True)])
def test_large_outputs_are_copied_beside_the_loop(num_bytes, is_heavy):
    regions = FakeRegions(r=num_bytes)
    document = {"inputs": [an_input()], "outputs": [an_output(byte_size=num_bytes)]}
    array = np.arange(num_bytes // 4, dtype=np.float32)
    body = answer(decode(regions, document), Tensor.from_numpy("Y", array))

    assert (body.is_heavy, body.is_complete) == (is_heavy, not is_heavy)
    assert read_reply(body)[0]["outputs"][0]["shape"] == [num_bytes // 4]
    np.testing.assert_array_equal(np.frombuffer(regions.memory["r"], np.float32), array)


def test_many_strings_are_encoded_in_steps():
    elements = [b"%d" % index for index in range(2 * MAX_SLICE_ELEMENTS + 1)]
    expected = encode_bytes(elements)
    regions = FakeRegions(r=len(expected))
    document = {"inputs": [an_input()], "outputs": [an_output(byte_size=len(expected))]}
    body = answer(decode(regions, document), Tensor.from_numpy("Y", np.array(elements, np.object_)))

    assert not body.is_complete
    assert not body.is_heavy
    assert not body.advance()
    assert body.advance()
    assert regions.memory["r"] == expected


@pytest.mark.parametrize("with_length", [False, True])
def test_large_outputs_may_be_written_into_their_regions(with_length):
    regions = FakeRegions(r=4 * LARGE, s=64)
    wanted = [
        an_output("Y", offset=2 * LARGE, byte_size=LARGE),
        an_output("in place", byte_size=LARGE),
        an_output("small", region="s"),
        {"name": "J"},
    ]
    for _ in range(2):
        request = decode(regions, {"inputs": [an_input()], "outputs": wanted}, with_length=with_length)

        assert list(request.targets) == ["Y"]
        assert request.targets["Y"] is request.context.by_name["Y"].region.memory
    assert len(known_heads._layouts) == 1
    assert decode(regions, {"inputs": [an_input()], "outputs": wanted[1:]}).targets is None
    mixed = {"inputs": [make_input("A", data=[1, 2]), an_input("B", offset=8)], "outputs": wanted[:2]}
    assert list(decode(regions, mixed).targets) == ["Y"]


def test_an_output_that_the_backend_wrote_is_answered_at_once():
    size = MAX_COPY_BYTES + 4
    regions = FakeRegions(r=size)
    document = {"inputs": [make_input("A", data=[1, 2])], "outputs": [an_output(byte_size=size)]}
    request = decode(regions, document)
    array = np.ndarray((size // 4,), np.float32, request.targets["Y"])
    array[-1] = 7
    body = answer(request, Tensor.from_numpy("Y", array))

    assert body.is_complete
    assert read_reply(body)[0]["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [size // 4]}]
    assert regions.memory["r"][-4:] == np.float32(7).tobytes()


# Large JSON beside regions, which another process parses


def test_places_pass_through_the_process_that_parses_json(regions):
    document = {
        "id": "7",
        "inputs": [
            make_input("A", "FP32", [2], data=[1, 2]),
            an_input("B", offset=8),
            make_input("C", "INT8", [2], size=2),
        ],
        "outputs": [an_output("Y", region="s"), {"name": "Z", "parameters": {"classification": 2}}],
    }
    body, json_length = make_body(document, b"\x01\x02")
    new_body, new_length = wire_http.rewrite_as_binary(body, json_length, LIMITS, model_name="m")
    head = json.loads(new_body[:new_length])
    assert document["inputs"][1] in head["inputs"]
    assert head["outputs"] == document["outputs"]

    regions.memory["r"][8:16] = np.array([5, 6], "<f4").tobytes()
    request = wire_http.decode_infer_request(
        memoryview(new_body), new_length, model_name="m", respond=respond, limits=LIMITS, regions=regions
    )
    assert {name: tensor.to_numpy().tolist() for name, tensor in request.inputs.items()} == {
        "A": [1.0, 2.0],
        "B": [5.0, 6.0],
        "C": [1, 2],
    }
    assert is_view_of(request.inputs["B"].to_numpy(), regions.memory["r"], 8)
    assert request.context.by_name["Y"].region.memory.obj is regions.memory["s"]


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": [an_input(region="x")]},
        {"inputs": [an_input(byte_size=4)]},
        {"inputs": [an_input(), an_input()]},
        {"inputs": [an_input(), make_input(data=[1, 2])]},
        {"inputs": [make_input(data=[1, 2], parameters=place())]},
        {"inputs": [make_input(parameters={**place(), "binary_data_size": 0})]},
        {"inputs": [make_input(parameters=place(offset="1"))]},
        {"inputs": [an_input()], "outputs": [an_output(region="x")]},
        {"inputs": [an_input()], "outputs": [an_output(region=1)]},
        {"inputs": [an_input()], "outputs": [{"name": "Y", "parameters": {**place(), "binary_data": True}}]},
        {"inputs": [None, an_input()]},
    ],
)
def test_errors_are_the_same_by_way_of_that_process(regions, document):
    def by_another_process():
        body, json_length = make_body(document)
        rewritten, length = wire_http.rewrite_as_binary(body, json_length, LIMITS, model_name="m")
        wire_http.decode_infer_request(
            memoryview(rewritten), length, model_name="m", respond=respond, limits=LIMITS, regions=regions
        )

    with pytest.raises(BiremeError) as caught:
        decode(regions, document)
    assert refusal(type(caught.value), by_another_process) == caught.value.message
