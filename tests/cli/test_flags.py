"""The flag table, and what the command line does with it."""

from __future__ import annotations

import pytest

from bireme.cli.flags import FLAGS, SECTIONS
from bireme.cli.main import run
from bireme.cli.unsupported import find_unsupported
from bireme.cli.values import SWITCH

_NAMES = """
allow-client-shm allow-cpu-metrics allow-gpu-metrics allow-grpc allow-http allow-metrics
allow-sagemaker allow-vertex-ai backend-config backend-directory buffer-manager-thread-count
cache-config cache-directory cuda-memory-pool-byte-size cuda-virtual-address-size
disable-auto-complete-config enable-peer-access exit-on-error exit-timeout-secs grpc-address
grpc-header-forward-pattern grpc-http2-max-ping-strikes grpc-http2-max-pings-without-data
grpc-http2-min-recv-ping-interval-without-data grpc-infer-allocation-pool-size
grpc-infer-response-compression-level grpc-infer-thread-count grpc-keepalive-permit-without-calls
grpc-keepalive-time grpc-keepalive-timeout grpc-max-connection-age grpc-max-connection-age-grace
grpc-max-response-pool-size grpc-port grpc-restricted-protocol grpc-root-cert grpc-server-cert
grpc-server-key grpc-use-ssl grpc-use-ssl-mutual host-policy http-address
http-header-forward-pattern http-max-input-size http-port http-restricted-api http-thread-count id
load-model log-error log-file log-format log-info log-verbose log-warning metrics-address
metrics-config metrics-interval-ms metrics-port min-supported-compute-capability model-config-name
model-control-mode model-load-gpu-limit model-load-retry-count model-load-thread-count
model-namespacing model-repository model-store pinned-memory-pool-byte-size rate-limit
rate-limit-resource repoagent-directory repository-poll-secs response-cache-byte-size
reuse-grpc-port reuse-http-port sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
strict-model-config strict-readiness trace-config trace-count trace-file trace-level
trace-log-frequency trace-rate vertex-ai-default-model vertex-ai-port vertex-ai-thread-count
"""
TRITONSERVER_FLAGS = set(_NAMES.split())


def test_every_flag_of_tritonserver_is_known():
    known = {*FLAGS, *(flag.alias for flag in FLAGS.values() if flag.alias)}

    assert set() == TRITONSERVER_FLAGS - known


def test_every_other_flag_is_marked_as_an_extension():
    own = {name for name in FLAGS if name not in TRITONSERVER_FLAGS}

    assert own == {flag.name for flag in FLAGS.values() if flag.extension}


def test_a_flag_has_one_fate_and_a_text_where_it_works():
    for flag in FLAGS.values():
        assert 1 == bool(flag.text) + bool(flag.no_effect) + bool(flag.feature), flag.name


def test_no_flag_is_listed_twice():
    assert len(FLAGS) == sum(len(flags) for flags in SECTIONS.values())


def test_switches_of_a_feature_are_flags_of_it():
    for flag in FLAGS.values():
        for switch in flag.feature.switches if flag.feature else ():
            assert flag.feature is FLAGS[switch].feature


def test_defaults_are_values_and_not_texts_to_parse():
    for flag in FLAGS.values():
        if isinstance(flag.default, str) and flag.default:
            assert flag.default == flag.type.parse(flag.default), flag.name


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"allow-grpc": ["true"], "grpc-port": ["8001"], "grpc-use-ssl": ["true"]},
        {"grpc-infer-thread-count": ["4"], "allow-client-shm": ["true"]},
        {"sagemaker-port": ["8080"], "vertex-ai-port": ["8080"]},  # off in tritonserver unless switched on
        {"allow-sagemaker": ["0"]},
        {"model-namespacing": ["false"]},
        {"http-port": ["8000"], "log-verbose": ["1"]},
    ],
)
def test_flags_that_leave_their_feature_off_are_accepted(given):
    assert [] == find_unsupported(given)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"allow-vertex-ai": ["on"]}, ["allow-vertex-ai"]),
        ({"allow-sagemaker": ["true"], "sagemaker-port": ["1"]}, ["allow-sagemaker", "sagemaker-port"]),
        ({"host-policy": ["cpu,numa-node=0"]}, ["host-policy"]),
    ],
)
def test_flags_that_ask_for_a_later_feature_are_refused(given, refused):
    found = find_unsupported(given)

    assert [f"--{name}: not supported yet: " in text for name, text in zip(refused, found, strict=True)]


def test_a_refusal_names_the_feature():
    (found,) = find_unsupported({"allow-sagemaker": ["1"]})

    assert "--allow-sagemaker: not supported yet: the SageMaker front end comes with a later release" == found


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--http-prot=1"], "'--http-port'"),
        (["models"], "unexpected argument 'models'; a repository is given by --model-repository models"),
        (["--allow-http"], "requires an argument"),
        (["--http-port", "http"], "'--http-port': expected an integer from 0 to 65535, got 'http'"),
        (["--strict-readiness=maybe"], "expected true/on/1 or false/off/0, got 'maybe'"),
        (["--http-max-input-size=0"], "expected an integer of at least 1, got '0'"),
        (["--grpc-infer-thread-count=1"], "expected an integer from 2 to 128, got '1'"),
        (["--grpc-max-response-pool-size=0"], "expected an integer of at least 1, got '0'"),
        (["--grpc-keepalive-time=2h"], "expected an integer from 0 to 2147483647, got '2h'"),
        (
            ["--grpc-infer-response-compression-level=best"],
            "expected one of none, low, medium, high, got 'best'",
        ),
        (
            ["--grpc-restricted-protocol=infer:k=v"],
            "unknown restricted protocol 'infer', expected one of health",
        ),
        (["--host-policy", "cpu,numa-node=0"], "--host-policy: not supported yet"),
        (["--model-config-name="], "expected a name without spaces"),
        ([], "--model-repository: at least one is needed"),
    ],
)
def test_a_usage_error_is_explained_and_exits_with_1(arguments, complaint, capsys):
    assert 1 == run(["serve", *arguments])
    assert complaint in capsys.readouterr().err


def test_help_shows_every_flag_by_section(capsys):
    assert 0 == run(["serve", "--help"])
    shown = capsys.readouterr().out
    for section, flags in SECTIONS.items():
        assert f"{section}:" in shown or not any(flag.text for flag in flags)
        assert [] == [flag.name for flag in flags if f"--{flag.name}" not in shown]


def test_only_switches_take_no_value():
    assert ["disable-auto-complete-config"] == [flag.name for flag in FLAGS.values() if flag.type is SWITCH]
