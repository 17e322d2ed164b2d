"""How log records look: golden lines of Triton's formats and of ours."""

import json
import logging
import sys

import pytest

from bireme.telemetry.log_formats import JsonFormatter, TextFormatter, formatter, json_text, utc_time

CREATED = 1716235405.829575  # 2024-05-20 20:03:25.829575 UTC


def record(message="hello", *args, level=logging.INFO, exc_info=None, **extra):
    made = logging.LogRecord("bireme.engine", level, "/x/engine/server.py", 123, message, args, exc_info)
    made.created = CREATED
    made.process = 3355
    vars(made).update(extra)
    return made


def raised(error):
    try:
        raise error
    except type(error):
        return sys.exc_info()


@pytest.mark.parametrize(
    ("name", "level", "line"),
    [
        ("default", logging.INFO, 'I0520 20:03:25.829575 3355 server.py:123] "hello"'),
        ("default", logging.WARNING, 'W0520 20:03:25.829575 3355 server.py:123] "hello"'),
        ("default", logging.ERROR, 'E0520 20:03:25.829575 3355 server.py:123] "hello"'),
        ("default", logging.CRITICAL, 'E0520 20:03:25.829575 3355 server.py:123] "hello"'),
        ("default", logging.DEBUG, 'I0520 20:03:25.829575 3355 server.py:123] "hello"'),
        ("default", 9, 'I0520 20:03:25.829575 3355 server.py:123] "hello"'),
        ("ISO8601", logging.INFO, '2024-05-20T20:03:25Z I 3355 server.py:123] "hello"'),
        ("ISO8601", logging.ERROR, '2024-05-20T20:03:25Z E 3355 server.py:123] "hello"'),
    ],
)
def test_golden_lines(name, level, line):
    assert formatter(name).format(record(level=level)) == line


def test_a_time_just_below_a_second_does_not_show_a_million_microseconds():
    made = record()
    made.created = 1716235405.9999999

    assert formatter("default").format(made).startswith("I0520 20:03:26.000000 ")


@pytest.mark.parametrize(
    ("message", "escaped"),
    [
        ('say "hi" \\ there', r'"say \"hi\" \\ there"'),
        ("two\nlines\r\tand \x1b[31m", r'"two\nlines\r\tand \u001b[31m"'),
        ("Grüße", '"Grüße"'),
        ("lone \udc80", r'"lone \udc80"'),
    ],
)
def test_messages_are_json_strings_on_one_line(message, escaped):
    assert formatter("default").format(record(message)).split("] ", 1)[1] == escaped


def test_arguments_are_filled_in_before_escaping():
    assert formatter("default").format(record("model '%s'", 'a"b')).endswith(r"""] "model 'a\"b'" """.strip())


def test_escaping_is_switched_off_by_the_environment(monkeypatch):
    monkeypatch.setenv("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0")
    assert formatter("default").format(record('a "b"\nc')).endswith('] a "b"\nc')

    monkeypatch.setenv("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "1")
    assert formatter("default").format(record('a "b"\nc')).endswith(r'] "a \"b\"\nc"')


def test_a_table_is_printed_as_it_is():
    table = "\n+---+\n| x |\n+---+\n"

    assert formatter("default").format(record(table, is_table=True)).endswith("] " + table)


def test_a_traceback_follows_on_indented_lines():
    text = TextFormatter(iso8601=False).format(
        record("failed", exc_info=raised(ValueError("a\nI0101 forged\x1b[2J")))
    )
    first, *rest = text.splitlines()

    assert first.endswith('] "failed"')
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in rest)
    assert "    I0101 forged\\x1b[2J" in rest


def test_json_lines_hold_the_record_and_its_extras():
    line = JsonFormatter().format(record("loaded %d", 3, model="m", request_id="r1", is_table=True))

    assert json.loads(line) == {
        "time": "2024-05-20T20:03:25.829575Z",
        "level": "info",
        "logger": "bireme.engine",
        "pid": 3355,
        "file": "server.py",
        "line": 123,
        "message": "loaded 3",
        "model": "m",
        "request_id": "r1",
    }
    assert "\n" not in line


@pytest.mark.parametrize(
    ("level", "name"),
    [(9, "debug"), (10, "debug"), (20, "info"), (30, "warning"), (40, "error"), (50, "critical")],
)
def test_json_levels_have_plain_names(level, name):
    assert json.loads(JsonFormatter().format(record(level=level)))["level"] == name


def test_json_holds_the_traceback():
    found = json.loads(JsonFormatter().format(record("failed", exc_info=raised(ValueError("why")))))

    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: why")


@pytest.mark.parametrize("value", ["\ud800", 2**70, {"k": {1, 2}}, b"x"])
def test_anything_becomes_json(value):
    json.loads(json_text({"value": value}))


def test_utc_time_has_microseconds():
    assert utc_time(1_716_235_405_000_001_999) == "2024-05-20T20:03:25.000001Z"
