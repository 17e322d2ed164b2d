"""Trace settings: whose value is valid, what a change does, and which requests are sampled."""

from __future__ import annotations

import pytest

from bireme.telemetry.tracing import TraceMode, TraceOptions, TraceSettings, read_changes
from bireme.types import BiremeError, InvalidArgument, Unsupported

ON = TraceOptions(level=("TIMESTAMPS",), rate=2, file="t.json")
OTEL = TraceOptions(level=("TIMESTAMPS",), rate=2, mode=TraceMode.OPENTELEMETRY)


def sampled(settings: TraceSettings, num_requests: int, model: str = "m", **how: bool) -> list[int]:
    """Return which of so many requests, from 1 on, are sampled."""
    return [number for number in range(1, num_requests + 1) if settings.find(model).sample(**how)]


def test_nothing_is_sampled_by_default():
    settings = TraceSettings(TraceOptions())

    assert sampled(settings, 3000) == []
    assert settings.describe("") == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }


def test_every_rate_th_request_is_sampled():
    assert sampled(TraceSettings(ON), 7) == [2, 4, 6]


def test_a_count_runs_out_and_can_be_renewed():
    settings = TraceSettings(ON)
    settings.update("", {"trace_count": 2})

    assert sampled(settings, 9) == [2, 4]
    assert settings.describe("")["trace_count"] == ["0"]
    settings.update("", {"trace_count": 1})
    assert sampled(settings, 9) == [2]


def test_a_count_of_a_model_that_has_run_out_keeps_nobody_from_changing_the_server_s_setting():
    settings = TraceSettings(ON)
    settings.update("m", {"trace_count": 1})
    assert sampled(settings, 9) == [2]

    settings.update("", {"trace_rate": 3})

    assert sampled(settings, 6, "other") == [3, 6]
    assert sampled(settings, 6) == []
    assert settings.describe("m")["trace_count"] == ["0"]
    assert settings.describe("m")["trace_rate"] == ["3"]


def test_without_a_file_nothing_is_sampled():
    settings = TraceSettings(TraceOptions(level=("TIMESTAMPS",), rate=1))

    assert sampled(settings, 3) == []
    with pytest.raises(
        InvalidArgument, match=r"^Attempting to set invalid trace setting :trace file name is"
    ):
        settings.update("", {"trace_rate": 2})


def test_who_brings_a_context_is_sampled_whatever_rate_and_count():
    settings = TraceSettings(OTEL)
    settings.update("m", {"trace_count": 1})

    assert sampled(settings, 3, is_forced=True) == [1, 2, 3]
    assert sampled(settings, 4) == []
    assert sampled(TraceSettings(TraceOptions(level=("TIMESTAMPS",), rate=0)), 2, is_forced=True) == [1, 2]


def test_a_model_s_value_stands_above_the_server_s():
    settings = TraceSettings(ON)
    settings.update("m", {"trace_rate": 3})
    settings.update("", {"trace_rate": 5, "log_frequency": 7})

    assert settings.describe("m")["trace_rate"] == ["3"]
    assert settings.describe("m")["log_frequency"] == ["7"]
    assert settings.describe("other")["trace_rate"] == ["5"]
    settings.update("m", {"trace_rate": None})
    assert settings.describe("m")["trace_rate"] == ["5"]
    assert settings.models == {}


def test_a_value_of_the_server_that_is_taken_back_is_that_of_the_start():
    settings = TraceSettings(ON)
    settings.update("", {"trace_rate": 9, "trace_level": ()})
    settings.update("", {"trace_rate": None, "trace_level": None})

    assert settings.describe("")["trace_rate"] == ["2"]
    assert settings.describe("")["trace_level"] == ["TIMESTAMPS"]


def test_a_model_can_be_traced_alone():
    settings = TraceSettings(TraceOptions(file="t.json"))
    settings.update("m", {"trace_level": ("TENSORS",), "trace_rate": 1})

    assert sampled(settings, 2) == [1, 2]
    assert sampled(settings, 2, "other") == []


@pytest.mark.parametrize("model", ["", "m"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trace_rate": 0}, "sample rate must be non-zero"),
        ({"trace_count": 0}, "trace count must be non-zero"),
    ],
)
def test_what_could_not_trace_is_refused_and_changes_nothing(model, changes, reason):
    settings = TraceSettings(ON)

    with pytest.raises(InvalidArgument, match=f"^Attempting to set invalid trace setting :{reason}$"):
        settings.update(model, changes)
    assert settings.describe(model)["trace_rate"] == ["2"]
    settings.update(model, {**changes, "trace_level": ()})  # off, anything goes


def test_a_change_of_the_server_that_a_model_could_not_follow_changes_nothing():
    settings = TraceSettings(TraceOptions(file="t.json"))
    settings.update("m", {"trace_level": ("TIMESTAMPS",)})

    with pytest.raises(InvalidArgument):
        settings.update("", {"trace_rate": 0})
    assert settings.describe("")["trace_rate"] == settings.describe("m")["trace_rate"] == ["1000"]


