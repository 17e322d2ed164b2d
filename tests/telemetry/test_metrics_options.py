"""MetricsOptions: --metrics-config as Triton reads it, with errors where Triton is silent."""

import pytest

from bireme.telemetry import MetricsOptions
from bireme.types import InvalidArgument


def test_nothing_said_gives_the_defaults():
    assert MetricsOptions.parse([]) == MetricsOptions()


def test_every_setting_is_read():
    settings = [
        "counter_latencies=false",
        "histogram_latencies=true",
        "summary_latencies=true",
        "summary_quantiles=0.5:0.05,0.9:0.01",
        "phase_buckets_seconds=0.001,0.01,1",
    ]

    assert MetricsOptions.parse(settings, cpu_metrics=False, interval_ms=500) == MetricsOptions(
        counter_latencies=False,
        histogram_latencies=True,
        summary_latencies=True,
        summary_quantiles=((0.5, 0.05), (0.9, 0.01)),
        phase_buckets_seconds=(0.001, 0.01, 1.0),
        cpu_metrics=False,
        interval_ms=500,
    )


def test_a_later_setting_wins():
    assert MetricsOptions.parse(["summary_latencies=true", "summary_latencies=false"]) == MetricsOptions()


@pytest.mark.parametrize(
    "setting", ["", "counter_latencies", "=true", "counter_latencies=", "x,counter_latencies=true"]
)
def test_another_form_is_refused_in_tritons_words(setting):
    with pytest.raises(InvalidArgument) as found:
        MetricsOptions.parse([setting])

    assert found.value.message == f"--metrics-config option format is <setting>=<value>. Got {setting}"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "sumary_latencies=true",
            "--metrics-config: unknown setting 'sumary_latencies'; did you mean 'summary_latencies'?",
        ),
        (
            "x=1",
            (
                "--metrics-config: unknown setting 'x', expected one of counter_latencies, histogram_latencies, "
                "summary_latencies, summary_quantiles, phase_buckets_seconds"
            ),
        ),
        ("counter_latencies=1", "--metrics-config counter_latencies: expected true or false, found '1'"),
        (
            "summary_quantiles=0.5",
            "--metrics-config summary_quantiles: expected <quantile>:<error>, found '0.5'",
        ),
        (
            "summary_quantiles=0.5:0.1,50:1",
            "--metrics-config summary_quantiles: a quantile and its error are from 0 to 1, found '50:1'",
        ),
        (
            "phase_buckets_seconds=1,x",
            "--metrics-config phase_buckets_seconds: expected seconds separated by commas, found '1,x'",
        ),
        (
            "phase_buckets_seconds=2,1",
            "--metrics-config phase_buckets_seconds: bucket bounds must ascend, but 1 follows 2",
        ),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused(setting, message):
    with pytest.raises(InvalidArgument) as found:
        MetricsOptions.parse([setting])

    assert found.value.message == message
