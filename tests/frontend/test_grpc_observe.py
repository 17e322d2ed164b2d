"""gRPC methods that change nothing: health, metadata, config, statistics."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from bireme import Server
from bireme.config import proto
from bireme.engine import ServerState
from bireme.frontend.grpc.methods import CATEGORIES, MAX_CALL_SIZE, STREAM_METHODS, UNARY_METHODS
from bireme.types import InvalidArgument, NotFound, Unavailable
from bireme.wire.grpc import SERVICES, pool
from grpc_handlers import ask, ask_later, declaration
from http_fakes import FakeServer
from model_dirs import LoadingBackend, add_fake_model


@pytest.fixture
def server():
    return FakeServer()


# The tables


def test_every_declared_method_has_a_handler():
    declared = {
        f"/{service}/{method}".encode()
        for service in SERVICES
        for method in pool().FindServiceByName(service).methods_by_name
    }
    inference = {
        b"/inference.GRPCInferenceService/ModelInfer",
        b"/inference.GRPCInferenceService/ModelStreamInfer",
    }

    assert declared == {*UNARY_METHODS, *STREAM_METHODS} | inference


def test_streams_are_told_apart_as_the_proto_declares():
    for path, method in {**UNARY_METHODS, **STREAM_METHODS}.items():
        declared = declaration(path.decode())
        assert declared.server_streaming == (path in STREAM_METHODS)
        assert declared.input_type.full_name == method.request


def test_categories_are_those_of_the_original():
    assert CATEGORIES == {
        "health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics",
        "trace", "logging",
    }  # fmt: skip
    assert {path for path, method in STREAM_METHODS.items() if not method.category} == {
        b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }


def test_only_a_load_may_be_large():
    sizes = {path.rpartition(b"/")[2]: method.max_message_size for path, method in UNARY_METHODS.items()}

    assert sizes.pop(b"RepositoryModelLoad") == 0
    assert set(sizes.values()) == {MAX_CALL_SIZE}


# Health


@pytest.mark.parametrize(
    ("state", "is_ready", "live", "ready"),
    [
        (ServerState.NEW, False, False, False),
        (ServerState.INITIALIZING, False, True, False),
        (ServerState.READY, False, True, False),
        (ServerState.READY, True, True, True),
        (ServerState.FAILED, False, False, False),
    ],
)
def test_server_health(server, state, is_ready, live, ready):
    server.state = state
    server.is_ready = is_ready

    assert ask(server, "ServerLive").live is live
    assert ask(server, "ServerReady").ready is ready


@pytest.mark.parametrize("name", ["ServerLive", "ServerReady"])
@pytest.mark.parametrize("state", [ServerState.EXITING, ServerState.STOPPED])
def test_health_is_an_error_while_the_server_stops(server, name, state):
    server.state = state

    with pytest.raises(Unavailable, match=r"^Server exiting$"):
        ask(server, name)


def test_model_ready_tells_an_unhealthy_version_from_one_that_does_not_serve(server):
    assert ask(server, "ModelReady", name="m").ready
    assert ask(server, "ModelReady", name="m", version="1").ready
    server.models["m"].version = 0
    assert not ask(server, "ModelReady", name="m").ready
    with pytest.raises(NotFound, match="unknown model: 'x' is not found"):
        ask(server, "ModelReady", name="x")


@pytest.mark.parametrize("is_ready", [True, False])
def test_models_that_have_a_say_are_asked(server, is_ready):
    async def scenario():
        server.asks_models = True
        server.hook = asyncio.get_running_loop().create_future()
        asked = [
            asyncio.create_task(ask_later(server, "ServerReady")),
            asyncio.create_task(ask_later(server, "ModelReady", name="m")),
        ]
        await asyncio.sleep(0)
        assert not any(task.done() for task in asked)
        server.hook.set_result(is_ready)
        assert [reply.ready for reply in await asyncio.gather(*asked)] == [is_ready, is_ready]
        with pytest.raises(NotFound):
            await ask_later(server, "ModelReady", name="x")

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"])
@pytest.mark.parametrize("version", ["x", "-1", "9223372036854775808"])
def test_a_version_that_is_none_is_refused(server, method, version):
    with pytest.raises(InvalidArgument, match="version should be an integral value > 0"):
        ask(server, method, name="m", version=version)


# Descriptions


def test_server_metadata(server):
    server.metadata = lambda: {"name": "triton", "version": "1.2", "extensions": ["a", "b"]}

    reply = ask(server, "ServerMetadata")

    assert (reply.name, reply.version, list(reply.extensions)) == ("triton", "1.2", ["a", "b"])


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, (None, -1)),
        ({"version": "3"}, (None, 3)),
        ({"name": "m"}, ("m", -1)),
        ({"name": "m", "version": "2"}, ("m", 2)),
    ],
)
def test_statistics_are_asked_of_one_model_or_of_all(server, fields, asked):
    calls = []
    server.model_statistics = lambda *args: calls.append(args) or {"model_stats": []}

    assert not ask(server, "ModelStatistics", **fields).model_stats
    assert calls == [asked]


def test_statistics_have_every_field_of_the_json(server):
    def duration(count):
        return {"count": count, "ns": count * (1 << 40)}

    entry = {
        "name": "m",
        "version": "2",
        "last_inference": 1_700_000_000_000,
        "inference_count": 5,
        "execution_count": 4,
        "inference_stats": {
            key: duration(number)
            for number, key in enumerate(
                ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit",
                 "cache_miss"),
                1,
            )
        },
        "response_stats": {
            "0": {
                key: duration(number)
                for number, key in enumerate(
                    ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"), 1
                )
            }
        },
        "batch_stats": [
            {
                "batch_size": 8,
                "compute_input": duration(1),
                "compute_infer": duration(2),
                "compute_output": duration(3),
            }
        ],
        "memory_usage": [{"type": "GPU", "id": 1, "byte_size": 1 << 33}],
    }  # fmt: skip
    server.model_statistics = lambda *_: {"model_stats": [entry, {**entry, "version": "3"}]}

    reply = ask(server, "ModelStatistics")

    first, second = MessageToDict(reply, preserving_proto_field_name=True)["model_stats"]
    assert _numbers(first) == entry
    assert second["version"] == "3"


def _numbers(value):
    """Undo what protobuf's JSON form does to 64-bit numbers, which becomes text."""
    if isinstance(value, dict):
        return {key: item if key == "version" else _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return int(value) if isinstance(value, str) and value.isdigit() else value


def test_the_engine_is_described_in_full(tmp_path):
    """Every key that the engine gives for JSON has its field."""
    add_fake_model(tmp_path, "plus", versions=(1, 3), extra="version_policy { all {} }\nmax_batch_size: 4")

    async def scenario():
        backend = LoadingBackend(run=lambda inputs: {"Y": inputs["X"] + 1})
        async with Server(tmp_path, backends={"fake": backend}) as server:
            await server.ainfer("plus", {"X": np.zeros((2, 3), np.float32)})

            assert ask(server, "ModelReady", name="plus", version="1").ready
            metadata = ask(server, "ServerMetadata")
            assert (metadata.name, list(metadata.extensions)) == ("triton", server.metadata()["extensions"])

            model = ask(server, "ModelMetadata", name="plus")
            assert (model.name, list(model.versions), model.platform) == ("plus", ["1", "3"], "fake")
            assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
                ("X", "FP32", [-1, -1])
            ]
            assert [each.name for each in model.outputs] == ["Y"]

            config = ask(server, "ModelConfig", name="plus", version="1").config
            assert proto.from_proto(config) == server.model("plus", 1).config
            assert (config.name, config.max_batch_size, config.input[0].name) == ("plus", 4, "X")

            (one,) = ask(server, "ModelStatistics", name="plus", version="3").model_stats
            assert (one.version, one.inference_count, one.inference_stats.success.count) == ("3", 2, 1)
            assert one.batch_stats[0].batch_size == 2
            assert [each.version for each in ask(server, "ModelStatistics").model_stats] == ["1", "3"]

            index = ask(server, "RepositoryIndex")
            assert [(each.name, each.version, each.state) for each in index.models] == [
                ("plus", "1", "READY"),
                ("plus", "3", "READY"),
            ]

            with pytest.raises(NotFound):
                ask(server, "ModelConfig", name="plus", version="2")
            with pytest.raises(InvalidArgument, match="requested model 'x' is not available"):
                ask(server, "ModelStatistics", name="x")

    asyncio.run(scenario())
