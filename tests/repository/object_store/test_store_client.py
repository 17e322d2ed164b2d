"""StoreClient: how each store is opened, and credentials that are looked up again. Nothing is sent anywhere."""

import json
import sys

import pytest

from bireme.repository.object_store import client as client_module
from bireme.repository.object_store.client import StoreClient, connect_store
from bireme.repository.object_store.credentials import AzureCredentials, GcsCredentials, S3Credentials
from bireme.repository.object_store.faults import AccessDenied, StoreError
from bireme.repository.object_store.location import parse_location
from bireme.types import InvalidArgument, Unsupported
from object_stores import KEY, MemoryClient


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """The library reads its environment itself."""
    for name in ("AWS", "AZURE", "GOOGLE"):
        for variable in [each for each in client_module.os.environ if each.startswith(f"{name}_")]:
            monkeypatch.delenv(variable)


@pytest.fixture
def answers(monkeypatch):
    """Which metadata services the machine has."""
    present = set()
    monkeypatch.setattr(client_module, "_answers", lambda address: address[0] in present)
    return present


def connect(location, credentials, environ=None):
    return connect_store(parse_location(location), credentials, environ or {})


def test_s3_is_opened_with_the_given_key_alone():
    store = connect("s3://b/a/c", S3Credentials("id", "key", "token", "eu-west-1"))
    assert store.prefix == "a/c"
    assert store.config["region"] == "eu-west-1"
    assert store.config["bucket"] == "b"
    assert "skip_signature" not in store.config
    assert store.credential_provider() == {
        "access_key_id": "id",
        "secret_access_key": "key",
        "token": "token",
        "expires_at": None,
    }
    assert connect("s3://b", S3Credentials("id", "key")).credential_provider()["token"] is None
    assert "key" not in repr(store)
    assert store.retry_config["max_retries"] == 7


def test_another_stores_address_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://elsewhere:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere:1")
    store = connect("s3://http://minio:9000/b", S3Credentials("id", "key"))
    assert store.config["endpoint"] == "http://minio:9000"
    assert store.config.get("aws_endpoint_url_s3", "http://minio:9000") == "http://minio:9000"
    assert store.client_options["allow_http"]
    assert not (connect("s3://https://minio/b", S3Credentials("id", "key")).client_options.get("allow_http"))


@pytest.mark.parametrize(
    ("environ", "services", "is_anonymous"),
    [
        ({}, {"169.254.169.254"}, False),
        ({}, set(), True),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, {"169.254.169.254"}, True),
    ],
)
def test_s3_without_a_key_is_what_the_machine_may_do_or_anonymous(answers, environ, services, is_anonymous):
    answers.update(services)
    store = connect("s3://b", S3Credentials(), environ)
    assert str(store.config["skip_signature"]).lower() == str(is_anonymous).lower()


