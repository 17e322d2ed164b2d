"""Configs as JSON: what load overrides may say, and what is said about those that cannot be read."""

import json
from contextlib import suppress

import pytest
from google.protobuf import json_format
from hypothesis import given, settings, strategies as st

from bireme.config import ModelConfig, parse_json, to_json, to_proto
from bireme.config.model_config import (
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelQueuePolicy,
    ModelResponseCache,
)
from bireme.types import InvalidArgument
from config_strategies import configs

READ = [
    ({}, ModelConfig()),
    ({"name": "m", "max_batch_size": 8}, ModelConfig(name="m", max_batch_size=8)),
    (
        {"maxBatchSize": 8, "responseCache": {}},
        ModelConfig(max_batch_size=8, response_cache=ModelResponseCache()),
    ),
    ({"name": None, "input": None, "response_cache": None}, ModelConfig()),
    ({"max_batch_size": 8.0}, ModelConfig(max_batch_size=8)),
    ({"max_batch_size": "8"}, ModelConfig(max_batch_size=8)),
    ({"input": [{"dims": ["-1", 16]}]}, ModelConfig(input=(ModelInput(dims=(-1, 16)),))),
    ({"input": [{"data_type": "type_fp32"}]}, ModelConfig(input=(ModelInput(data_type="TYPE_FP32"),))),
    ({"input": [{"data_type": 11}]}, ModelConfig(input=(ModelInput(data_type="TYPE_FP32"),))),
    (
        {"instance_group": [{"kind": "Kind_Cpu"}]},
        ModelConfig(instance_group=(ModelInstanceGroup(kind="KIND_CPU"),)),
    ),
    (
        {"dynamic_batching": {"priority_queue_policy": {"1": {"max_queue_size": 2}}}},
        ModelConfig(
            dynamic_batching=ModelDynamicBatching(
                priority_queue_policy={1: ModelQueuePolicy(max_queue_size=2)}
            )
        ),
    ),
]


@pytest.mark.parametrize(("document", "config"), READ)
def test_reads(document, config):
    assert parse_json(json.dumps(document), "override") == config
    assert parse_json(json.dumps(document).encode(), "override") == config


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), ("0.5", 0.5), ("Infinity", float("inf")), ("-Infinity", -float("inf"))]
)
def test_floats(value, expected):
    document = {"sequence_batching": {"direct": {"minimum_slot_utilization": value}}}

    config = parse_json(json.dumps(document), "override")

    assert config.sequence_batching.direct.minimum_slot_utilization == expected


