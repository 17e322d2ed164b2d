"""ServerOptions: what is refused before anything is started."""

import pytest

from bireme.engine import ServerOptions
from bireme.types import InvalidArgument


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model_control_mode": "manual"},
            "model_control_mode is 'manual', expected one of none, poll, explicit",
        ),
        ({"load_model": ("m",)}, "load_model .m. needs model_control_mode 'explicit', got 'none'"),
        (
            {"load_model": ("m",), "model_control_mode": "poll"},
            "needs model_control_mode 'explicit', got 'poll'",
        ),
        (
            {"load_model": ("*", "m"), "model_control_mode": "explicit"},
            "Wildcard model name '\\*' must be the ONLY startup model if specified at all",
        ),
        ({"model_config_name": "a b"}, "model_config_name is 'a b': it must not contain spaces"),
        ({"model_config_name": "../x"}, "must not contain spaces or path separators"),
        ({"repository_poll_secs": -1}, "repository_poll_secs is -1, expected 0 or more"),
        ({"repository_poll_secs": float("nan")}, "repository_poll_secs is nan, expected 0 or more"),
        ({"model_load_thread_count": 0}, "model_load_thread_count is 0, expected 1 or more"),
        ({"model_load_retry_count": -1}, "model_load_retry_count is -1"),
        ({"exit_timeout_secs": -0.1}, "exit_timeout_secs is -0.1"),
        ({"rate_limit": "on"}, "rate_limit is 'on', expected one of off, execution_count"),
        (
            {"model_namespacing": True, "model_control_mode": "ondemand"},
            "model_namespacing cannot be combined with model_control_mode 'ondemand'",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings, message):
    with pytest.raises(InvalidArgument, match=message):
        ServerOptions(**settings).check()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model_control_mode": "poll", "repository_poll_secs": 0},
        {"model_control_mode": "explicit", "load_model": ("*",)},
        {"model_control_mode": "explicit", "load_model": ("a", "b")},
        {"model_control_mode": "ondemand", "load_model": ("a",)},
        {"rate_limit": "execution_count", "rate_limit_resource": (("r", 1, None),)},
        {"model_config_name": "fast"},
    ],
)
def test_right_settings_pass(settings):
    ServerOptions(**settings).check()


def test_a_backends_own_settings_come_after_the_global_ones():
    options = ServerOptions(
        backend_config=(
            ("onnxruntime", "default-max-batch-size", "16"),
            ("", "default-max-batch-size", "8"),
            ("", "other", "1"),
            ("python", "shm", "2"),
        )
    )
    assert options.settings_of("onnxruntime") == {"default-max-batch-size": "16", "other": "1"}
    assert options.settings_of("fake") == {"default-max-batch-size": "8", "other": "1"}