def test_s3_with_a_role_of_its_own_asks_nobody(answers):
    store = connect("s3://b", S3Credentials(), {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"})
    assert "skip_signature" not in store.config


@pytest.mark.slow  # the library reads the system's certificates for each store
def test_google_takes_a_key_file_the_machine_or_anonymous(answers, tmp_path):
    key = tmp_path / "key.json"
    key.write_text(
        json.dumps({"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"})
    )
    store = connect("gs://b/a", GcsCredentials(str(key)))
    assert store.prefix == "a"
    assert store.config["application_credentials"] == str(key)
    assert str(connect("gs://b", GcsCredentials()).config["skip_signature"]).lower() == "true"
    answers.add("metadata.google.internal")
    assert str(connect("gs://b", GcsCredentials()).config["skip_signature"]).lower() == "false"
    assert "skip_signature" not in connect("gs://b", GcsCredentials(), {"GOOGLE_BASE_URL": "x"}).config


def test_a_key_file_that_is_not_there_is_an_error_with_its_location():
    with pytest.raises(StoreError, match="cannot use the settings for gs://b"):
        connect("gs://b", GcsCredentials("/no/such/key.json"))


def test_azure_takes_a_key_an_identity_or_what_there_is():
    store = connect("as://acc/c/a", AzureCredentials(account_key="a2V5"))
    assert (store.prefix, store.config["account_name"], store.config["container_name"]) == ("a", "acc", "c")
    assert store.credential_provider() == {"access_key": "a2V5", "expires_at": None}
    other = connect("as://acc/c", AzureCredentials("other", "", "managed_identity", "client"))
    assert other.config["account_name"] == "other"
    assert other.config["credential_type"] == "managed_identity"
    assert other.config["client_id"] == "client"
    assert connect("as://acc/c", AzureCredentials(auth_type="default")).config["credential_type"] == "auto"
    assert str(connect("as://acc/c", AzureCredentials()).config["skip_signature"]).lower() == "true"
    assert (
        "skip_signature" not in connect("as://a/c", AzureCredentials(), {"AZURE_STORAGE_SAS_KEY": "x"}).config
    )


def test_the_service_of_the_machine_is_asked_with_patience_of_a_second(monkeypatch):
    asked = []

    def create_connection(address, timeout):
        asked.append((address, timeout))
        raise OSError("nobody")

    monkeypatch.setattr(client_module.socket, "create_connection", create_connection)
    assert not client_module._answers(("169.254.169.254", 80))
    assert asked == [(("169.254.169.254", 80), 1.0)]


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Unsupported, match=r"gs:// file-system not supported.*pip install obstore"):
        StoreClient(parse_location("gs://b"), "gs://b", {})


@pytest.mark.parametrize("ask", [StoreClient.list_folders, StoreClient.list_objects])
def test_an_empty_listing_is_doubted_where_anything_is_said_to_be_there(ask, monkeypatch):
    client = MemoryClient()
    assert ask(client) == []
    monkeypatch.setattr(client_module.load_library("s3"), "head", lambda *_: {"size": 13})
    with pytest.raises(StoreError, match=r"^s3://bucket: what answers there is no object store"):
        ask(client)


def test_a_listing_that_goes_round_in_circles_is_an_error(monkeypatch):
    real = client_module.load_library("s3").list

    def list_(*arguments, **settings):
        page = [*real(*arguments, **settings)]
        while True:
            yield from page

    monkeypatch.setattr(client_module.load_library("s3"), "list", list_)
    with pytest.raises(StoreError, match="the listing comes to 'm/1/x' again and never ends"):
        MemoryClient({"m/1/x": b"1"}).list_objects()


class PanicException(BaseException):
    """As the library raises it."""


def test_a_panic_of_the_library_is_an_error_as_any_other(monkeypatch):
    def get(*_arguments, **_settings):
        raise PanicException("request valid: InvalidHeaderValue(InvalidHeaderValue)")

    client = MemoryClient({"m/1/x": b"1"})
    (found,) = client.list_objects()
    monkeypatch.setattr(client_module.load_library("s3"), "get", get)
    with pytest.raises(StoreError, match=r"^s3://bucket/m/1/x: request valid: InvalidHeaderValue"):
        [*client.read(found, 0, 1)]


def test_what_ends_the_program_is_no_fault_of_the_store(monkeypatch):
    def list_(*_arguments, **_settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(client_module.load_library("s3"), "list", list_)
    with pytest.raises(KeyboardInterrupt):
        MemoryClient().list_objects()


class Guarded(StoreClient):
    """Refuses all keys but one; counts how often a store was opened."""

    def __init__(self, environ, good):
        self.opened = []
        memory = MemoryClient({"m/1/x": b"1"}).memory

        def connect(location, credentials, environ):
            self.opened.append(credentials.key_id)
            return memory if credentials.key_id == good else Refusing()

        super().__init__(parse_location("s3://b"), "s3://b", environ, connect=connect)


class PermissionDeniedError(Exception):
    pass


class Refusing:
    pass


@pytest.fixture
def refuses(monkeypatch):
    real = client_module.load_library("s3").list

    def list_(store, *args, **settings):
        if isinstance(store, Refusing):
            raise PermissionDeniedError("status code: 403 Forbidden")
        return real(store, *args, **settings)

    monkeypatch.setattr(client_module.load_library("s3"), "list", list_)


def test_credentials_that_are_refused_are_looked_up_again(refuses):
    environ = dict(KEY)
    client = Guarded(environ, good="new")
    with pytest.raises(AccessDenied, match="s3://b: 403 Forbidden"):
        client.list_objects()
    assert client.opened == ["id"]
    environ["AWS_ACCESS_KEY_ID"] = "new"
    assert [found.path for found in client.list_objects()] == ["m/1/x"]
    client.list_objects()
    assert client.opened == ["id", "new"]
    assert repr(client) == "StoreClient('s3://b')"


def test_a_credential_file_that_is_half_written_changes_nothing(refuses, tmp_path):
    environ = dict(KEY)
    client = Guarded(environ, good="new")
    environ["TRITON_CLOUD_CREDENTIAL_PATH"] = str(tmp_path / "half.json")
    (tmp_path / "half.json").write_text('{"s3": ')
    with pytest.raises(AccessDenied):
        client.list_objects()
    with pytest.raises(InvalidArgument):
        Guarded(environ, good="new")
