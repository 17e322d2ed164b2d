"""gRPC infer requests in: what is read, and how everything wrong is refused."""

from __future__ import annotations

import numpy as np
import pytest

from bireme.types import InvalidArgument, NotFound, datatypes, encode_bytes
from bireme.wire import grpc as wire_grpc
from bireme.wire.grpc import UnreadableMessage, known_requests
from bireme.wire.regions import MIN_TARGET_BYTES as LARGE
from grpc_infer_messages import FakeRegions, decode, make_input, make_output, make_request, respond
from infer_bodies import DATATYPES, FIXED_SIZE_DATATYPES

X8 = make_input()
EIGHT = bytes(8)


@pytest.fixture(autouse=True)
def no_heads():
    known_requests._known.clear()
    known_requests._of_sequences.clear()
    yield
    known_requests._known.clear()
    known_requests._of_sequences.clear()


def refusal(message, regions=None) -> str:
    with pytest.raises(InvalidArgument) as caught:
        decode(message, regions)
    return caught.value.message


def contents(tensor):
    return (tensor.name, tensor.datatype, tensor.shape, bytes(tensor.to_buffer()))


# Raw contents


def test_raw_contents_belong_to_the_inputs_in_their_order():
    first, second = np.arange(4, dtype="<f4"), np.arange(3, dtype="<i8")
    request = decode(
        make_request(
            make_input("A", "FP32", (2, 2)),
            make_input("B", "INT64", (3,)),
            raw=[first.tobytes(), second.tobytes()],
            id="7",
            model_version="3",
        )
    )

    assert (request.model_name, request.model_version, request.id, request.respond) == ("m", 3, "7", respond)
    assert list(request.inputs) == ["A", "B"]
    np.testing.assert_array_equal(request.inputs["A"].to_numpy(), first.reshape(2, 2))
    np.testing.assert_array_equal(request.inputs["B"].to_numpy(), second)
    assert (request.parameters, request.outputs, request.context.by_name) == (None, None, None)


@pytest.mark.parametrize("datatype", FIXED_SIZE_DATATYPES)
@pytest.mark.parametrize("is_known", [False, True])
def test_raw_contents_are_views_into_the_message(datatype, is_known):
    size = 4 * datatypes.ITEM_SIZES[datatype]
    data = bytearray(make_request(make_input("X", datatype, (1, 4)), raw=[bytes(size)]).SerializeToString())
    if is_known:
        decode(bytes(data))
    array = decode(memoryview(data)).inputs["X"].to_numpy()

    whole = np.frombuffer(data, np.uint8)
    assert (array.dtype, array.shape) == (datatypes.NUMPY_DTYPES[datatype], (1, 4))
    assert array.__array_interface__["data"][0] == whole[len(data) - size :].__array_interface__["data"][0]


@pytest.mark.parametrize("is_known", [False, True])
def test_raw_bytes_stay_encoded_and_are_a_view(is_known):
    data = make_request(
        make_input("X", "BYTES", (2,)), raw=[encode_bytes([b"ab", b"\xff"])]
    ).SerializeToString()
    if is_known:
        decode(data)
    tensor = decode(data).inputs["X"]

    assert tensor.is_encoded
    assert tensor.to_buffer().obj is data
    assert tensor.to_numpy().tolist() == [b"ab", b"\xff"]


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_an_empty_tensor_has_an_empty_entry(datatype, shape):
    request = decode(make_request(make_input("X", datatype, shape), X8_AS_Y, raw=[b"", EIGHT]))

    assert request.inputs["X"].to_numpy().shape == shape
    assert request.inputs["Y"].to_numpy().shape == (2,)


X8_AS_Y = make_input("Y")


def test_a_scalar_has_one_element():
    assert decode(make_request(make_input(shape=()), raw=[bytes(4)])).inputs["X"].to_numpy().shape == ()


@pytest.mark.parametrize("is_known", [False, True])
def test_surplus_raw_contents_are_ignored(is_known):
    if is_known:
        decode(make_request(X8, raw=[EIGHT]))
    request = decode(make_request(X8, raw=[EIGHT, b"more"]))

    assert list(request.inputs) == ["X"]


