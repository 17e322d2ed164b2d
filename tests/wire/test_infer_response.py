"""Infer replies out."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bireme.types import InferenceResponse, InvalidArgument, Tensor, datatypes, encode_bytes
from bireme.wire import encoded, http as wire_http
from bireme.wire.http import infer_response
from infer_bodies import DATATYPES, FIXED_SIZE_DATATYPES, joined, read_reply

AS_JSON = wire_http.WantedOutputs()
AS_BINARY = wire_http.WantedOutputs(default_binary=True)


def listed(**choices):
    """Return listed outputs: ``Y=(binary, classification)``."""
    return wire_http.WantedOutputs(
        by_name={
            name: wire_http.WantedOutput(binary=binary, classification=classification)
            for name, (binary, classification) in choices.items()
        }
    )


def respond(*outputs, **members):
    return InferenceResponse("m", 3, outputs=outputs, **members)


def fp32(name="Y", shape=(2,)):
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    return Tensor(name, "FP32", shape, array)


def strings(*elements, name="S"):
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return Tensor(name, "BYTES", array.shape, array)


def test_a_json_reply_byte_by_byte():
    body = wire_http.encode_infer_response(respond(fp32(), id="é"), AS_JSON)

    assert (
        joined(body)
        == (
            '{"id":"é","model_name":"m","model_version":"3","outputs":'
            '[{"name":"Y","datatype":"FP32","shape":[2],"data":[0.0,1.0]}]}'
        ).encode()
    )
    assert body.json_length is None


def test_a_binary_reply_byte_by_byte():
    body = wire_http.encode_infer_response(respond(fp32("A"), fp32("B", (1, 1))), AS_BINARY)

    text = (
        b'{"model_name":"m","model_version":"3","outputs":'
        b'[{"name":"A","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}},'
        b'{"name":"B","datatype":"FP32","shape":[1,1],"parameters":{"binary_data_size":4}}]}'
    )
    assert body.is_complete
    assert joined(body) == text + np.array([0, 1, 0], np.float32).tobytes()
    assert body.json_length == len(text)
    assert body.nbytes == len(text) + 12


@pytest.mark.parametrize("wanted", [AS_JSON, AS_BINARY])
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, {}),
        ({"id": ""}, {}),
        ({"id": 'a"b'}, {"id": 'a"b'}),
        ({"parameters": None}, {}),
        ({"parameters": {}}, {}),
        (
            {"parameters": {"b": True, "i": -3, "s": "null", "f": 1.5, "x": math.inf}},
            {"parameters": {"b": True, "i": -3, "s": "null", "f": 1.5, "x": math.inf}},
        ),
    ],
)
def test_what_is_empty_is_left_out(wanted, members, expected):
    head, _ = read_reply(wire_http.encode_infer_response(respond(**members), wanted))

    assert head == expected | {"model_name": "m", "model_version": "3", "outputs": []}


def test_listed_outputs_are_sent_as_listed_and_others_by_default():
    response = respond(fp32("A"), fp32("B"), fp32("C"))
    for default in (True, False):
        wanted = listed(A=(True, 0), B=(False, 0))
        wanted.default_binary = default
        head, blob = read_reply(wire_http.encode_infer_response(response, wanted))

        kinds = ["data" if "data" in output else "binary" for output in head["outputs"]]
        assert kinds == ["binary", "data", "binary" if default else "data"]
        assert len(blob) == (16 if default else 8)


@pytest.mark.parametrize("datatype", FIXED_SIZE_DATATYPES)
@pytest.mark.parametrize("num_elements", [3, 10_000])
def test_binary_outputs_are_their_bytes(datatype, num_elements):
    array = np.arange(num_elements).astype(datatypes.NUMPY_DTYPES[datatype])
    response = respond(Tensor("Y", datatype, array.shape, array))
    head, blob = read_reply(wire_http.encode_infer_response(response, AS_BINARY))

    assert blob == array.tobytes()
    assert head["outputs"][0]["parameters"] == {"binary_data_size": array.nbytes}


def test_a_large_binary_output_is_not_copied():
    large = fp32("A", (1000, 100))
    for wanted in (AS_BINARY, listed(A=(True, 0), B=(False, 0))):
        body = wire_http.encode_infer_response(respond(large, fp32("B")), wanted)

        assert body.is_complete
        pieces = [piece for piece in body.pieces if len(piece) == large.nbytes]
        assert len(pieces) == 1
        assert np.shares_memory(np.frombuffer(pieces[0], np.uint8), large.to_numpy())


def test_small_binary_outputs_travel_with_the_head():
    body = wire_http.encode_infer_response(respond(fp32("A"), fp32("B")), AS_BINARY)

    assert len(body.pieces) == 1


def test_strided_outputs_are_row_major_on_the_wire():
    whole = np.arange(40_000, dtype=np.int32).reshape(200, 200)
    for view in (whole.T, whole[::2, ::3], whole[:3, :3].T):
        response = respond(Tensor("Y", "INT32", view.shape, view))
        assert read_reply(wire_http.encode_infer_response(response, AS_BINARY))[1] == view.tobytes()
        head, _ = read_reply(wire_http.encode_infer_response(response, AS_JSON))
        assert head["outputs"][0]["data"] == view.flatten().tolist()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_empty_outputs_have_no_binary_section(datatype):
    array = np.empty((0, 3), datatypes.NUMPY_DTYPES[datatype])
    body = wire_http.encode_infer_response(respond(Tensor("Y", datatype, (0, 3), array)), AS_BINARY)
    head, blob = read_reply(body)

    assert body.json_length is None
    assert blob == b""
    assert head["outputs"][0] == {
        "name": "Y",
        "datatype": datatype,
        "shape": [0, 3],
        "parameters": {"binary_data_size": 0},
    }


def test_binary_bytes_are_framed():
    elements = [b"", b"ab", b"\xff" * 300]
    for tensor in (strings(*elements), Tensor("S", "BYTES", (3,), None, encode_bytes(elements))):
        head, blob = read_reply(wire_http.encode_infer_response(respond(fp32(), tensor), AS_BINARY))

        assert blob == np.array([0, 1], np.float32).tobytes() + encode_bytes(elements)
        assert head["outputs"][1]["parameters"] == {"binary_data_size": 314}


def test_encoded_bytes_are_sent_as_they_are():
    encoded = bytearray(encode_bytes([b"x" * 10_000]))
    response = respond(Tensor("S", "BYTES", (1,), None, memoryview(encoded)))
    body = wire_http.encode_infer_response(response, AS_BINARY)

    assert np.shares_memory(np.frombuffer(body.pieces[-1], np.uint8), np.frombuffer(encoded, np.uint8))


def test_large_outputs_are_encoded_in_steps():
    array = np.random.default_rng(1).standard_normal(300_000).astype(np.float32)
    response = respond(fp32("A"), Tensor("B", "FP32", array.shape, array), fp32("C"))
    body = wire_http.encode_infer_response(response, AS_JSON)
    num_steps = 1
    assert not body.is_complete
    while not body.advance():
        num_steps += 1

    head, _ = read_reply(body)
    assert num_steps >= 4
    assert [output["name"] for output in head["outputs"]] == ["A", "B", "C"]
    np.testing.assert_array_equal(np.array(head["outputs"][1]["data"], np.float32), array)
    assert max(map(len, body.pieces)) < 2_000_000


def test_many_small_outputs_are_encoded_in_steps():
    outputs = [fp32(f"Y{index}", (100,)) for index in range(2000)]
    body = wire_http.encode_infer_response(respond(*outputs), AS_JSON)

    assert not body.is_complete
    assert len(read_reply(body)[0]["outputs"]) == 2000


def test_many_strings_are_framed_in_steps():
    elements = [b"%d" % index for index in range(150_000)]
    body = wire_http.encode_infer_response(respond(strings(*elements), fp32()), AS_BINARY)

    assert not body.is_complete
    head, blob = read_reply(body)
    assert blob == encode_bytes(elements) + np.array([0, 1], np.float32).tobytes()
    assert head["outputs"][0]["parameters"]["binary_data_size"] == len(blob) - 8


@pytest.mark.parametrize("binary", [True, False])
def test_a_classified_output_is_replaced(binary):
    response = respond(
        Tensor("Y", "FP32", (2, 3), np.array([[0.1, 0.7, 0.2], [3, 2, 1]], np.float32)), fp32("Z")
    )
    body = wire_http.encode_infer_response(
        response, listed(Y=(binary, 2), Z=(False, 0)), {"Y": ["cat", "dog"]}, has_batch_dim=True
    )
    head, blob = read_reply(body)

    output = head["outputs"][0]
    classes = ["0.700000:1:dog", "0.200000:2", "3.000000:0:cat", "2.000000:1:dog"]
    assert (output["name"], output["datatype"], output["shape"]) == ("Y", "BYTES", [2, 2])
    assert blob == (encode_bytes(map(str.encode, classes)) if binary else b"")
    assert output.get("data") == (None if binary else classes)


def test_an_output_that_cannot_be_classified_is_an_error_at_once():
    with pytest.raises(InvalidArgument, match="class result not available"):
        wire_http.encode_infer_response(respond(strings(b"a")), listed(S=(True, 1)))


def test_a_large_classification_is_done_in_steps():
    scores = np.arange(200_000, dtype=np.int32).reshape(4, 50_000)
    response = respond(Tensor("Y", "INT32", scores.shape, scores))
    body = wire_http.encode_infer_response(response, listed(Y=(False, 1)), has_batch_dim=True)

    assert not body.is_complete
    head, _ = read_reply(body)
    assert head["outputs"][0]["data"] == ["49999:49999", "99999:49999", "149999:49999", "199999:49999"]


def test_shapes_from_clients_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(encoded, "_MAX_FRAGMENTS", 10)
    for size in range(50):
        read_reply(wire_http.encode_infer_response(respond(fp32(shape=(size,))), AS_BINARY))

    assert len(infer_response._binary_fragments) <= 10
    assert len(infer_response._output_fragments) <= 10


def test_equal_names_of_different_types_are_kept_apart():
    for datatype in ("INT32", "UINT32", "FP32"):
        tensor = Tensor("Y", datatype, (2,), np.zeros(2, datatypes.NUMPY_DTYPES[datatype]))
        for wanted in (AS_BINARY, AS_JSON):
            head, _ = read_reply(wire_http.encode_infer_response(respond(tensor), wanted))
            assert head["outputs"][0]["datatype"] == datatype


@given(st.text(), st.text(), st.text(), st.integers(1, 2**63 - 1))
def test_any_names_are_json(model, output, request_id, version):
    response = InferenceResponse(model, version, request_id, [fp32(output)])
    for wanted in (AS_BINARY, AS_JSON):
        head, _ = read_reply(wire_http.encode_infer_response(response, wanted))

        assert (head["model_name"], head["model_version"]) == (model, str(version))
        assert head["outputs"][0]["name"] == output
        assert head.get("id", "") == request_id


def test_the_reply_is_plain_json_when_all_is_finite():
    data = joined(wire_http.encode_infer_response(respond(fp32(), strings(b"null", b"NaN")), AS_JSON))

    assert json.loads(data, parse_constant=pytest.fail)["outputs"][1]["data"] == ["null", "NaN"]


def test_a_large_sort_is_left_to_a_thread():
    """Sorting a million values takes 0.1 s; numpy lets go of the GIL meanwhile."""
    tensor = Tensor.from_numpy("Y", np.arange(1 << 17, dtype=np.float32)[::-1])
    wanted = wire_http.WantedOutputs(by_name={"Y": wire_http.WantedOutput(classification=2)})
    body = wire_http.encode_infer_response(InferenceResponse("m", 1, "", [tensor]), wanted)

    assert body.is_heavy
    assert not body.is_complete
    while not body.advance():
        pass
    assert b'"131071.000000:0","131070.000000:1"' in joined(body)
