"""The flags of the response cache."""

from __future__ import annotations

import pytest

from bireme.cli.flags import FLAGS
from bireme.cli.options import given_flags
from bireme.cli.serve import serve
from bireme.cli.settings import Settings, make_settings
from bireme.types import InvalidArgument


def parse(tmp_path, *arguments: str) -> Settings:
    found: dict[str, object] = {}
    command = type(serve)(name="serve", callback=lambda **variables: found.update(variables))
    with command.make_context("serve", ["-m", str(tmp_path), *arguments]) as ctx:
        command.invoke(ctx)
        given = given_flags(ctx)
    return make_settings({name: found[name.replace("-", "_")] for name in FLAGS}, given)


def test_there_is_no_cache_by_default(tmp_path):
    assert parse(tmp_path).server.cache_config == {}


def test_several_flags_are_the_settings_of_one_cache(tmp_path):
    settings = parse(
        tmp_path,
        "--cache-config=redis,host=here",
        "--cache-config=redis,port=6380",
        "--cache-config=redis,password=a,b=c",
    )

    assert settings.server.cache_config == {
        "redis": {"host": "here", "port": "6380", "password": "a", "b": "c"}
    }


def test_the_deprecated_flag_is_a_local_cache(tmp_path):
    settings = parse(tmp_path, "--response-cache-byte-size=1048576")

    assert settings.server.cache_config == {"local": {"size": 1048576}}
    assert settings.notes == (
        "--response-cache-byte-size is deprecated; its newer name is --cache-config=local,size=BYTES",
    )
    assert parse(tmp_path, "--response-cache-byte-size=0").server.cache_config == {}


def test_the_deprecated_flag_and_the_new_one_cannot_be_combined(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be combined"):
        parse(tmp_path, "--response-cache-byte-size=1", "--cache-config=local,size=1")


@pytest.mark.parametrize("text", ["local,size", ",size=1", "size=1"])
def test_a_setting_of_another_form_is_refused(tmp_path, text):
    with pytest.raises(InvalidArgument, match="--cache-config option format is"):
        parse(tmp_path, f"--cache-config={text}")


def test_the_directory_of_c_libraries_is_accepted_without_effect(tmp_path):
    (note,) = parse(tmp_path, "--cache-directory=/opt/tritonserver/caches").notes

    assert note.startswith("--cache-directory has no effect: a cache is a Python package")
