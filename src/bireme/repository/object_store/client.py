"""StoreClient: one bucket of an object store, through obstore, which no other module imports.

Every call blocks and may be made by any thread. A call that fails for a moment (5xx, a broken connection, no answer) is
repeated by the library, within the limits below; credentials that the store refuses are looked up again once, since the
file or the environment that they come from may have changed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from bireme.repository.object_store.credentials import (
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
    find_credentials,
)
from bireme.repository.object_store.faults import AccessDenied, StoreError, make_fault
from bireme.repository.object_store.location import StoreLocation
from bireme.types import InvalidArgument, Unsupported

T = TypeVar("T")

_RETRIES: Final = {
    "max_retries": 7,  # two to five seconds, where errors come at once
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
_CLIENT: Final = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=30),  # without a byte
    "timeout": timedelta(hours=1),  # of one request: what is slow but goes on is no fault
    "user_agent": "bireme",
}
_PROBE_S: Final = 1.0
_AWS_METADATA: Final = ("169.254.169.254", 80)
_PANIC: Final = "PanicException"
_NOBODYS_KEY: Final = ".bireme/is-this-a-store"
_GCS_METADATA: Final = ("metadata.google.internal", 80)
_AWS_ROLES: Final = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_ADDRESSES: Final = {
    "s3": "AWS_ENDPOINT_URL",
    "gs": "GOOGLE_BASE_URL",
    "as": "AZURE_STORAGE_ENDPOINT",
}
"""The variables by which the library finds a store that is not the cloud's own."""
_CHUNK: Final = 1 << 20


class StoredObject(NamedTuple):
    """One object, as a listing says."""

    path: str
    """Its key below the repository's prefix."""
    size: int
    modified_ns: int
    etag: str


