"""Certificates: the TLS settings of a listener, read from its files, and read again when these change.

A connection takes the context that is the newest when it begins and keeps it; so new certificates serve new connections,
and those that are open never notice. Files that cannot be used leave the old context in place.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bireme.frontend.options import TlsOptions
from bireme.telemetry.log import get_logger
from bireme.types import InvalidArgument

log = get_logger(__name__)

WATCH_INTERVAL_S: Final = 2.0
"""Between two looks at the files. A change is taken up when two looks agree on it, so that no half is read."""

Signature = tuple[tuple[int, int, int] | None, ...]


class Certificates:
    """What TLS needs of the files. Methods may be called from any thread, one at a time."""

    __slots__ = ("_alpn", "_loaded", "_options", "_seen", "context")

    def __init__(self, options: TlsOptions, alpn: Sequence[str] = ()) -> None:
        """Read the files; ``alpn`` are the protocols that may be agreed on with the client.

        Raises:
            InvalidArgument: a file is missing, unreadable or not what it should be; names it and its flag.
        """
        self._options = options
        self._alpn = alpn
        self._loaded = self._seen = self._sign()
        self.context = make_context(options, alpn)
        """For connections that begin now."""

    def reload(self) -> bool:
        """Read the files again; False when they cannot be used, which is logged."""
        self._loaded = self._seen = self._sign()
        try:
            self.context = make_context(self._options, self._alpn)
        except InvalidArgument as error:
            log.warning("TLS certificates not reloaded, the old ones stay in use: %s", error.message)
            return False
        log.info("TLS certificates reloaded from '%s'", self._options.cert)
        return True

    def check(self) -> bool:
        """Read the files again if they have changed since they were last read, and not since the last check."""
        seen, self._seen = self._seen, self._sign()
        if self._seen == self._loaded or self._seen != seen:
            return False
        return self.reload()

    def _sign(self) -> Signature:
        options = self._options
        return tuple(_sign_file(path) for path in (options.cert, options.key, options.root_cert) if path)


class CertificateWatch:
    """Looks at the files of ``certificates`` now and then, in a thread. Loop thread only."""

    __slots__ = ("_certificates", "_interval_s", "_timer")

    def __init__(self, certificates: Certificates, interval_s: float = WATCH_INTERVAL_S) -> None:
        self._certificates = certificates
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reload(self) -> None:
        """Read the files again, soon."""
        asyncio.get_running_loop().run_in_executor(None, self._certificates.reload)

    def _look(self) -> None:
        looking = asyncio.get_running_loop().run_in_executor(None, self._certificates.check)
        looking.add_done_callback(self._look_again)

    def _look_again(self, looked: asyncio.Future[bool]) -> None:
        if self._timer is not None and not looked.cancelled():
            self.start()


def make_context(options: TlsOptions, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """Return the context of a server: TLS 1.2 or newer, OpenSSL's default ciphers.

    Raises:
        InvalidArgument: a file is missing, unreadable or not what it should be; names it and its flag.
    """
    cert, key = options.name_of("cert"), options.name_of("key")
    if not options.cert or not options.key:
        raise InvalidArgument(
            f"TLS needs {cert} and {key}: PEM files of the certificate and of its private key"
        )
    if options.mutual and not options.root_cert:
        raise InvalidArgument(
            f"{options.name_of('mutual')} needs {options.name_of('root_cert')}: a PEM file of the certificates whose "
            "signature clients' certificates must bear"
        )
    _check_file(cert, options.cert, b"CERTIFICATE-----", "certificate")
    _check_file(key, options.key, b"PRIVATE KEY-----", "private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if alpn:
        context.set_alpn_protocols(alpn)
    _load(
        f"{cert} '{options.cert}' with {key} '{options.key}'",
        lambda: context.load_cert_chain(options.cert, options.key, password=_refuse_password),
    )
    if options.root_cert:
        root = options.name_of("root_cert")
        _check_file(root, options.root_cert, b"CERTIFICATE-----", "certificate")
        _load(f"{root} '{options.root_cert}'", lambda: context.load_verify_locations(options.root_cert))
    if options.mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_file(name: str, path: str, marker: bytes, what: str) -> None:
    """OpenSSL's own messages name neither the file nor what it misses in it."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{name} '{path}': {error.strerror or error}") from error
    if marker not in text:
        raise InvalidArgument(f"{name} '{path}': there is no PEM {what} in this file")


def _load(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgument(f"{what}: the key does not belong to the certificate") from error
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise InvalidArgument(f"cannot use {what}: {reason}") from error
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot use {what}: {error}") from error


def _refuse_password() -> str:
    """OpenSSL would ask on the terminal, and the server would hang."""
    raise ValueError("the key is encrypted; a server needs it without a password")


def _sign_file(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
