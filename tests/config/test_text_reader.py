"""config.pbtxt: what is read, and what is said about what cannot be."""

import re
from contextlib import suppress

import pytest
from google.protobuf import text_format
from hypothesis import example, given, settings, strategies as st

from bireme.config import ModelConfig, parse_text, to_proto, to_text
from bireme.config.descriptors import message_class
from bireme.config.model_config import (
    AllPolicy,
    ModelDynamicBatching,
    ModelInput,
    ModelParameter,
    ModelQueuePolicy,
    ModelVersionPolicy,
    RateLimiterResource,
    SpecificPolicy,
)
from bireme.types import InvalidArgument
from config_strategies import configs

READ = [
    ("", ModelConfig()),
    (" \t\n# only a comment", ModelConfig()),
    ('name: "m"', ModelConfig(name="m")),
    ("name: 'm'; max_batch_size: 8,", ModelConfig(name="m", max_batch_size=8)),
    ('name: "a" \'b\'\n"c"', ModelConfig(name="abc")),
    (r'name: "\"\\\n\t\x41\101\u00e9\U0001F600\303\251"', ModelConfig(name='"\\\n\tAAé😀é')),
    ('\ufeffname: "bom"', ModelConfig(name="bom")),
    ("max_batch_size: 0x10", ModelConfig(max_batch_size=16)),
    ("max_batch_size: 010", ModelConfig(max_batch_size=8)),
    ("max_batch_size: - 3", ModelConfig(max_batch_size=-3)),
    ("max_batch_size: 0 max_batch_size: 4", ModelConfig(max_batch_size=4)),
    ("input { dims: 1 dims: [-1, 3] dims: [] }", ModelConfig(input=(ModelInput(dims=(1, -1, 3)),))),
    ('input [ { name: "a" }, { name: "b" } ]', ModelConfig(input=(ModelInput("a"), ModelInput("b")))),
    ('input: < name: "a" >', ModelConfig(input=(ModelInput("a"),))),
    ("input { data_type: TYPE_FP32 }", ModelConfig(input=(ModelInput(data_type="TYPE_FP32"),))),
    ("input { data_type: 11 }", ModelConfig(input=(ModelInput(data_type="TYPE_FP32"),))),
    *(
        (f"input {{ optional: {yes} }}", ModelConfig(input=(ModelInput(optional=True),)))
        for yes in ("true", "True", "t", "1")
    ),
    ("input { optional: f }", ModelConfig(input=(ModelInput(),))),
    (
        'parameters { key: "a" value { string_value: "b" } }',
        ModelConfig(parameters={"a": ModelParameter("b")}),
    ),
    (
        'parameters: [ { key: "a" value: { } }, { value { string_value: "c" } key: "b" } ]',
        ModelConfig(parameters={"a": ModelParameter(), "b": ModelParameter("c")}),
    ),
    ('metric_tags { key: "a" value: "b" }', ModelConfig(metric_tags={"a": "b"})),
    ('metric_tags { key: "a" } metric_tags { value: "b" }', ModelConfig(metric_tags={"a": "", "": "b"})),
    (
        "dynamic_batching { priority_queue_policy { key: 2 value { timeout_action: DELAY } } }",
        ModelConfig(
            dynamic_batching=ModelDynamicBatching(
                priority_queue_policy={2: ModelQueuePolicy(timeout_action="DELAY")}
            )
        ),
    ),
    ("version_policy: { all { } }", ModelConfig(version_policy=ModelVersionPolicy(all=AllPolicy()))),
    (
        "version_policy { specific { versions: [ 1, 3 ] } }",
        ModelConfig(version_policy=ModelVersionPolicy(specific=SpecificPolicy((1, 3)))),
    ),
]


@pytest.mark.parametrize(("text", "config"), READ)
def test_reads(text, config):
    assert parse_text(text, "config.pbtxt") == config


def test_field_named_by_a_python_keyword():
    config = parse_text('instance_group { rate_limiter { resources { name: "R" global: true } } }', "x")

    assert config.instance_group[0].rate_limiter.resources == (RateLimiterResource("R", global_=True),)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.3", 0.3),
        ("0.3f", 0.3),
        ("1", 1.0),
        ("-.5e1F", -5.0),
        ("1e60", float("inf")),
        ("-inf", -float("inf")),
        ("0x10", 16.0),
        ("0.1234567890123", 0.12345679),
        ("-103.217316", -103.217316),
        ("-0", 0.0),
    ],
)
def test_single_precision_values(text, value):
    config = parse_text(f"sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}", "x")

    assert config.sequence_batching.direct.minimum_slot_utilization == value


