"""The .proto files, their checked-in descriptors, and those that clients are built with are one thing."""

from __future__ import annotations

import base64
import runpy
import zlib
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from tritonclient.grpc import service_pb2

from bireme.wire import grpc as wire_grpc
from bireme.wire.grpc import (
    _grpc_service_descriptor,
    _health_descriptor,
    _reflection_v1_descriptor,
    _reflection_v1alpha_descriptor,
)

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_protos"
MODULES = {
    "grpc_service.proto": _grpc_service_descriptor,
    "grpc/health/v1/health.proto": _health_descriptor,
    "grpc/reflection/v1/reflection.proto": _reflection_v1_descriptor,
    "grpc/reflection/v1alpha/reflection.proto": _reflection_v1alpha_descriptor,
}


def described(file):
    """Return a FileDescriptorProto without what follows from the rest."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    messages = list(proto.message_type)
    while messages:
        message = messages.pop()
        messages += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
    return proto


@pytest.mark.parametrize("name", sorted(MODULES))
def test_checked_in_descriptor_is_what_the_proto_compiles_to(name):
    compiled = runpy.run_path(str(SCRIPT))["compile_proto"](name)
    checked_in = zlib.decompress(base64.b64decode(MODULES[name].COMPRESSED))

    parse = descriptor_pb2.FileDescriptorProto.FromString
    assert parse(checked_in) == parse(compiled)
    assert parse(checked_in).name == name


def test_the_service_is_that_of_the_official_client():
    theirs = described(service_pb2.DESCRIPTOR)
    ours = described(wire_grpc.pool().FindFileByName("grpc_service.proto"))

    def by_name(file):
        return {message.name: message for message in file.message_type}

    assert by_name(ours) == by_name(theirs)
    assert list(ours.service) == list(theirs.service)
    assert (ours.package, ours.syntax, list(ours.dependency)) == (
        theirs.package,
        theirs.syntax,
        list(theirs.dependency),
    )


def test_every_service_is_in_the_pool_with_its_methods():
    found = {
        name: {
            method.name: (method.client_streaming, method.server_streaming)
            for method in wire_grpc.pool().FindServiceByName(name).methods
        }
        for name in wire_grpc.SERVICES
    }

    reflection = {"ServerReflectionInfo": (True, True)}
    assert found["grpc.health.v1.Health"] == {"Check": (False, False), "Watch": (False, True)}
    assert found["grpc.reflection.v1.ServerReflection"] == reflection
    assert found["grpc.reflection.v1alpha.ServerReflection"] == reflection
    streaming = {name for name, kind in found["inference.GRPCInferenceService"].items() if any(kind)}
    assert streaming == {"ModelStreamInfer"}
    assert len(found["inference.GRPCInferenceService"]) == 20


def test_the_pool_is_private():
    assert wire_grpc.pool() is not descriptor_pool.Default()
    assert wire_grpc.message_class("inference.ModelInferRequest") is not service_pb2.ModelInferRequest


def test_message_classes_are_made_once():
    first = wire_grpc.message_class("grpc.health.v1.HealthCheckRequest")

    assert wire_grpc.message_class("grpc.health.v1.HealthCheckRequest") is first
    assert first(service="x").SerializeToString() == b"\x0a\x01x"
    with pytest.raises(KeyError):
        wire_grpc.message_class("inference.Nothing")


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_has_the_field_numbers_of_grpc(version):
    request = wire_grpc.message_class(f"grpc.reflection.{version}.ServerReflectionRequest")
    response = wire_grpc.message_class(f"grpc.reflection.{version}.ServerReflectionResponse")

    assert {field.name: field.number for field in request.DESCRIPTOR.fields} == {
        "host": 1,
        "file_by_filename": 3,
        "file_containing_symbol": 4,
        "file_containing_extension": 5,
        "all_extension_numbers_of_type": 6,
        "list_services": 7,
    }
    assert {field.name: field.number for field in response.DESCRIPTOR.fields} == {
        "valid_host": 1,
        "original_request": 2,
        "file_descriptor_response": 4,
        "all_extension_numbers_response": 5,
        "list_services_response": 6,
        "error_response": 7,
    }


def test_a_file_comes_with_what_it_imports():
    pool = wire_grpc.pool()
    files = wire_grpc.with_imports(pool.FindFileByName("grpc_service.proto"))

    assert [file.name for file in files] == ["model_config.proto", "grpc_service.proto"]
    fresh = descriptor_pool.DescriptorPool()
    for file in files:
        fresh.AddSerializedFile(file.serialized_pb)
    assert fresh.FindServiceByName("inference.GRPCInferenceService")
