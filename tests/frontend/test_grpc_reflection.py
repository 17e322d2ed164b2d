"""Server reflection: what grpcurl and its like ask, and what they can build from the answers."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from bireme.wire.grpc import SERVICES, message_class
from bireme.wire.grpc.status import Status
from grpc_handlers import FakeApi, declaration, open_stream
from http_fakes import FakeServer

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")


def ask(package: str = PACKAGES[0], **question):
    """Ask one question on a call of its own."""
    path = f"/{package}.ServerReflection/ServerReflectionInfo"
    handler, stream = open_stream(FakeApi(FakeServer()), path)
    request = message_class(f"{package}.ServerReflectionRequest")(host="somewhere", **question)
    handler.take(request)
    handler.end()
    (answer,) = stream.sent
    assert stream.ending == "finished"
    assert answer.DESCRIPTOR.full_name == declaration(path).output_type.full_name
    assert (answer.valid_host, answer.original_request) == ("somewhere", request)
    return type(answer).FromString(answer.SerializeToString())


def files_of(answer) -> list[FileDescriptorProto]:
    assert answer.WhichOneof("message_response") == "file_descriptor_response"
    return [
        FileDescriptorProto.FromString(each) for each in answer.file_descriptor_response.file_descriptor_proto
    ]


def pool_of(answer) -> DescriptorPool:
    """A pool of what one answer holds, added in whichever order the imports ask for."""
    pool = DescriptorPool()
    files = {file.name: file for file in files_of(answer)}

    def add(file):
        for name in file.dependency:
            if name in files:
                add(files.pop(name))
        pool.Add(file)

    while files:
        add(files.pop(next(iter(files))))
    return pool


def error_of(answer) -> tuple[int, str]:
    assert answer.WhichOneof("message_response") == "error_response"
    return answer.error_response.error_code, answer.error_response.error_message


@pytest.mark.parametrize("package", PACKAGES)
def test_all_services_are_listed(package):
    answer = ask(package, list_services="*")

    assert [each.name for each in answer.list_services_response.service] == list(SERVICES)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("service", SERVICES)
def test_one_question_is_enough_to_call_a_service(package, service):
    pool = pool_of(ask(package, file_containing_symbol=service))

    for method in pool.FindServiceByName(service).methods:
        assert GetMessageClass(method.input_type)().SerializeToString() == b""
        assert method.output_type.file.pool is pool


def test_a_request_built_from_the_answer_is_the_servers_own():
    pool = pool_of(ask(file_containing_symbol="inference.GRPCInferenceService"))
    method = pool.FindMethodByName("inference.GRPCInferenceService.ModelInfer")
    request = GetMessageClass(method.input_type)(model_name="m", raw_input_contents=[b"x"])
    request.parameters["p"].int64_param = 5

    received = message_class("inference.ModelInferRequest").FromString(request.SerializeToString())

    assert (received.model_name, received.parameters["p"].int64_param) == ("m", 5)
    assert received.raw_input_contents == [b"x"]
    assert pool.FindMethodByName("inference.GRPCInferenceService.ModelStreamInfer").client_streaming


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("inference.GRPCInferenceService", "grpc_service.proto"),
        ("inference.GRPCInferenceService.ModelInfer", "grpc_service.proto"),
        ("grpc.health.v1.Health.Watch", "grpc/health/v1/health.proto"),
        ("inference.ModelInferRequest", "grpc_service.proto"),
        ("inference.ModelInferRequest.InferInputTensor", "grpc_service.proto"),
        ("inference.ModelInferRequest.id", "grpc_service.proto"),
        ("inference.ModelConfig", "model_config.proto"),
        ("inference.DataType", "model_config.proto"),
        ("inference.TYPE_FP32", "model_config.proto"),
        ("grpc.health.v1.HealthCheckResponse.ServingStatus", "grpc/health/v1/health.proto"),
        ("grpc.reflection.v1alpha.ServerReflection", "grpc/reflection/v1alpha/reflection.proto"),
    ],
)
def test_the_file_of_a_symbol_comes_first(symbol, name):
    files = files_of(ask(file_containing_symbol=symbol))

    assert files[0].name == name
    assert {each for file in files for each in file.dependency} == {file.name for file in files[1:]}


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    "name",
    [
        "grpc_service.proto",
        "model_config.proto",
        "grpc/health/v1/health.proto",
        "grpc/reflection/v1/reflection.proto",
        "grpc/reflection/v1alpha/reflection.proto",
    ],
)
def test_a_file_is_found_by_its_name(package, name):
    assert files_of(ask(package, file_by_filename=name))[0].name == name


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    "question",
    [
        {"file_by_filename": "nothing.proto"},
        {"file_by_filename": ""},
        {"file_containing_symbol": "inference.Nothing"},
        {"file_containing_symbol": "inference"},
        {"file_containing_symbol": "inference.GRPCInferenceService.Nothing"},
        {"file_containing_symbol": "inference.ModelInferRequest.nothing"},
        {"file_containing_symbol": ""},
        {"file_containing_symbol": "a\0b"},
        {"file_containing_symbol": "." * 60_000},
        {"file_containing_extension": {"containing_type": "inference.ModelConfig", "extension_number": 1}},
        {"file_containing_extension": {"containing_type": "inference.ModelConfig", "extension_number": -1}},
        {"file_containing_extension": {"containing_type": "inference.Nothing", "extension_number": 1}},
        {"file_containing_extension": {}},
        {"all_extension_numbers_of_type": "inference.Nothing"},
        {"all_extension_numbers_of_type": "inference.GRPCInferenceService"},
        {"all_extension_numbers_of_type": "inference.DataType"},
    ],
)
def test_what_does_not_exist_is_not_found(package, question):
    code, message = error_of(ask(package, **question))

    assert code == Status.NOT_FOUND
    assert message.startswith(f"not found: {next(iter(question))}")


def test_no_message_has_extensions():
    answer = ask(all_extension_numbers_of_type="inference.ModelConfig")

    assert answer.WhichOneof("message_response") == "all_extension_numbers_response"
    assert answer.all_extension_numbers_response.base_type_name == "inference.ModelConfig"
    assert not answer.all_extension_numbers_response.extension_number


@pytest.mark.parametrize("package", PACKAGES)
def test_an_empty_question_is_an_invalid_argument(package):
    code, message = error_of(ask(package))

    assert code == Status.INVALID_ARGUMENT
    assert "message_request" in message


def test_questions_are_answered_in_order_and_a_wrong_one_ends_nothing():
    handler, stream = open_stream(
        FakeApi(FakeServer()), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    )
    make = message_class("grpc.reflection.v1.ServerReflectionRequest")
    for question in (
        {"file_by_filename": "x"},
        {"list_services": ""},
        {"file_containing_symbol": SERVICES[1]},
    ):
        handler.take(make(**question))

    assert [each.WhichOneof("message_response") for each in stream.sent] == [
        "error_response",
        "list_services_response",
        "file_descriptor_response",
    ]
    assert stream.ending is None
    handler.cancel()
    assert stream.ending is None
