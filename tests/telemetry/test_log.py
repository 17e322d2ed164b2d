"""The log: where records go, which ones, and how settings change while it runs."""

import logging

import pytest

from bireme.telemetry import log
from bireme.types import InvalidArgument, Unavailable, Unsupported

LOGGER = log.get_logger("bireme.somewhere")
DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(autouse=True)
def clean():
    yield
    log.settings.uninstall()


def say_everything():
    LOGGER.log(log.verbose_level(2), "verbose 2")
    LOGGER.debug("verbose 1")
    LOGGER.info("info")
    LOGGER.warning("warning")
    LOGGER.error("error")


def messages(text):
    return [line.split('] "')[1].rstrip('"') for line in text.splitlines()]


def test_info_goes_to_stdout_and_the_rest_to_stderr(capsys):
    log.configure()
    say_everything()

    out, err = capsys.readouterr()
    assert messages(out) == ["info"]
    assert messages(err) == ["warning", "error"]
    assert "test_log.py:" in out


def test_verbose_records_go_to_stdout_up_to_their_level(capsys):
    log.configure(verbose=1)
    say_everything()
    log.settings.update({"log_verbose_level": 2})
    say_everything()

    assert messages(capsys.readouterr().out) == ["verbose 1", "info", "verbose 2", "verbose 1", "info"]


@pytest.mark.parametrize(
    ("off", "left"),
    [
        ({"info"}, ["warning", "error"]),
        ({"warning"}, ["info", "error"]),
        ({"error"}, ["info", "warning"]),
        ({"info", "warning"}, ["error"]),
        ({"info", "warning", "error"}, []),
    ],
)
def test_each_level_has_its_own_switch(capsys, off, left):
    log.configure(**dict.fromkeys(off, False))
    say_everything()

    out, err = capsys.readouterr()
    assert messages(out) + messages(err) == left


def test_verbose_records_do_not_need_info(capsys):
    log.configure(info=False, verbose=1)
    say_everything()

    assert messages(capsys.readouterr().out) == ["verbose 1"]


def test_a_file_takes_everything_and_keeps_what_was_there(capsys, tmp_path):
    path = tmp_path / "server.log"
    path.write_text('before] "kept"\n')
    log.configure(file=str(path))
    say_everything()
    LOGGER.info("lone \udc80")

    assert messages(path.read_text()) == ["kept", "info", "warning", "error", "lone \\udc80"]
    assert capsys.readouterr() == ("", "")
    assert log.settings.get()["log_file"] == str(path)


def test_a_file_that_cannot_be_opened_is_told_and_changes_nothing(tmp_path):
    with pytest.raises(
        InvalidArgument, match=r"cannot open log file '.*/missing/x.log': No such file or directory"
    ):
        log.configure(file=str(tmp_path / "missing" / "x.log"))

    assert log.settings.get() == DEFAULTS


def test_an_unknown_format_is_told_at_start():
    with pytest.raises(
        InvalidArgument, match="invalid argument for --log_format, got: xml; expected one of default"
    ):
        log.configure(format="xml")


def test_the_format_changes_while_running(capsys):
    log.configure(format="ISO8601")
    LOGGER.info("one")
    log.settings.update({"log_format": "json"})
    LOGGER.info("two")
    log.settings.update({"log_format": "default"})
    LOGGER.info("three")

    first, second, third = capsys.readouterr().out.splitlines()
    assert first[10] == "T"
    assert second.startswith('{"time":"')
    assert third.startswith("I")


def test_configuring_twice_writes_once(capsys, tmp_path):
    log.configure(file=str(tmp_path / "x"))
    log.configure()
    LOGGER.info("once")

    assert messages(capsys.readouterr().out) == ["once"]


def test_get_returns_all_six_settings_in_tritons_order():
    log.configure(info=False, verbose=3, format="ISO8601")

    assert list(log.settings.get().items()) == [
        ("log_file", ""),
        ("log_info", False),
        ("log_warning", True),
        ("log_error", True),
        ("log_verbose_level", 3),
        ("log_format", "ISO8601"),
    ]


def test_null_leaves_a_setting_as_it_is():
    log.configure(info=False)
    log.settings.update(dict.fromkeys(DEFAULTS))

    assert log.settings.get() == DEFAULTS | {"log_info": False}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"log_file": "x"}, Unsupported, "log file location can not be updated through network protocol"),
        (
            {"log_format": "xml"},
            Unavailable,
            "invalid argument for --log_format, got: xml; expected one of default, ISO8601, json",
        ),
        ({"log_format": 3}, InvalidArgument, "log setting 'log_format': expected a string, found 3"),
        ({"log_info": 1}, InvalidArgument, "log setting 'log_info': expected a boolean, found 1"),
        (
            {"log_warning": "true"},
            InvalidArgument,
            "log setting 'log_warning': expected a boolean, found 'true'",
        ),
        ({"log_error": []}, InvalidArgument, "log setting 'log_error': expected a boolean, found []"),
        (
            {"log_verbose_level": -1},
            InvalidArgument,
            "log setting 'log_verbose_level': expected an unsigned integer, found -1",
        ),
        (
            {"log_verbose_level": True},
            InvalidArgument,
            "log setting 'log_verbose_level': expected an unsigned integer, found True",
        ),
        (
            {"log_verbose_level": 1.5},
            InvalidArgument,
            "log setting 'log_verbose_level': expected an unsigned integer, found 1.5",
        ),
    ],
)
def test_a_wrong_value_changes_nothing_at_all(changes, error, message):
    log.configure()
    with pytest.raises(error) as found:
        log.settings.update({"log_info": False, **changes})

    assert found.value.message == message
    assert log.settings.get() == DEFAULTS


def test_an_unknown_setting_is_ignored_with_a_hint(capsys):
    log.configure()
    log.settings.update({"log_verbos_level": 2, "x": 1})

    assert messages(capsys.readouterr().err) == [
        "unknown log setting 'log_verbos_level' ignored; did you mean 'log_verbose_level'?",
        "unknown log setting 'x' ignored",
    ]
    assert log.settings.get() == DEFAULTS


def test_the_flag_follows_the_verbose_level():
    assert log.verbose_enabled is False
    log.configure(verbose=1)
    assert log.verbose_enabled is True
    log.settings.update({"log_verbose_level": 0})
    assert log.verbose_enabled is False


def test_a_librarys_user_keeps_control(caplog, capsys):
    """Without `configure`, records go to the program's own handlers, under its own levels."""
    with caplog.at_level(logging.DEBUG):
        say_everything()

    assert caplog.messages == ["verbose 1", "info", "warning", "error"]
    assert capsys.readouterr() == ("", "")


def test_settings_work_for_a_librarys_user_too(caplog):
    log.settings.update({"log_info": False})
    say_everything()

    assert caplog.messages == ["warning", "error"]


def test_a_stream_that_cannot_write_a_character_gets_it_escaped(monkeypatch, tmp_path):
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        log.configure()
        LOGGER.info("Grüße")

    assert messages(path.read_text()) == ["Gr\\xfc\\xdfe"]


def test_a_broken_stream_does_not_break_the_caller(monkeypatch, tmp_path):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    stream = (tmp_path / "out").open("w")
    stream.close()
    monkeypatch.setattr("sys.stdout", stream)
    log.configure()

    LOGGER.info("into the void")


def test_every_logger_is_below_bireme():
    assert log.get_logger("bireme.engine.server").name == "bireme.engine.server"
    assert log.get_logger("my_model").name == "bireme.my_model"
    assert log.get_logger("biremetric").name == "bireme.biremetric"