@pytest.mark.parametrize("is_known", [False, True])
def test_too_few_raw_contents_are_refused(is_known):
    if is_known:
        decode(make_request(X8, X8_AS_Y, raw=[EIGHT, EIGHT]))

    assert (
        refusal(make_request(X8, X8_AS_Y, raw=[EIGHT]))
        == "unable to find data for input tensor 'Y' for model 'm' in request."
    )


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_size_that_is_not_the_shapes_is_refused(is_known, size):
    if is_known:
        decode(make_request(X8, raw=[EIGHT], id="5"))

    assert refusal(make_request(X8, raw=[bytes(size)], id="5")) == (
        f"[request id: 5] input byte size mismatch for input 'X' for model 'm'. Expected 8, got {size}"
    )


# Typed contents


@pytest.mark.parametrize(
    ("datatype", "field", "elements", "expected"),
    [
        ("BOOL", "bool_contents", [True, False, True], [True, False, True]),
        ("INT8", "int_contents", [-1, 127, 300], [-1, 127, 44]),
        ("INT16", "int_contents", [-1, 32767, 70_000], [-1, 32767, 4464]),
        ("INT32", "int_contents", [-(2**31), 0, 2**31 - 1], [-(2**31), 0, 2**31 - 1]),
        ("UINT8", "uint_contents", [0, 255, 256 + 7], [0, 255, 7]),
        ("UINT16", "uint_contents", [0, 65535, 65536 + 7], [0, 65535, 7]),
        ("UINT32", "uint_contents", [0, 1, 2**32 - 1], [0, 1, 2**32 - 1]),
        ("INT64", "int64_contents", [-(2**63), 0, 2**63 - 1], [-(2**63), 0, 2**63 - 1]),
        ("UINT64", "uint64_contents", [0, 1, 2**64 - 1], [0, 1, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -1.25, float("inf")], [0.5, -1.25, float("inf")]),
        ("FP64", "fp64_contents", [0.1, -1e300, 0.0], [0.1, -1e300, 0.0]),
        ("BYTES", "bytes_contents", [b"", b"ab", b"\xff" * 300], [b"", b"ab", b"\xff" * 300]),
    ],
)
def test_typed_contents(datatype, field, elements, expected):
    tensor = decode(make_request(make_input("X", datatype, (3,), {field: elements}))).inputs["X"]

    assert tensor.to_numpy().dtype == datatypes.NUMPY_DTYPES[datatype]
    assert tensor.to_numpy().tolist() == expected


@pytest.mark.parametrize(
    ("datatype", "field"), [("BOOL", "bool_contents"), ("FP32", "fp32_contents"), ("FP64", "fp64_contents")]
)
@pytest.mark.parametrize("count", [1, 127, 128, 5000])
def test_many_typed_contents(datatype, field, count):
    values = (np.arange(count) % 3 == 1).astype(datatypes.NUMPY_DTYPES[datatype])
    item = make_input("X", datatype, (count,), {field: values.tolist()})
    item.contents.MergeFromString(b"\xf8\x01\x05")  # a field that nobody knows
    tensor = decode(make_request(item)).inputs["X"]

    np.testing.assert_array_equal(tensor.to_numpy(), values)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_present_but_empty_contents_are_zero_bytes(datatype):
    tensor = decode(make_request(make_input("X", datatype, (0, 2), {}))).inputs["X"]

    assert tensor.to_numpy().shape == (0, 2)
    if datatype != "BYTES":
        assert refusal(make_request(make_input("X", datatype, (1,), {}))).endswith("got 0")


@pytest.mark.parametrize("datatype", sorted(set(DATATYPES) - {"FP32"}))
def test_a_field_of_another_data_type_is_refused(datatype):
    assert refusal(make_request(make_input("X", datatype, (1,), {"fp32_contents": [1]}))) == (
        f"unexpected explicit tensor data for input tensor 'X' for model 'm' of type 'FP32', expected datatype '{datatype}'"
    )


@pytest.mark.parametrize(("field", "shown"), [("int_contents", "INT32"), ("uint_contents", "UINT32")])
def test_small_integers_go_by_the_name_of_the_widest(field, shown):
    assert f"of type '{shown}'" in refusal(make_request(make_input("X", "FP16", (1,), {field: [1]})))


def test_two_filled_fields_are_refused():
    both = {"int_contents": [1], "fp64_contents": [1.0]}

    assert refusal(make_request(make_input("X", "INT8", (1,), both))) == (
        "unexpected explicit tensor data for input tensor 'X' for model 'm', binary data was already supplied."
    )


