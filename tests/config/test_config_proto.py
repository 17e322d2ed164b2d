"""The .proto, its checked-in descriptor, the dataclasses and the protobuf messages are one thing."""

import base64
import runpy
import zlib
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from hypothesis import given, settings

from bireme.config import ModelConfig, from_proto, parse_text, to_proto
from bireme.config._model_config_descriptor import COMPRESSED
from bireme.config.descriptors import descriptor, message_class
from bireme.config.schema import MessageType, model_config_type
from bireme.types import InvalidArgument
from config_strategies import configs

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_protos"


def test_checked_in_descriptor_is_what_the_proto_compiles_to():
    compiled = runpy.run_path(str(SCRIPT))["compile_proto"]("model_config.proto")
    checked_in = zlib.decompress(base64.b64decode(COMPRESSED))

    parse = descriptor_pb2.FileDescriptorProto.FromString
    assert parse(checked_in) == parse(compiled)


def all_messages(message: MessageType, found: dict[str, MessageType]) -> dict[str, MessageType]:
    if message.name not in found:
        found[message.name] = message
        for field in message.fields.values():
            if field.message is not None:
                all_messages(field.message, found)
    return found


def find_descriptor(name: str):
    return descriptor().file.pool.FindMessageTypeByName(f"inference.{name}")


@pytest.mark.parametrize("name", sorted(all_messages(model_config_type(), {})))
def test_dataclass_has_exactly_the_fields_of_its_message(name):
    message = all_messages(model_config_type(), {})[name]
    described = find_descriptor(name)
    hints = get_type_hints(message.make)

    assert {field.name.removesuffix("_") for field in fields(message.make)} == {
        f.name for f in described.fields
    }
    for field in described.fields:
        hint = hints[message.fields[field.name].attribute]
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        assert message.fields[field.name].is_repeated == (
            isinstance(field.default_value, list) and not is_map
        )
        assert (message.fields[field.name].key is not None) == is_map
        # Absence can be told from the default exactly where protobuf can tell.
        assert (type(None) in get_args(hint) and get_origin(hint) is not tuple) == field.has_presence


def test_dataclass_defaults_are_those_of_the_proto():
    assert from_proto(message_class()()) == ModelConfig()


def test_parameter_by_key():
    config = parse_text('parameters { key: "a" value { string_value: "b" } }', "x")

    assert (config.parameter("a"), config.parameter("c"), config.parameter("c", "d")) == ("b", "", "d")


def test_pool_is_private():
    assert descriptor().file.pool is not descriptor_pool.Default()


@settings(deadline=None, max_examples=50)
@given(configs())
def test_proto_round_trip(config):
    assert from_proto(message_class().FromString(to_proto(config).SerializeToString())) == config


def test_wire_form_is_that_of_triton():
    """Field 1 is the name, 17 the backend, 4 the batch size: bytes as any protobuf client would send them."""
    config = ModelConfig(name="m", backend="python", max_batch_size=8)

    assert to_proto(config).SerializeToString() == b"\x0a\x01m\x20\x08\x8a\x01\x06python"


def test_single_precision_floats_keep_their_short_form():
    config = parse_text("sequence_batching { direct { minimum_slot_utilization: 0.3 } }", "x")

    assert from_proto(to_proto(config)).sequence_batching.direct.minimum_slot_utilization == 0.3


def test_unnamed_enum_number_in_a_message_is_refused():
    message = message_class()()
    message.input.add().data_type = 99

    with pytest.raises(InvalidArgument, match=r"'data_type' holds 99"):
        from_proto(message)


def test_number_too_large_for_its_field_is_refused():
    with pytest.raises(ValueError, match="out of range"):
        to_proto(ModelConfig(max_batch_size=2**31))
