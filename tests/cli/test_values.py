"""Flag values: what each type takes, and what it says about the rest."""

from __future__ import annotations

import pytest

from bireme.cli.values import (
    BACKEND_SETTING,
    BOOL,
    CONFIG_NAME,
    MILLISECONDS,
    PATTERN,
    PORT,
    RESOURCE,
    RESTRICTED_APIS,
    RESTRICTED_PROTOCOLS,
    VERBOSITY,
    ValueType,
    choice,
    integer,
)

MODE = choice("none", "poll", "explicit")


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "on", "On", "1", "yes"])
def test_a_bool_is_true_in_every_spelling(text):
    assert BOOL.parse(text) is True


@pytest.mark.parametrize("text", ["false", "FALSE", "off", "OFF", "0", "no"])
def test_a_bool_is_false_in_every_spelling(text):
    assert BOOL.parse(text) is False


@pytest.mark.parametrize(
    ("value_type", "text", "expected"),
    [
        (PORT, "8000", 8000),
        (PORT, "0", 0),
        (integer(), "-1", -1),
        (integer(1), "+7", 7),
        (VERBOSITY, "true", 1),
        (VERBOSITY, "FALSE", 0),
        (VERBOSITY, "3", 3),
        (MILLISECONDS, "2000", 2000.0),
        (MILLISECONDS, "0.5", 0.5),
        (MODE, "EXPLICIT", "explicit"),
        (PATTERN, "x-.*", "x-.*"),
        (CONFIG_NAME, "h100", "h100"),
        (BACKEND_SETTING, "onnxruntime,threads=2", ("onnxruntime", "threads", "2")),
        (BACKEND_SETTING, "default-max-batch-size=8", ("", "default-max-batch-size", "8")),
        (BACKEND_SETTING, "a=b=c,d", ("", "a", "b=c,d")),
        (RESOURCE, "R1:2", ("R1", 2, None)),
        (RESOURCE, "R1:0:3", ("R1", 0, 3)),
        (RESTRICTED_APIS, "health:key=secret", (("health",), "key", "secret")),
        (
            RESTRICTED_APIS,
            "model-repository,shared-memory:X-Key=a=b:c",
            (("model-repository", "shared-memory"), "X-Key", "a=b:c"),
        ),
    ],
)
def test_a_good_text_becomes_its_value(value_type: ValueType, text: str, expected: object):
    assert expected == value_type.parse(text)


@pytest.mark.parametrize(
    ("value_type", "text", "complaint"),
    [
        (BOOL, "maybe", "expected true/on/1 or false/off/0, got 'maybe'"),
        (BOOL, "", "got ''"),
        (PORT, "65536", "expected an integer from 0 to 65535, got '65536'"),
        (PORT, "1.5", "expected an integer from 0 to 65535, got '1.5'"),
        (integer(1), "0", "expected an integer of at least 1, got '0'"),
        (integer(maximum=3), "4", "expected an integer of at most 3, got '4'"),
        (integer(), "1_000", "expected an integer, got '1_000'"),
        (integer(), "١", "expected an integer"),
        (VERBOSITY, "-1", "of at least 0"),
        (MILLISECONDS, "0", "expected milliseconds above 0, got '0'"),
        (MILLISECONDS, "nan", "expected milliseconds above 0, got 'nan'"),
        (MODE, "polling", "expected one of none, poll, explicit, got 'polling'"),
        (PATTERN, "x[", "not a regular expression"),
        (CONFIG_NAME, "", "expected a name without spaces, got ''"),
        (CONFIG_NAME, "a b", "expected a name without spaces, got 'a b'"),
        (BACKEND_SETTING, "threads", "expected [<backend>,]<setting>=<value>, got 'threads'"),
        (BACKEND_SETTING, ",a=b", "got ',a=b'"),
        (RESOURCE, "R1", "expected <name>:<count>[:<device>], got 'R1'"),
        (RESOURCE, "R1:2:", "got 'R1:2:'"),
        (RESOURCE, ":2", "got ':2'"),
        (RESOURCE, "R1:-1", "got 'R1:-1'"),
        (BACKEND_SETTING, "a=", "got 'a='"),
        (RESTRICTED_APIS, "health", "expected <api>[,<api>…]:<key>=<value>, got 'health'"),
        (RESTRICTED_PROTOCOLS, "health", "expected <protocol>[,<protocol>…]:<key>=<value>, got 'health'"),
        (RESTRICTED_PROTOCOLS, "infer:k=v", "unknown restricted protocol 'infer', expected one of health"),
        (RESTRICTED_APIS, "health:key", "got 'health:key'"),
        (RESTRICTED_APIS, "helth:key=x", "unknown restricted api 'helth', expected one of health, metadata"),
    ],
)
def test_a_wrong_text_says_what_is_expected_and_what_came(value_type: ValueType, text: str, complaint: str):
    with pytest.raises(ValueError) as caught:
        value_type.parse(text)

    assert complaint in str(caught.value)