REFUSED = [
    ("", "override:1:1: not valid JSON: Expecting value"),
    ('{"name": "m"', "override:1:13: not valid JSON: Expecting ',' delimiter"),
    ('{"name":\n "m",,}', "override:2:6: not valid JSON: "),
    (b"\xff", "override: not valid JSON: 'utf-8' codec can't decode byte 0xff"),
    ('{"max_batch_size": ' + "9" * 5000 + "}", "override: not valid JSON: Exceeds the limit"),
    ("[" * 100_000, "override: not a ModelConfig: the JSON is nested too deeply"),
    ("[]", "override: expected a JSON object with the fields of ModelConfig, found a list"),
    ("5", "override: expected a JSON object with the fields of ModelConfig, found 5"),
    ('{"inputs": []}', "override: unknown field 'inputs' in ModelConfig; did you mean 'input'?"),
    (
        '{"input": [{"shape": [1]}]}',
        "override: input[0]: unknown field 'shape' in ModelInput; did you mean 'dims'?",
    ),
    ('{"input": {}}', "override: 'input' expects a list, found an object"),
    ('{"input": [1]}', "override: 'input[0]' expects an object (ModelInput), found 1"),
    ('{"input": [{"dims": [2.5]}]}', "override: 'input[0].dims[0]' expects an integer, found 2.5"),
    ('{"input": [{"dims": [null]}]}', "override: 'input[0].dims[0]' expects an integer, found null"),
    ('{"max_batch_size": true}', "override: 'max_batch_size' expects an integer, found true"),
    ('{"max_batch_size": "x"}', "override: 'max_batch_size' expects an integer, found the string \"x\""),
    (
        '{"max_batch_size": 1e300}',
        "override: 'max_batch_size' is 1000000000000000052504760255204420248704…, which does not fit in int32: ",
    ),
    ('{"max_batch_size": 1e999}', "override: 'max_batch_size' expects an integer, found Infinity"),
    ('{"name": 1}', "override: 'name' expects a string, found 1"),
    ('{"name": "\\ud800"}', "override: 'name' holds half a surrogate pair, which is not valid Unicode"),
    ('{"name": "a", "name": "b"}', "override: field 'name' in ModelConfig is given twice"),
    (
        '{"max_batch_size": 1, "maxBatchSize": 1}',
        "override: field 'max_batch_size' in ModelConfig is given twice",
    ),
    ('{"response_cache": {"enable": 1}}', "override: 'response_cache.enable' expects true or false, found 1"),
    (
        '{"response_cache": true}',
        "override: 'response_cache' expects an object (ModelResponseCache), found true",
    ),
    (
        '{"input": [{"data_type": "FP32"}]}',
        "override: 'input[0].data_type' has no value 'FP32'; did you mean TYPE_FP32?",
    ),
    (
        '{"input": [{"data_type": 99}]}',
        "override: 'input[0].data_type' has no value '99'; expected one of TYPE_BOOL, ",
    ),
    ('{"input": [{"data_type": true}]}', "override: 'input[0].data_type' expects one of TYPE_BOOL, "),
    ('{"parameters": []}', "override: 'parameters' expects an object, found a list"),
    (
        '{"parameters": {"a": "b"}}',
        "override: 'parameters.a' expects an object (ModelParameter), found the string \"b\"",
    ),
    ('{"metric_tags": {"a": "b", "a": "c"}}', "override: 'metric_tags' has the key 'a' twice"),
    (
        '{"dynamic_batching": {"priority_queue_policy": {"x": {}}}}',
        "override: key of 'dynamic_batching.priority_queue_policy' expects a non-negative integer, found the string \"x\"",
    ),
    (
        '{"sequence_batching": {"direct": {"minimum_slot_utilization": "x"}}}',
        "override: 'sequence_batching.direct.minimum_slot_utilization' expects a number, found the string \"x\"",
    ),
    (
        '{"sequence_batching": {"direct": {"minimum_slot_utilization": []}}}',
        "override: 'sequence_batching.direct.minimum_slot_utilization' expects a number, found a list",
    ),
    (
        '{"dynamic_batching": {}, "sequence_batching": {}}',
        "override: 'sequence_batching' cannot stand beside 'dynamic_batching': ModelConfig takes only one of ",
    ),
    (
        '{"name": 1, "max_batch_size": "x"}',
        "override: 'name' expects a string, found 1; 'max_batch_size' expects an integer, found the string \"x\"",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_says_what_is_wrong_and_where(text, message):
    with pytest.raises(InvalidArgument) as caught:
        parse_json(text, "override")

    assert caught.value.message.startswith(message)


def test_stops_at_twenty_faults():
    with pytest.raises(InvalidArgument) as caught:
        parse_json(json.dumps({f"field_{index}": 1 for index in range(1000)}), "override")

    assert caught.value.message.count("unknown field") == 20
    assert caught.value.message.endswith("; more faults are not shown")


@settings(deadline=None, max_examples=50)
@given(configs())
def test_json_round_trip(config):
    assert parse_json(json.dumps(to_json(config)), "override") == config


@settings(deadline=None, max_examples=50)
@given(configs(), st.booleans(), st.booleans())
def test_reads_what_protobuf_writes(config, own_names, all_fields):
    text = json_format.MessageToJson(
        to_proto(config),
        preserving_proto_field_name=own_names,
        always_print_fields_with_no_presence=all_fields,
    )

    assert parse_json(text, "override") == config


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "input", "dims", "parameters", "dynamic_batching", "x"]), inner
        )
    ),
    max_leaves=10,
)


@settings(deadline=None, max_examples=50)
@given(st.one_of(st.text(), st.binary(), JSON_VALUES.map(json.dumps)))
def test_arbitrary_input_raises_nothing_but_invalid_argument(text):
    with suppress(InvalidArgument):
        assert isinstance(parse_json(text, "override"), ModelConfig)
