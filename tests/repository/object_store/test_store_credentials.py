"""Credentials: which ones are for a location, what is wrong with a file, and that no secret is told."""

import json
import logging

import pytest
from hypothesis import given, settings, strategies as st

from bireme.repository.object_store.credentials import (
    CREDENTIAL_FILE,
    AzureCredentials,
    GcsCredentials,
    S3Credentials,
    find_credentials,
)
from bireme.types import InvalidArgument


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".aws").mkdir()
    return tmp_path


@pytest.fixture
def write(tmp_path):
    def write_file(content):
        file = tmp_path / "credentials.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return {CREDENTIAL_FILE: str(file), "HOME": str(tmp_path)}

    return write_file


def test_the_environment_has_keys_for_each_kind_of_store(home):
    aws = {
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "AWS_SESSION_TOKEN": "token",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    assert find_credentials("s3://b", aws) == S3Credentials("id", "key", "token", "eu-west-1")
    assert find_credentials("s3://b", {"HOME": str(home)}) == S3Credentials()
    assert find_credentials("gs://b", {"GOOGLE_APPLICATION_CREDENTIALS": "/k.json"}) == GcsCredentials(
        "/k.json"
    )
    azure = {
        "AZURE_STORAGE_ACCOUNT": "acc",
        "AZURE_STORAGE_KEY": "key",
        "AZURE_STORAGE_AUTH_TYPE": "managed_identity",
        "AZURE_STORAGE_CLIENT_ID": "client",
    }
    assert find_credentials("as://a/c", azure) == AzureCredentials("acc", "key", "managed_identity", "client")


def test_the_longest_entry_that_fits_wins_and_the_environment_means_nothing(write):
    environ = write(
        {
            "s3": {
                "": {"key_id": "default", "secret_key": "s"},
                "s3://b": {"key_id": "b", "secret_key": "s", "session_token": "t", "region": "r"},
                "s3://b/deep": {"key_id": "deep", "secret_key": "s"},
                "s3://other": {"key_id": "other", "secret_key": "s"},
            },
            "gs": {"gs://g": "/g.json", "": ""},
            "as": {"": {"account_str": "a", "account_key": "k", "auth_type": "key"}},
        }
    )
    environ |= {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "token"}
    assert find_credentials("s3://b/deep/er", environ) == S3Credentials("deep", "s")
    assert find_credentials("s3://b/x", environ) == S3Credentials("b", "s", "t", "r")
    assert find_credentials("s3://c", environ) == S3Credentials("default", "s")
    assert find_credentials("gs://g/x", environ) == GcsCredentials("/g.json")
    assert find_credentials("gs://x", environ) == GcsCredentials()
    assert find_credentials("as://a/c", environ) == AzureCredentials("a", "k", "key")


@pytest.mark.slow
@settings(max_examples=50)
@given(
    names=st.lists(st.text("ab/", max_size=5), min_size=1, max_size=6, unique=True),
    path=st.text("ab/", max_size=8),
)
def test_no_longer_entry_than_the_chosen_one_fits(names, path, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "credentials-property.json"
    entries = {f"s3://{name}": {"key_id": name or "-", "secret_key": "s"} for name in names}
    file.write_text(json.dumps({"s3": entries}))
    environ = {CREDENTIAL_FILE: str(file), "HOME": str(file.parent)}
    fitting = [name for name in names if path.startswith(name)]
    if fitting:
        found = find_credentials(f"s3://{path}", environ)
        assert isinstance(found, S3Credentials)
        assert found.key_id == (max(fitting, key=len) or "-")
    else:
        with pytest.raises(InvalidArgument, match="has no entry for"):
            find_credentials(f"s3://{path}", environ)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{nonsense", "is no JSON: "),
        ("[]", "its content is a list, expected an object with the members gs, s3 and as"),
        ('{"s3": []}', "s3 is a list, expected an object of entries"),
        ('{"s3": {"": "hunter2"}}', "s3[''] is a string, expected an object with key_id, profile"),
        ('{"s3": {"": {"key_id": 12}}}', "s3[''].key_id is a number, expected a string"),
        ('{"s3": {"": {"secret_key": "hunter2"}}}', "s3[''] has no key_id: they come together"),
        ('{"s3": {"s3://x": {}}}', "has no entry for 's3://b': s3 has 's3://x'"),
        ("{}", "has no entry for 's3://b': s3 has none"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_without_its_secrets(write, content, message):
    environ = write(content)
    with pytest.raises(InvalidArgument) as caught:
        find_credentials("s3://b", environ)
    assert message in caught.value.message
    assert environ[CREDENTIAL_FILE] in caught.value.message
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    ("location", "content", "message"),
    [
        ("gs://b", {"gs": {"": {}}}, "gs[''] is an object, expected the path of a key file"),
        (
            "as://a/b",
            {"as": {"": {"auth_type": "magic"}}},
            "auth_type is 'magic', expected one of key, managed_identity",
        ),
        ("as://a/b", {"as": {"": {"account_key": None}}}, "account_key is null, expected a string"),
    ],
)
def test_the_other_stores_entries_are_checked_too(write, location, content, message):
    with pytest.raises(InvalidArgument) as caught:
        find_credentials(location, write(content))
    assert message in caught.value.message


def test_a_file_that_is_not_there_and_a_wrong_type_of_the_environment_are_errors():
    with pytest.raises(InvalidArgument, match=r"cannot read the credential file.*/no/such/file"):
        find_credentials("s3://b", {CREDENTIAL_FILE: "/no/such/file"})
    with pytest.raises(InvalidArgument, match="AZURE_STORAGE_AUTH_TYPE is 'magic'"):
        find_credentials("as://a/b", {"AZURE_STORAGE_AUTH_TYPE": "magic"})


def test_members_that_nobody_knows_are_ignored_with_a_warning(write, caplog):
    caplog.set_level(logging.WARNING)
    environ = write({"s3": {"": {"key_id": "i", "secret_key": "s", "note": "x"}}, "ftp": {}})
    assert find_credentials("s3://b", environ) == S3Credentials("i", "s")
    assert "s3[''].note is ignored" in caplog.text
    assert "'ftp' is ignored" in caplog.text


def test_no_secret_shows_in_a_debugger():
    shown = repr([S3Credentials("id", "hunter2", "hunter3"), AzureCredentials("a", "hunter4")])
    assert "hunter" not in shown


def test_a_profile_has_the_keys_if_nothing_else_has(home):
    (home / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = ds\n"
        "[team]\naws_access_key_id = t\naws_secret_access_key = ts\naws_session_token = tt\n"
    )
    (home / ".aws" / "config").write_text(
        "[profile team]\nregion = eu-central-1\n[default]\nregion = us-west-2\n"
    )
    environ = {"HOME": str(home)}
    assert find_credentials("s3://b", environ) == S3Credentials("d", "ds", "", "us-west-2")
    named = environ | {"AWS_PROFILE": "team"}
    assert find_credentials("s3://b", named) == S3Credentials("t", "ts", "tt", "eu-central-1")
    assert find_credentials("s3://b", named | {"AWS_DEFAULT_REGION": "r"}).region == "r"
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
    assert find_credentials("s3://b", named | keys) == S3Credentials("id", "key")


@pytest.mark.parametrize(
    ("credentials", "config", "message"),
    [
        ("", "", "AWS profile 'team' is neither in"),
        ("", "[profile team]\nrole_arn = x\n", "gets its keys by role_arn, which is not supported here"),
        ("[team]\nhunter2\n", "", "is no file of AWS profiles"),
    ],
)
def test_a_profile_without_keys_is_an_error(home, credentials, config, message):
    (home / ".aws" / "credentials").write_text(credentials)
    (home / ".aws" / "config").write_text(config)
    with pytest.raises(InvalidArgument, match=message) as caught:
        find_credentials("s3://b", {"HOME": str(home), "AWS_PROFILE": "team"})
    assert "hunter2" not in caught.value.message


def test_a_file_of_profiles_that_is_no_text_is_an_error(home):
    (home / ".aws" / "credentials").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="it is not UTF-8 text"):
        find_credentials("s3://b", {"HOME": str(home)})
    (home / ".aws" / "credentials").unlink()
    (home / ".aws" / "credentials").mkdir()
    with pytest.raises(InvalidArgument, match="cannot read AWS's file of profiles"):
        find_credentials("s3://b", {"HOME": str(home)})