def test_a_wrong_number_of_elements_is_refused():
    assert refusal(make_request(make_input("X", "INT8", (3,), {"int_contents": [1, 2]}))) == (
        "[request id: <id_unknown>] input byte size mismatch for input 'X' for model 'm'. Expected 3, got 2"
    )


def test_raw_and_typed_contents_do_not_mix():
    message = make_request(X8, make_input("Y", "INT8", (1,), {"int_contents": [1]}), raw=[EIGHT])

    assert refusal(message) == (
        "contents field must not be specified when using raw_input_contents for 'Y' for model 'm'"
    )


def test_neither_raw_nor_typed_contents_are_refused():
    assert refusal(make_request(X8)) == "unable to find data for input tensor 'X' for model 'm' in request."


# Shared memory


def in_region(name="X", datatype="FP32", shape=(2,), size=8, **more):
    return make_input(name, datatype, shape, shared_memory_region="r", shared_memory_byte_size=size, **more)


def test_inputs_in_shared_memory_are_views_and_take_no_raw_contents():
    memory = bytearray(range(32))
    request = decode(
        make_request(in_region("A", shared_memory_offset=4), X8_AS_Y, in_region("B"), raw=[b"\1" * 8]),
        FakeRegions(r=memory),
    )

    assert contents(request.inputs["A"])[3] == bytes(range(4, 12))
    assert contents(request.inputs["Y"])[3] == b"\1" * 8
    memory[0] = 99
    assert contents(request.inputs["B"])[3] == bytes([99, *range(1, 8)])


def test_bytes_in_shared_memory_stay_encoded():
    encoded = encode_bytes([b"a", b"bc"])
    tensor = decode(
        make_request(in_region(datatype="BYTES", size=len(encoded))), FakeRegions(r=bytearray(encoded))
    ).inputs["X"]

    assert tensor.is_encoded
    assert tensor.to_numpy().tolist() == [b"a", b"bc"]


def test_an_unknown_region_is_told():
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'r'"):
        decode(make_request(in_region()))


def test_a_region_of_another_size_is_refused():
    message = make_request(in_region(size=12))

    assert refusal(message, FakeRegions(r=bytearray(32))).endswith("Expected 8, got 12")


def test_shared_memory_and_contents_do_not_mix():
    message = make_request(in_region(contents={"fp32_contents": [1, 2]}))

    assert refusal(message, FakeRegions(r=bytearray(8))) == (
        "unexpected 'content' provided when using shared memory for input tensor 'X' for model 'm'"
    )


# Names, data types, shapes, versions


def test_an_input_given_twice_is_refused():
    assert refusal(make_request(X8, X8, raw=[EIGHT, EIGHT], id="9")) == (
        "[request id: 9] input 'X' already exists in request"
    )


def test_an_output_may_be_listed_again_and_its_first_special_wish_counts():
    outputs = [make_output("Y"), make_output("Z"), *(make_output("Y", classification=k) for k in (2, 3))]

    request = decode(make_request(X8, raw=[EIGHT], outputs=outputs))

    assert request.outputs == ["Y", "Z"]
    assert request.context.by_name["Y"].classification == 2


@pytest.mark.parametrize("datatype", ["", "FP31", "TYPE_FP32", "fp32"])
def test_an_unknown_data_type_is_refused(datatype):
    text = refusal(make_request(make_input("X", datatype), raw=[EIGHT]))

    assert text.startswith(f"invalid datatype for input X: found '{datatype}', expected one of BOOL, ")


@pytest.mark.parametrize(
    ("shape", "fault"),
    [
        ((-1,), "shape [-1] contains one or more invalid dimensions"),
        ((-1, -2), "shape [-1,-2] contains one or more invalid dimensions"),
        ((0, -1), "shape [0,-1] contains one or more invalid dimensions"),
        ((2**32, 2**32), "causes total element count to exceed maximum size of 9223372036854775807"),
        ((0, 2**62, 4), "causes total element count to exceed maximum size of 9223372036854775807"),
        ((1,) * 33, "it has 33 dimensions, at most 32 are supported"),
    ],
)
def test_a_shape_that_no_array_can_have_is_refused(shape, fault):
    text = refusal(make_request(make_input("X", "INT8", shape), raw=[b""]))

    assert text.startswith("invalid shape for input 'X': ")
    assert text.endswith(fault)