MISSPELT = [
    ("max_batchsize: 8", "1:1: unknown field 'max_batchsize' in ModelConfig; did you mean 'max_batch_size'?"),
    (
        "\n  Max_Batch_Size: 8",
        "2:3: unknown field 'Max_Batch_Size' in ModelConfig; did you mean 'max_batch_size'?",
    ),
    ("inputs { }", "1:1: unknown field 'inputs' in ModelConfig; did you mean 'input'?"),
    ("input { shape: [1] }", "1:9: unknown field 'shape' in ModelInput; did you mean 'dims'?"),
    (
        "input { datatype: TYPE_FP32 }",
        "1:9: unknown field 'datatype' in ModelInput; did you mean 'data_type'?",
    ),
    (
        "max_queue_delay_microseconds: 100",
        (
            "1:1: unknown field 'max_queue_delay_microseconds' in ModelConfig; did you mean "
            "'max_queue_delay_microseconds' inside 'dynamic_batching'?"
        ),
    ),
    (
        "output { optional: true }",
        (
            "1:10: unknown field 'optional' in ModelOutput; it has: name, data_type, dims, reshape, label_filename, "
            "is_shape_tensor, is_non_linear_format_io"
        ),
    ),
    (
        'metric_tags { key: "a" val: "b" }',
        "1:24: unknown field 'val' in an entry of 'metric_tags'; it has: key, value",
    ),
    (
        "input { data_type: TYPE_FLOAT32 }",
        "1:20: 'data_type' has no value 'TYPE_FLOAT32'; did you mean TYPE_FP32?",
    ),
    ("input { data_type: FP32 }", "1:20: 'data_type' has no value 'FP32'; did you mean TYPE_FP32?"),
    ("input { data_type: type_int8 }", "1:20: 'data_type' has no value 'type_int8'; did you mean TYPE_INT8?"),
    ("input { data_type: BYTES }", "1:20: 'data_type' has no value 'BYTES'; did you mean TYPE_STRING?"),
    ("instance_group { kind: CPU }", "1:24: 'kind' has no value 'CPU'; did you mean KIND_CPU?"),
    ("instance_group { kind: KIND_GPUS }", "1:24: 'kind' has no value 'KIND_GPUS'; did you mean KIND_GPU?"),
    (
        "instance_group { kind: 7 }",
        "1:24: 'kind' has no value '7'; expected one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL",
    ),
]

WRONG_TYPE = [
    (
        'max_batch_size: "8"',
        "1:17: 'max_batch_size' expects an integer, found the string \"8\"; write it without quotes",
    ),
    ("max_batch_size: 8.5", "1:17: 'max_batch_size' expects an integer, found '8.5'"),
    ("max_batch_size: 1e3", "1:17: 'max_batch_size' expects an integer, found '1e3'"),
    ("max_batch_size: eight", "1:17: 'max_batch_size' expects an integer, found 'eight'"),
    (
        "max_batch_size: 08",
        "1:17: 'max_batch_size' expects an integer, found '08'; a leading 0 makes it octal",
    ),
    ("max_batch_size: [8]", "1:17: 'max_batch_size' expects an integer, found a list in [ ]"),
    ("max_batch_size { }", "1:16: 'max_batch_size' expects an integer, found a message in { }"),
    (f"max_batch_size: {'9' * 200}", f"1:17: 'max_batch_size' expects an integer, found '{'9' * 40}…'"),
    (
        "max_batch_size: 2147483648",
        "1:17: 'max_batch_size' is 2147483648, which does not fit in int32: expected -2147483648 to 2147483647",
    ),
    (
        "version_policy { latest { num_versions: -1 } }",
        "1:41: 'num_versions' is -1, which does not fit in uint32: expected 0 to 4294967295",
    ),
    ("name: m", "1:7: 'name' expects a string, found 'm'; put it in quotes"),
    ("name: 5", "1:7: 'name' expects a string, found '5'; put it in quotes"),
    ("input { dims: [1, x] }", "1:19: 'dims' expects an integer, found 'x'"),
    ("input { dims: [[1]] }", "1:16: 'dims' expects an integer, found a list in [ ]"),
    ("input { dims [1] }", "1:14: expected ':' after 'dims', found '['"),
    ("response_cache { enable: yes }", "1:26: 'enable' expects true or false, found 'yes'"),
    (
        'response_cache { enable: "true" }',
        "1:26: 'enable' expects true or false, found the string \"true\"; write it without quotes",
    ),
    ("response_cache: true", "1:17: 'response_cache' expects { … } (ModelResponseCache), found 'true'"),
    ("input: [1]", "1:9: 'input' expects { … } (ModelInput), found '1'"),
    (
        'input { data_type: "TYPE_FP32" }',
        (
            "1:20: 'data_type' expects one of TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, …, found the string "
            '"TYPE_FP32"; write it without quotes'
        ),
    ),
    (
        "sequence_batching { direct { minimum_slot_utilization: half } }",
        "1:56: 'minimum_slot_utilization' expects a number, found 'half'",
    ),
    (
        'parameters { key: "a" value: "b" }',
        "1:30: value in 'parameters' expects { … } (ModelParameter), found the string \"b\"",
    ),
    ('parameters: "a"', "1:13: 'parameters' expects entries { key: … value: … }, found the string \"a\""),
    ("metric_tags { key: a }", "1:20: key of 'metric_tags' expects a string, found 'a'; put it in quotes"),
    (
        'dynamic_batching { priority_queue_policy { key: "1" } }',
        (
            "1:49: key of 'priority_queue_policy' expects a non-negative integer, found the string \"1\"; write it "
            "without quotes"
        ),
    ),
]

