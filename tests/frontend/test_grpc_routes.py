"""What the head of a gRPC call rules out, and what it says of the call."""

from __future__ import annotations

import numpy as np
import pytest

from bireme.frontend.grpc.options import GrpcOptions
from bireme.frontend.grpc.routes import Router
from bireme.frontend.options import Restriction
from bireme.types import InvalidArgument
from bireme.wire.grpc.status import Status
from grpc_fakes import INFER, LIVE, STREAM_INFER, GrpcScene, framed, in_loop
from http_fakes import FakeServer

X = np.arange(4, dtype=np.float32)


def ask(scene: GrpcScene, *extra: tuple[str, str], path: str = LIVE, method: str = "POST"):
    stream = scene.client.open(path, extra, method=method)
    scene.client.send(stream, framed(b""), is_end=True)
    return scene.client.answer(stream)


GRPC = ("content-type", "application/grpc")


@in_loop
@pytest.mark.parametrize("value", ["application/grpc", "application/grpc+proto", "application/grpc;x=y"])
async def test_content_types_of_grpc(value):
    assert ask(GrpcScene(), ("content-type", value)).status == 0


@in_loop
@pytest.mark.parametrize("value", ["application/grpc-web", "application/json", "text/grpc", None])
async def test_other_content_types_are_415(value):
    scene = GrpcScene()

    answer = ask(scene, *((("content-type", value),) if value else ()))

    assert answer.headers == {":status": "415"}
    assert answer.is_complete
    assert scene.statuses == {Status.UNIMPLEMENTED: 1}


@in_loop
async def test_other_methods_are_405():
    scene = GrpcScene()

    assert ask(scene, GRPC, method="GET").headers == {":status": "405"}
    assert scene.ended[0]["error"] == "not a POST request"


@in_loop
async def test_an_unknown_method_is_named():
    scene = GrpcScene()

    answer = ask(scene, GRPC, path="/inference.GRPCInferenceService/ModelInfr")

    assert answer.status == Status.UNIMPLEMENTED
    assert answer.headers["grpc-message"] == "unknown method /inference.GRPCInferenceService/ModelInfr"
    assert scene.statuses == {Status.UNIMPLEMENTED: 1}
    assert scene.ended[0]["path"] == "/inference.GRPCInferenceService/ModelInfr"


@in_loop
async def test_an_unknown_encoding_is_refused_with_those_that_are_known():
    answer = ask(GrpcScene(), GRPC, ("grpc-encoding", "snappy"))

    assert answer.status == Status.UNIMPLEMENTED
    assert answer.headers["grpc-accept-encoding"] == "identity, deflate, gzip"


@in_loop
async def test_a_timeout_that_is_none_is_refused():
    answer = ask(GrpcScene(), GRPC, ("grpc-timeout", "soon"))

    assert answer.status == Status.INTERNAL
    assert answer.headers["grpc-message"].startswith("malformed grpc-timeout 'soon'")


@in_loop
async def test_a_refused_call_refuses_what_still_comes():
    scene = GrpcScene()
    stream = scene.client.open_grpc("/absent")
    assert scene.client.answer(stream).is_complete

    assert ask(scene, GRPC).status == 0
    assert scene.statuses == {0: 1, Status.UNIMPLEMENTED: 1}


@in_loop
async def test_a_head_is_resolved_once_per_connection_that_repeats_it():
    scene = GrpcScene()
    heads = []
    resolve = scene.listener.resolve
    scene.listener.resolve = lambda head: heads.append(head) or resolve(head)

    for _ in range(4):
        ask(scene, GRPC)

    assert len(heads) <= 2  # the first block also fills the client's table


# Restrictions


@in_loop
@pytest.mark.parametrize(
    ("extra", "status"),
    [
        ((), Status.UNAVAILABLE),
        ((("triton-grpc-protocol-key", "wrong"),), Status.UNAVAILABLE),
        ((("triton-grpc-protocol-key", "secret"),), Status.OK),
    ],
)
async def test_restricted_categories_need_their_header(extra, status):
    scene = GrpcScene(restricted_protocols=(Restriction(("inference", "health"), "Key", "secret"),))

    for path in (LIVE, INFER, STREAM_INFER):
        answer = scene.client.answer(scene.client.infer(*extra, path=path, X=X))
        assert answer.status == status
        if status:
            text = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
            assert answer.headers["grpc-message"] == text
    assert ask(scene, GRPC, path="/inference.GRPCInferenceService/RepositoryIndex").status is not None
    assert scene.statuses[status] == 3


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (
            ((("infer",), "k", "v"),),
            "restricted protocol 'infer' is unknown, expected one of health, inference",
        ),
        (((("trace",), "k", "v"), (("trace",), "l", "v")), "'trace' is named twice"),
    ],
)
def test_restrictions_that_mean_nothing_are_refused(groups, text):
    class Api:
        options = GrpcOptions(restricted_protocols=groups)

    with pytest.raises(InvalidArgument, match=text):
        Router(Api())  # type: ignore[arg-type]


# Forwarding and compression


@in_loop
@pytest.mark.parametrize("path", [INFER, STREAM_INFER])
async def test_matching_metadata_become_parameters(path):
    scene = GrpcScene(header_forward_pattern="^my-")

    scene.client.infer(("my-tag", "a"), ("other", "b"), path=path, X=X)
    scene.client.infer(path=path, X=X)

    assert [request.parameters for request in scene.server.submitted] == [{"my-tag": "a"}, None]


@in_loop
async def test_metadata_with_a_reserved_name_are_refused():
    scene = GrpcScene(header_forward_pattern="priority")

    answer = scene.client.answer(scene.client.infer(("priority", "1"), X=X))

    assert answer.status == Status.INVALID_ARGUMENT
    assert "is reserved" in answer.headers["grpc-message"]
    assert ask(scene, GRPC, ("priority", "1")).status == 0  # only inference forwards


@in_loop
@pytest.mark.parametrize(
    ("level", "accept", "encoding"),
    [
        ("none", "gzip", None),
        ("high", None, None),
        ("high", "gzip", "gzip"),
        ("high", "gzip, deflate", "deflate"),
        ("low", "gzip, deflate", "gzip"),
    ],
)
@pytest.mark.parametrize("path", [INFER, STREAM_INFER])
async def test_inference_answers_are_compressed_as_configured_and_accepted(level, accept, encoding, path):
    scene = GrpcScene(response_compression_level=level)
    extra = [("grpc-accept-encoding", accept)] if accept else []

    large = await scene.finish(scene.client.infer(*extra, path=path, X=np.zeros(1000, np.float32)))
    tiny = await scene.finish(scene.client.infer(*extra, path=path, X=X[:1]))

    assert large.headers.get("grpc-encoding") == tiny.headers.get("grpc-encoding") == encoding
    assert large.data[0] == (encoding is not None)
    assert tiny.data[0] == 0  # it would have grown
    assert "grpc-encoding" not in ask(scene, GRPC, *extra).headers


def test_level_is_one_of_four():
    with pytest.raises(InvalidArgument, match="response_compression_level"):
        GrpcScene(FakeServer(), response_compression_level="max")