@pytest.mark.parametrize(("version", "expected"), [("", -1), ("0", 0), ("7", 7), ("007", 7)])
def test_a_version_is_a_number_or_the_servers_choice(version, expected):
    assert decode(make_request(X8, raw=[EIGHT], model_version=version)).model_version == expected


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("x", "failed to get model version from specified version string 'x' (details: "),
        ("1.5", "failed to get model version from specified version string '1.5' (details: "),
        ("1_0", "failed to get model version from specified version string '1_0' (details: "),
        ("٣", "failed to get model version from specified version string '٣' (details: "),
        ("-", "failed to get model version from specified version string '-' (details: "),
        ("9" * 5000, f"failed to get model version from specified version string '{'9' * 80}' (details: "),
        (
            "9" * 19,
            f"failed to get model version from specified version string '{'9' * 19}' (details: out of range",
        ),
        ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
    ],
)
def test_what_is_no_version_is_refused(version, text):
    assert refusal(make_request(X8, raw=[EIGHT], model_version=version)).startswith(text)


# What is no message


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x01\xff",  # a name that is not UTF-8
        b"\x2a\x02\x0a\x05",  # an input that is cut off
        b"\x2a\x03\x1a\x01\x80",  # a dimension that is cut off
        b"\x00\x00",  # field number 0
        b"\x0a",
    ],
)
def test_what_protobuf_refuses_is_unreadable(message):
    with pytest.raises(UnreadableMessage, match="Unable to parse request"):
        decode(message)


def test_a_message_without_anything_is_a_request():
    request = decode(b"")

    assert (request.model_name, request.inputs, request.outputs) == ("", {}, None)


# Known heads


HEAD = {
    "outputs": [make_output("Y", classification=2), make_output("Z")],
    "parameters": {"a": 1, "priority": 2, "timeout": 5},
    "model_version": "4",
}
INPUTS = [make_input("A", "FP32", (2, 2)), make_input("T", "BYTES", (2,)), make_input("B", "INT8", (3,))]


def data(seed: int) -> list[bytes]:
    return [
        np.full(4, seed, "<f4").tobytes(),
        encode_bytes([b"x" * seed, b""]),
        bytes([seed] * 3),
    ]


def test_a_repeated_head_gives_the_same_request_over_new_data():
    first = decode(make_request(*INPUTS, raw=data(1), id="1", **HEAD))
    again = decode(make_request(*INPUTS, raw=data(2), id="22", **HEAD))

    assert len(known_requests._known) == 1
    for request, seed in ((first, 1), (again, 2)):
        assert [bytes(tensor.to_buffer()) for tensor in request.inputs.values()] == data(seed)
    assert (first.id, again.id) == ("1", "22")
    for field in (
        "model_name",
        "model_version",
        "outputs",
        "context",
        "parameters",
        "priority",
        "timeout_us",
        "sequence_id",
    ):
        assert getattr(again, field) == getattr(first, field)
    assert again.parameters is not first.parameters
    assert [contents(t)[:3] for t in first.inputs.values()] == [
        contents(t)[:3] for t in again.inputs.values()
    ]


@pytest.mark.parametrize(
    "message",
    [
        make_request(X8, raw=[EIGHT], parameters={"sequence_id": 3, "sequence_start": True}),
        make_request(X8, raw=[EIGHT], parameters={"sequence_end": True}),
        make_request(make_input("X", "INT8", (1,), {"int_contents": [1]})),
        make_request(X8, raw=[EIGHT], model_name="x" * 2100),
    ],
    ids=["start", "end", "contents", "long"],
)
def test_what_differs_in_more_than_tensors_and_id_is_not_remembered(message):
    decode(message)

    assert not known_requests._known


def test_the_table_of_heads_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_requests, "_MAX_HEADS", 3)
    for size in range(1, 9):
        decode(make_request(make_input("X", "UINT8", (size,)), raw=[bytes(size)]))

    assert len(known_requests._known) <= 3


def test_heads_of_sequences_do_not_crowd_out_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_requests, "_MAX_SEQUENCES", 2)
    decode(make_request(X8, raw=[EIGHT]))
    for sequence in ("one", 2, 3, 4):
        first, second = (
            decode(make_request(X8, raw=[EIGHT], parameters={"sequence_id": sequence})) for _ in range(2)
        )
        assert first.sequence_id == second.sequence_id == sequence

    assert [0, 3, 4] == [known._sequence_id for known in known_requests._known.values()]