TWICE = [
    ('name: "a" name: "b"', "1:11: field 'name' in ModelConfig is given twice"),
    ("response_cache { } response_cache { }", "1:20: field 'response_cache' in ModelConfig is given twice"),
    ('metric_tags { key: "a" key: "b" }', "1:24: 'key' is given twice in an entry of 'metric_tags'"),
    (
        "dynamic_batching { }\nsequence_batching { }",
        (
            "2:1: 'sequence_batching' cannot stand beside 'dynamic_batching': ModelConfig takes only one of "
            "dynamic_batching, sequence_batching, ensemble_scheduling"
        ),
    ),
    (
        'model_warmup { inputs { key: "x" value { zero_data: true random_data: true } } }',
        (
            "1:58: 'random_data' cannot stand beside 'zero_data': ModelWarmup.Input takes only one of zero_data, "
            "random_data, input_data_file"
        ),
    ),
]

BROKEN = [
    (
        'input {\n  name: "x"\n  dims: [1]\noutput {\n  name: "y"\n}',
        (
            "4:1: unknown field 'output' in ModelInput; it is a field of ModelConfig: is a '}' missing before it?; "
            "config.pbtxt:6:2: expected '}' for the '{' opened at 1:7, found the end of the file"
        ),
    ),
    ('input {\n  name: "x"\n', "3:1: expected '}' for the '{' opened at 1:7, found the end of the file"),
    ('input [\n{ name: "a" }', "2:14: expected ']' for the '[' opened at 1:7, found the end of the file"),
    ("input { dims: [1, 2 }", "1:21: expected ',', or ']' for the '[' opened at 1:15, found '}'"),
    ("input [ { } { } ]", "1:13: expected ',', or ']' for the '[' opened at 1:7, found '{'"),
    ("input [ { }, ]", "1:14: expected another value after ',', found ']'"),
    (
        "input < }",
        "1:9: expected a field name, or '>' for the '<' opened at 1:7, found '}'; it closes nothing that is open",
    ),
    ("}", "1:1: expected a field name, found '}'; it closes nothing that is open"),
    (
        '{ "name": "m" }',
        "1:1: expected a field name, found '{'; the file is the message itself, without braces around it",
    ),
    ('"name": "m"', "1:1: expected a field name, found '\"name\"'; field names have no quotes"),
    (
        'name: "m" garbage',
        "1:18: expected ':' and a value, or '{', after 'garbage', found the end of the file",
    ),
    ('name: "m" 5', "1:11: expected a field name, found '5'"),
    (
        "max_batch_size = 8",
        "1:16: expected ':' and a value, or '{', after 'max_batch_size', found '='; a field is written 'name: value'",
    ),
    ("max_batch_size:", "1:16: expected a value for 'max_batch_size', found the end of the file"),
    ("max_batch_size: -", "1:18: expected a number after '-', found the end of the file"),
    ("// hello", "1:1: expected a field name, found '/'; a comment begins with '#'"),
    ("name: “m”", "1:7: expected a value for 'name', found '“'; use the straight quote '\"'"),
    (
        'name: "m\n',
        "1:7: expected a value for 'name', found a string whose closing \" is missing on its line",
    ),
    ("name: \x00", r"1:7: expected a value for 'name', found '\x00'"),
    (r'name: "a\q"', r"1:9: unknown escape '\q' in a string"),
    (r'name: "a\777"', r"1:9: unknown escape '\777' in a string"),
    (r'name: "a\UFFFFFFFF"', r"1:9: unknown escape '\UFFFFFFFF' in a string"),
    (r'name: "\xff"', "1:7: string is not valid UTF-8: invalid start byte"),
    (r'name: "\ud800"', "1:7: string is not valid Unicode: surrogates not allowed"),
    ('name: "\udc80"', "1:7: string is not valid Unicode: surrogates not allowed"),
]


