"""JSON tensors → binary tensors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from bireme.types import BiremeError, InvalidArgument, encode_bytes
from bireme.wire import http as wire_http
from infer_bodies import LIMITS, decode, json_scalars, make_body, make_input, respond


def read(body, json_length, limits=LIMITS):
    return wire_http.decode_infer_request(
        memoryview(body), json_length, model_name="m", respond=respond, limits=limits
    )


def content(request):
    """Return everything that a decoded request says, in comparable form."""
    by_name = request.context.by_name
    return repr(
        (
            request.id,
            request.parameters,
            (request.priority, request.timeout_us),
            (request.sequence_id, request.sequence_start, request.sequence_end),
            request.outputs,
            request.context.default_binary,
            by_name and {name: (wanted.binary, wanted.classification) for name, wanted in by_name.items()},
            [
                (name, t.name, t.datatype, t.shape, t.to_numpy().shape, bytes(t.to_buffer()))
                for name, t in request.inputs.items()
            ],
        )
    )


def outcome(act):
    """Return what ``act`` decodes to, or the error it raises."""
    try:
        return content(act())
    except BiremeError as error:
        return (type(error), error.message)


def rewritten(body, json_length):
    return read(*wire_http.rewrite_as_binary(body, json_length, LIMITS, model_name="m"))


def test_every_tensor_becomes_binary():
    document = {
        "id": "1",
        "parameters": {"b": 1.5, "a": "x", "priority": 2, "binary_data_output": True},
        "unknown": [1, 2, 3],
        "inputs": [
            make_input("A", "FP32", [2, 2], data=[[1, 2], [3, 4.5]], unknown=1),
            make_input("B", "BYTES", [2], data=["x", "é"]),
            make_input("C", "INT16", [2], size=4),
            make_input("D", "BF16", [2], data=[1, 2]),
            make_input("E", "BOOL", [0], data=None),
        ],
        "outputs": [{"name": "Y", "parameters": {"classification": 2}}, {"name": "Z"}],
    }
    body, json_length = make_body(document, b"\x01\x00\x02\x00")
    new_body, new_length = wire_http.rewrite_as_binary(body, json_length, LIMITS)

    head = json.loads(new_body[:new_length])
    assert new_length % 64 == 0
    assert set(head) == {"id", "parameters", "inputs", "outputs"}
    assert [item["parameters"] for item in head["inputs"]] == [
        {"binary_data_size": size} for size in (16, 11, 4, 4, 0)
    ]
    assert all("data" not in item for item in head["inputs"])
    assert encode_bytes([b"x", "é".encode()]) in new_body[new_length:]
    assert content(read(new_body, new_length)) == content(read(body, json_length))


def test_without_a_header_length():
    body, _ = make_body({"inputs": [make_input(data=[1, 2])]})

    assert content(rewritten(body, None)) == content(read(body, None))


def test_bare_tokens_survive():
    body, length = make_body(
        b'{"parameters":{"p":NaN,"q":-Inf},"inputs":[{"name":"X","datatype":"FP32","shape":[3],"data":[NaN,Inf,1]}]}'
    )

    assert content(rewritten(body, length)) == content(read(body, length))


@pytest.mark.parametrize(
    ("document", "blob"),
    [
        (b"{", b""),
        ([], b""),
        ({"inputs": [make_input(data=[1])]}, b""),
        ({"inputs": [make_input(size=8)]}, b"1234"),
        ({"inputs": [make_input(size=8)]}, bytes(10)),
        ({"inputs": [], "outputs": 1}, b""),
        ({"inputs": [make_input(parameters={"shared_memory_region": "r"})]}, b""),
    ],
)
def test_errors_are_those_of_the_direct_way(document, blob):
    body, length = make_body(document, blob)

    expected = outcome(lambda: read(body, length))
    assert isinstance(expected, tuple)
    assert outcome(lambda: rewritten(body, length)) == expected


def test_limits_hold():
    body, length = make_body({"inputs": [make_input(data=[1, 2])]})
    with pytest.raises(InvalidArgument, match="request JSON size"):
        wire_http.rewrite_as_binary(body, length, wire_http.Limits(max_input_size=10))


names = st.sampled_from(["X", "Y", "Z"])
datas = st.one_of(
    st.lists(json_scalars, max_size=3),
    st.lists(st.integers(-200, 200), min_size=2, max_size=2),
    st.lists(st.floats(), min_size=2, max_size=2),
    st.lists(st.text(max_size=3), min_size=2, max_size=2),
    st.lists(st.booleans(), min_size=2, max_size=2),
    json_scalars,
)
inputs = st.builds(
    make_input,
    names,
    st.sampled_from(["FP32", "FP16", "BF16", "INT8", "UINT64", "BOOL", "BYTES", "FP99"]),
    st.sampled_from([[2], [1, 2], [2], [0], [], [3]]),
    data=datas,
)
documents = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, max_size=3)},
    optional={
        "id": st.text(max_size=3) | json_scalars,
        "parameters": st.dictionaries(st.text(max_size=3) | st.just("priority"), json_scalars, max_size=3),
        "outputs": st.lists(st.fixed_dictionaries({"name": names}), max_size=3),
    },
)


@given(documents)
def test_rewriting_changes_no_outcome(document):
    body, length = make_body(document)

    assert outcome(lambda: rewritten(body, length)) == outcome(lambda: read(body, length))


def test_decode_of_a_rewritten_body_makes_views():
    body, length = make_body({"inputs": [make_input(data=[1, 2])]})
    new_body, new_length = wire_http.rewrite_as_binary(body, length, LIMITS)
    array = read(new_body, new_length).inputs["X"].to_numpy()

    assert array.base is not None
    assert decode({"inputs": [make_input(data=[1, 2])]}).inputs["X"].to_numpy().tolist() == array.tolist()


@pytest.mark.parametrize(
    "extra",
    [
        {"id": "x" * 1000},
        {"parameters": {f"p{i}": i for i in range(200)}},
        {"outputs": [{"name": "Y" * 1000}]},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_a_head_that_the_loop_would_parse_for_long_is_refused(extra):
    limits = wire_http.Limits(max_head_size=1000)
    body, length = make_body({"inputs": [make_input(data=[1.0, 2.0])]} | extra)
    with pytest.raises(InvalidArgument, match="beside the tensors' data, expected at most 1000"):
        wire_http.rewrite_as_binary(body, length, limits)