def test_the_context_says_how_outputs_are_wanted():
    memory = bytearray(16)
    request = decode(
        make_request(
            X8,
            raw=[EIGHT],
            outputs=[
                make_output("A"),
                make_output("B", classification=3, binary_data=True),
                make_output("C", shared_memory_region="r", shared_memory_offset=4, shared_memory_byte_size=8),
            ],
        ),
        FakeRegions(r=memory),
    )

    assert isinstance(request.context, wire_grpc.GrpcWanted)
    assert request.outputs == ["A", "B", "C"]
    wanted = request.context.by_name
    assert [(wanted[name].classification, wanted[name].region) for name in "AB"] == [(0, None), (3, None)]
    assert wanted["C"].region[:3] == ("r", 4, 8)
    wanted["C"].region.memory[:] = b"12345678"
    assert memory == bytes(4) + b"12345678" + bytes(4)


def in_regions(request_id, *raw):
    return make_request(
        in_region("A", shared_memory_offset=8),
        make_input("Y", "INT8", (2,)),
        in_region("T", "BYTES", (1,), size=7),
        raw=raw,
        outputs=[
            make_output("Z", shared_memory_region="r", shared_memory_offset=16, shared_memory_byte_size=4),
            make_output("C", classification=2),
        ],
        parameters={"triton_enable_empty_final_response": True},
        id=request_id,
    )


def test_a_repeated_head_looks_its_regions_up_anew():
    decode(in_regions("1", b"12"), FakeRegions(r=bytearray(20)))
    memory = bytearray(encode_bytes([b"abc"]) + bytes(1) + np.array([1, 2], "<f4").tobytes() + bytes(4))
    request = decode(in_regions("2", b"34"), FakeRegions(r=memory))

    (known,) = known_requests._known.values()
    assert isinstance(known, known_requests.KnownRegionRequest)
    assert request.id == "2"
    assert [tensor.to_numpy().tolist() for tensor in request.inputs.values()] == [[1, 2], [51, 52], [b"abc"]]
    assert request.context.empty_final
    assert request.context.by_name["C"].classification == 2
    region = request.context.by_name["Z"].region
    assert region[:3] == ("r", 16, 4)
    region.memory[:] = b"WXYZ"
    assert memory.endswith(b"WXYZ")
    with pytest.raises(NotFound, match="'r'"):
        decode(in_regions("3", b"56"))
    assert "Expected 2, got 3" in refusal(in_regions("4", b"567"), FakeRegions(r=memory))


def test_a_repeated_head_with_regions_for_inputs_alone():
    message = make_request(in_region(), parameters={"triton_enable_empty_final_response": True})
    first, again = (decode(message, FakeRegions(r=bytearray(8))) for _ in range(2))

    assert first.outputs is again.outputs is None
    assert again.context.by_name is None
    assert again.context.empty_final


def test_large_outputs_may_be_written_into_their_regions():
    def an_output(name, offset):
        place = {"shared_memory_offset": offset, "shared_memory_byte_size": LARGE}
        return make_output(name, shared_memory_region="r", **place)

    message = make_request(
        in_region("A", shared_memory_offset=2 * LARGE),
        X8,
        raw=[EIGHT],
        outputs=[an_output("Y", LARGE), an_output("over A", 2 * LARGE), make_output("Z")],
    )
    regions = FakeRegions(r=bytearray(4 * LARGE))
    for _ in range(2):
        request = decode(message, regions)

        assert list(request.targets) == ["Y"]
        assert request.targets["Y"] is request.context.by_name["Y"].region.memory
    assert len(known_requests._known) == 1
    assert decode(in_regions("1", b"12"), FakeRegions(r=bytearray(20))).targets is None


def test_what_is_known_keeps_no_tensor_and_no_region_alive():
    memory = bytearray(20)
    data = bytearray(in_regions("1", b"12").SerializeToString())
    decode(memoryview(data), FakeRegions(r=memory))
    decode(memoryview(data), FakeRegions(r=memory))

    memory.append(0)  # a bytearray with views of it cannot grow
    data.append(0)