@pytest.mark.parametrize(("text", "message"), MISSPELT + WRONG_TYPE + TWICE + BROKEN)
def test_says_what_is_wrong_and_where(text, message):
    with pytest.raises(InvalidArgument) as caught:
        parse_text(text, "config.pbtxt")

    assert caught.value.message == f"config.pbtxt:{message}"


@pytest.mark.parametrize(("text", "place"), [("input {" * 65, "1:455"), ("input: " + "[" * 65, "1:72")])
def test_nesting_is_limited(text, place):
    with pytest.raises(InvalidArgument, match=f"config.pbtxt:{place}: nested deeper than 64 levels$"):
        parse_text(text, "config.pbtxt")


def test_reports_all_faults_in_the_order_of_the_text():
    with pytest.raises(InvalidArgument) as caught:
        parse_text(
            'nam: "m"\ninput {\n  data_type: FP32\n  dims: "1"\n}\nmax_batch_size: x }', "m/config.pbtxt"
        )

    message = caught.value.message
    positions = ["1:1", "3:14", "4:9", "6:17", "6:19"]
    assert [message.index(f"m/config.pbtxt:{position}: ") for position in positions] == sorted(
        match.start() for match in re.finditer("m/config.pbtxt:", message)
    )


def test_stops_at_twenty_faults():
    with pytest.raises(InvalidArgument) as caught:
        parse_text("nonsense: 1\n" * 1000, "x")

    assert caught.value.message.count("unknown field 'nonsense'") == 20
    assert caught.value.message.endswith("; more faults are not shown")


@settings(deadline=None, max_examples=50)
@given(configs())
def test_text_round_trip(config):
    assert parse_text(to_text(config), "x") == config


@settings(deadline=None, max_examples=50)
@given(configs())
def test_protobuf_reads_the_same_from_our_text(config):
    assert text_format.Parse(to_text(config), message_class()()) == to_proto(config)


@settings(deadline=None, max_examples=50)
@given(configs(), st.booleans(), st.booleans(), st.booleans())
def test_reads_every_style_that_protobuf_writes(config, one_line, angle, utf8):
    text = text_format.MessageToString(
        to_proto(config),
        as_one_line=one_line,
        pointy_brackets=angle,
        as_utf8=utf8,
        use_short_repeated_primitives=angle,
    )

    assert parse_text(text, "x") == config


@st.composite
def damaged_texts(draw):
    text = to_text(draw(configs()))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(start + 4, len(text))))
        text = text[:start] + draw(st.text("{}[]<>:;,\"'-0x9.e# \n\\af", max_size=2)) + text[end:]
    return text


@settings(deadline=None, max_examples=50)
@given(damaged_texts())
def test_accepts_damaged_text_only_where_protobuf_does(text):
    try:
        config = parse_text(text, "x")
    except InvalidArgument:
        return

    assert text_format.Parse(text, message_class()()) == to_proto(config)


@given(st.one_of(st.text(), st.text("{}[]<>:,;\"'\\-#.0123456789abeinput_ \n", max_size=60), damaged_texts()))
@settings(deadline=None, max_examples=50)
@example("name: 0x")
@example("max_batch_size: " + "f" * 5000)
@example("max_batch_size: 0x" + "f" * 5000)
@example("model_metrics { metric_control { histogram_options { buckets: 0x" + "f" * 5000 + " } } }")
def test_arbitrary_text_raises_nothing_but_invalid_argument(text):
    with suppress(InvalidArgument):
        assert isinstance(parse_text(text, "x"), ModelConfig)