class StoreClient:
    """One repository's place in a store."""

    def __init__(
        self,
        location: StoreLocation,
        text: str,
        environ: Mapping[str, str] = os.environ,
        *,
        connect: Callable[[StoreLocation, Credentials, Mapping[str, str]], Any] | None = None,
    ) -> None:
        """``text`` is the location as the user gave it; ``connect`` makes the library's store, at the first call.

        Raises:
            Unsupported: the library is not installed.
            InvalidArgument: the credentials cannot be read.
        """
        self.location = location
        self._text = text
        self._environ = environ
        self._library = load_library(location.scheme)
        self._connect = connect or connect_store
        self._lock = threading.Lock()
        self._credentials = self._find_credentials()
        self._store: Any = None

    def list_objects(self, folder: str = "") -> list[StoredObject]:
        """Return all objects below ``folder`` ("" is the whole repository): one request for each thousand.

        Raises:
            StoreError: names the repository and the reason.
        """
        return self._call(folder, lambda store: self._list(store, folder))

    def list_folders(self) -> list[str]:
        """Return the names of the folders right below the prefix: one request for each thousand of them.

        Raises:
            StoreError: names the repository and the reason.
        """

        def list_them(store: Any) -> list[str]:
            found = self._library.list_with_delimiter(store)
            if not found["common_prefixes"] and not found["objects"]:
                self._check_that_it_is_a_store(store)
            return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

        return self._call("", list_them)

    def read(self, found: StoredObject, start: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes from ``start`` to ``end`` of an object that is still what the listing said, in chunks of 1 MiB or so.

        Raises:
            ObjectChanged: it is another one by now.
            StoreError: names the object and the reason.
        """
        # A weak ETag never matches: then only the size tells (RFC 9110, 13.1.1).
        has_strong_etag = bool(found.etag) and not found.etag.startswith("W/")
        options: dict[str, Any] = {"if_match": found.etag} if has_strong_etag else {}
        if end - start < found.size:
            options["range"] = (start, end)
        result = self._call(
            found.path, lambda store: self._library.get(store, found.path, options=options), reads_object=True
        )
        with self._told(found.path, reads_object=True):
            for chunk in result.stream(min_chunk_size=_CHUNK):
                yield memoryview(chunk)

    def _list(self, store: Any, folder: str) -> list[StoredObject]:
        found: list[StoredObject] = []
        pages: set[str] = set()
        for batch in self._library.list(store, folder or None, chunk_size=1000):
            if (first := batch[0]["path"]) in pages:
                raise StoreError(
                    f"{self.location.url(folder)}: the listing comes to '{first}' again and never ends"
                )
            pages.add(first)
            found.extend(
                StoredObject(each["path"], each["size"], _to_ns(each["last_modified"]), each["e_tag"] or "")
                for each in batch
            )
        if not found:
            self._check_that_it_is_a_store(store)
        return found

    def _check_that_it_is_a_store(self, store: Any) -> None:
        """Doubt an empty listing: the library takes any page of XML for one, and a proxy's page would unload all models.

        A store does not know an object that nobody has made; what answers everything does.
        """
        try:
            self._library.head(store, _NOBODYS_KEY)
        except Exception:  # noqa: BLE001 - whatever it is, it is no page
            return
        raise StoreError(
            f"{self.location.url()}: what answers there is no object store, or a proxy in front of it"
        )

    def _call(self, path: str, function: Callable[[Any], T], *, reads_object: bool = False) -> T:
        store = self._opened()
        try:
            return self._try(path, store, function, reads_object=reads_object)
        except AccessDenied:
            if not self._renew(store):
                raise
        return self._try(path, self._opened(), function, reads_object=reads_object)

    def _opened(self) -> Any:
        with self._lock:
            if self._store is None:
                self._store = self._connect(self.location, self._credentials, self._environ)
            return self._store

    def _try(self, path: str, store: Any, function: Callable[[Any], T], *, reads_object: bool) -> T:
        with self._told(path, reads_object=reads_object):
            return function(store)

    @contextlib.contextmanager
    def _told(self, path: str, *, reads_object: bool) -> Iterator[None]:
        """Raise the library's errors as ours; a panic of its Rust, which is none of Python's `Exception`s, is one, too."""
        try:
            yield
        except StoreError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
                raise
            raise make_fault(self.location.url(path), error, reads_object=reads_object) from error

    def _renew(self, refused: Any) -> bool:
        """Look the credentials up again; whether they are other ones than those of the store that was ``refused``."""
        with self._lock:
            if self._store is not refused:
                return True  # another thread was faster
            try:
                credentials = self._find_credentials()
            except InvalidArgument:  # half written: the next call may find it whole
                return False
            if credentials == self._credentials:
                return False
            self._credentials = credentials
            self._store = None
            return True

    def _find_credentials(self) -> Credentials:
        return find_credentials(self._text, self._environ)

    def __repr__(self) -> str:
        return f"StoreClient({self.location.identity!r})"


def load_library(scheme: str) -> ModuleType:
    """Return obstore.

    Raises:
        Unsupported: it is not installed.
    """
    try:
        import obstore
    except ImportError as error:
        raise Unsupported(
            f"{scheme}:// file-system not supported. To enable it: pip install obstore"
        ) from error
    return obstore  # type: ignore[no-any-return]


def connect_store(location: StoreLocation, credentials: Credentials, environ: Mapping[str, str]) -> Any:
    """Return the library's store for ``location``; nothing is sent yet, but for a look whether the machine has a role.

    Raises:
        StoreError: the library refuses the settings.
    """
    try:
        if isinstance(credentials, S3Credentials):
            return _connect_s3(location, credentials, environ)
        if isinstance(credentials, GcsCredentials):
            return _connect_gcs(location, credentials, environ)
        return _connect_azure(location, credentials, environ)
    except Exception as error:  # noqa: BLE001 - the library's, mapped here
        fault = make_fault(location.identity, error)
        raise StoreError(f"cannot use the settings for {fault}") from None


def _connect_s3(location: StoreLocation, credentials: S3Credentials, environ: Mapping[str, str]) -> Any:
    from obstore.store import S3Store

    config: dict[str, Any] = {
        "region": credentials.region or "us-east-1",
        "virtual_hosted_style_request": False,
    }
    if location.endpoint:
        # The second one would win if the environment had it.
        config |= {"endpoint": location.endpoint, "aws_endpoint_url_s3": location.endpoint}
    more: dict[str, Any] = {}
    if credentials.key_id:
        more["credential_provider"] = _s3_key(credentials)
    elif not any(environ.get(name) for name in _AWS_ROLES):
        has_role = environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true" and _answers(_AWS_METADATA)
        config["skip_signature"] = not has_role
    return S3Store(location.bucket, **_common(location, config, environ), **more)


def _s3_key(credentials: S3Credentials) -> Callable[[], dict[str, Any]]:
    """Return what gives the library these credentials alone, whatever else is in the environment."""
    return lambda: {
        "access_key_id": credentials.key_id,
        "secret_access_key": credentials.secret_key,
        "token": credentials.session_token or None,
        "expires_at": None,
    }


def _connect_gcs(location: StoreLocation, credentials: GcsCredentials, environ: Mapping[str, str]) -> Any:
    from obstore.store import GCSStore

    config: dict[str, Any] = {}
    if credentials.path:
        config["application_credentials"] = credentials.path
    elif not any(name.startswith("GOOGLE_") for name in environ):
        config["skip_signature"] = not _answers(_GCS_METADATA)
    return GCSStore(location.bucket, **_common(location, config, environ))


def _connect_azure(location: StoreLocation, credentials: AzureCredentials, environ: Mapping[str, str]) -> Any:
    from obstore.store import AzureStore

    config: dict[str, Any] = {"account_name": credentials.account or location.account}
    more: dict[str, Any] = {}
    if credentials.auth_type == "managed_identity":
        config["credential_type"] = "managed_identity"
        if credentials.client_id:
            config["client_id"] = credentials.client_id
    elif credentials.auth_type == "default":
        config["credential_type"] = "auto"
    elif credentials.account_key:
        more["credential_provider"] = lambda: {"access_key": credentials.account_key, "expires_at": None}
    elif not any(name.startswith("AZURE_") for name in environ):
        config["skip_signature"] = True
    return AzureStore(location.bucket, **_common(location, config, environ), **more)


def _common(location: StoreLocation, config: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    client: dict[str, Any] = dict(_CLIENT)
    address = location.endpoint or environ.get(_ADDRESSES[location.scheme], "")
    if address.startswith("http://"):
        client["allow_http"] = True
    bundle = environ.get("AWS_CA_BUNDLE", "") if location.scheme == "s3" else ""
    if bundle:
        client["root_certificate"] = Path(bundle).read_bytes()
    return {
        "prefix": location.prefix or None,
        "config": config,
        "client_options": client,
        "retry_config": _RETRIES,
    }


def _answers(address: tuple[str, int]) -> bool:
    """Whether the service that gives a cloud's machines their credentials is there."""
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=_PROBE_S):
        return True
    return False


def _to_ns(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
