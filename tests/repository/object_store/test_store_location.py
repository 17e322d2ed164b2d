"""Locations: every form, one spelling for each, and what is no location."""

import pytest
from hypothesis import given, strategies as st

from bireme.repository.object_store.location import StoreLocation, is_remote, parse_location
from bireme.types import InvalidArgument


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket", StoreLocation("s3", "bucket")),
        ("s3://bucket/a/b", StoreLocation("s3", "bucket", "a/b")),
        ("s3:///bucket//a///b/", StoreLocation("s3", "bucket", "a/b")),
        ("s3://bucket/a b/ü", StoreLocation("s3", "bucket", "a b/ü")),
        ("s3://minio:9000/bucket/a", StoreLocation("s3", "bucket", "a", "http://minio:9000")),
        ("s3://http://10.0.0.1:80/bucket", StoreLocation("s3", "bucket", "", "http://10.0.0.1:80")),
        ("s3://https://Host.example:443/b/c/", StoreLocation("s3", "b", "c", "https://host.example:443")),
        ("s3://https://host/b", StoreLocation("s3", "b", "", "https://host")),
        ("s3://[::1]:9000/b/c", StoreLocation("s3", "b", "c", "http://[::1]:9000")),
        ("gs://bucket/a/", StoreLocation("gs", "bucket", "a")),
        ("as://acc/container/a/b", StoreLocation("as", "container", "a/b", account="acc")),
        ("as://acc.blob.core.windows.net/container", StoreLocation("as", "container", account="acc")),
    ],
)
def test_a_location_is_understood(text, expected):
    assert parse_location(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://", "it names no bucket; expected s3://bucket/path, s3://host:port/bucket/path"),
        ("gs:///", "it names no bucket; expected gs://bucket/path"),
        ("as://account", "it names no container"),
        ("as://", "'' is no storage account's name"),
        ("as://acc_ount/c", "'acc_ount' is no storage account's name"),
        ("s3://host:port/bucket", "'host:port' is no host and port"),
        ("s3://host:99999/bucket", "'host:99999' is no host and port"),
        ("s3://https://", "'' is no host and port"),
        ("s3://host:9000", "it names no bucket"),
        ("s3://bu cket/a", "'bu cket' is no bucket's name"),
        ("gs://bucket/../other", "has no '.' and no '..'"),
        ("gs://bucket/a?b", "a character that a location cannot have"),
        ("gs://bucket/a\nb", "a character that a location cannot have"),
    ],
)
def test_what_is_wrong_with_a_location_is_said(text, message):
    with pytest.raises(InvalidArgument) as caught:
        parse_location(text)
    assert message in caught.value.message


def test_a_location_with_a_password_is_refused_and_not_repeated():
    with pytest.raises(InvalidArgument, match="credentials belong in the environment") as caught:
        parse_location("s3://http://user:hunter2@host:80/bucket")
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b", True),
        ("gs://b", True),
        ("as://a/b", True),
        ("/s3://b", False),
        ("models", False),
        ("http://x", False),
    ],
)
def test_which_locations_are_in_a_store(text, expected):
    assert is_remote(text) is expected


@pytest.mark.slow
@given(st.lists(st.text("ab/", min_size=1, max_size=4), max_size=4))
def test_two_spellings_of_a_place_are_the_same_repository(parts):
    text = "s3://bucket/" + "/".join(parts)
    location = parse_location(text)
    assert (
        parse_location(f"{text}//").identity
        == location.identity
        == parse_location(location.identity).identity
    )
    assert "//" not in location.prefix
    assert location.url("m/1") == f"{location.identity}/m/1"