def test_a_replaced_setting_is_told():
    settings = TraceSettings(ON)
    first = settings.current

    assert settings.update("", {"trace_rate": 3}) == [first]
    assert settings.update("m", {"trace_rate": 4}) == []
    assert len(settings.update("", {"trace_rate": 5})) == 2


def test_opentelemetry_tells_its_own_options(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "77")
    options = TraceOptions.parse(
        [
            "mode=opentelemetry",
            "opentelemetry,url=http://a/v1/traces",
            "opentelemetry,resource=x=y",
            "opentelemetry,resource=a=b=c",
            "opentelemetry,bsp_max_queue_size=1024",
        ]
    )

    told = TraceSettings(options).describe("")

    assert {"log_frequency", "trace_file"}.isdisjoint(told)
    assert told["trace_mode"] == ["opentelemetry"]
    assert told["url"] == ["http://a/v1/traces"]
    assert told["resource"] == ["x=y", "a=b=c"]
    assert told["bsp_max_queue_size"] == ["1024"]
    assert told["bsp_schedule_delay"] == ["77"]
    assert told["bsp_max_export_batch_size"] == ["512"]


@pytest.mark.parametrize(
    ("texts", "changes"),
    [
        ({}, {}),
        ({"trace_level": ["TENSORS", "TIMESTAMPS"]}, {"trace_level": ("TIMESTAMPS", "TENSORS")}),
        ({"trace_level": ["OFF"]}, {"trace_level": ()}),
        ({"trace_level": None}, {"trace_level": None}),
        ({"trace_level": []}, {}),
        ({"trace_level": ["SOME"]}, {}),  # Triton takes it, too
        ({"trace_rate": ["12"], "trace_count": ["-1"]}, {"trace_rate": 12, "trace_count": -1}),
        ({"log_frequency": None, "other": ["1"]}, {"log_frequency": None}),
    ],
)
def test_changes_are_read(texts, changes):
    assert read_changes(texts) == changes


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
        ({"trace_rate": ["x"]}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": [""]}, "Unable to parse 'trace_rate', got: "),
        (
            {"trace_rate": ["99999999999"]},
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 99999999999",
        ),
        (
            {"log_frequency": ["-1"]},
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: -1",
        ),
        ({"trace_count": ["-2"]}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        (
            {"trace_count": ["9" * 5000]},
            f"Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: {'9' * 5000}",
        ),
        ({"trace_count": ["1", "2"]}, "expect only 1 value for 'trace_count'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_triton_s_words(texts, complaint):
    with pytest.raises(InvalidArgument) as refusal:
        read_changes(texts)
    assert refusal.value.message == complaint


def test_the_file_is_not_for_clients_to_choose():
    with pytest.raises(
        Unsupported, match=r"^trace file location can not be updated through network protocol$"
    ):
        read_changes({"trace_file": None})


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ([], TraceOptions()),
        (["level=TENSORS", "level=max"], TraceOptions(level=("TIMESTAMPS", "TENSORS"))),
        (["level=TENSORS", "level=off"], TraceOptions()),
        (["rate=5", "rate=0", "count=3"], TraceOptions(rate=0, count=3)),
        (["triton,file=a=b", "Triton,log-frequency=4"], TraceOptions(file="a=b", log_frequency=4)),
        (["mode=OpenTelemetry"], TraceOptions(mode=TraceMode.OPENTELEMETRY)),
        (
            ["opentelemetry,url=u", "opentelemetry,url=v"],
            TraceOptions(opentelemetry=(("url", "v"),)),
        ),
    ],
)
def test_trace_config_is_read(settings, options):
    found = TraceOptions.parse(settings)

    found.check()
    assert found == options


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["level"], "option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'. Got level"),
        ([",rate=1"], "option format"),
        (["rate="], "option format"),
        (["rate=often"], "--trace-config rate: expected a whole number, found 'often'"),
        (["rate=-1"], "trace rate is -1, expected 0 or more"),
        (["level=LOUD"], "expected OFF, TIMESTAMPS or TENSORS, found 'LOUD'"),
        (["mode=zipkin"], "expected triton or opentelemetry, found 'zipkin'"),
        (["file=x"], "--trace-config file: unknown setting, expected one of level, rate, count, mode"),
        (["zipkin,file=x"], "unknown trace mode 'zipkin'"),
        (["opentelemetry,resource=x"], "expected <key>=<value>, found 'x'"),
        (["opentelemetry,bsp_schedule_delay=0"], "expected 1 or more, found '0'"),
        (["opentelemetry,bsp_max_queue_size=4"], "expected at most bsp_max_queue_size, which is 4"),
    ],
)
def test_a_wrong_trace_config_is_refused(settings, complaint):
    with pytest.raises(BiremeError) as refusal:
        TraceOptions.parse(settings).check()
    assert complaint in refusal.value.message
