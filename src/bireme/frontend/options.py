"""What every front end can be told: where it listens, how it is secured, and who may ask for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bireme.types import InvalidArgument

_UNIX = "unix:"


class Restriction(NamedTuple):
    """These categories of routes or methods answer only requests that carry ``header`` with exactly ``value``."""

    categories: tuple[str, ...]
    header: str
    value: str


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The certificate of a listener, and whether its clients need one, too. All files are PEM."""

    cert: str
    """The server's certificate, followed by the intermediate ones."""
    key: str
    """Its private key, not encrypted."""
    root_cert: str = ""
    """Whose signature a client's certificate must bear."""
    mutual: bool = False
    """Whether a client must show a certificate."""
    flags: str = ""
    """``http`` or ``grpc``: error messages name the flags that begin so; empty: the fields of this class."""

    def name_of(self, field: str) -> str:
        """Return what the user calls ``field``."""
        return f"--{self.flags}-{_FLAG_ENDS[field]}" if self.flags else field


_FLAG_ENDS = {
    "cert": "server-cert",
    "key": "server-key",
    "root_cert": "root-cert",
    "mutual": "use-ssl-mutual",
}


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where a front end listens."""

    address: str = "0.0.0.0"
    """A host, or ``unix:/path`` (also ``unix:relative/path`` and ``unix:///path``) for a UNIX domain socket."""
    port: int = 8000
    """0: any free port. Means nothing for a UNIX domain socket."""
    reuse_port: bool = False
    """Share the port with other processes that say so too (``SO_REUSEPORT``)."""
    busy_poll_us: int = 0
    """Microseconds for which the loop stays awake after an answer (`BusyPoll`); 0: it sleeps at once."""
    tls: TlsOptions | None = None
    """None: plaintext."""

    @property
    def unix_path(self) -> str:
        """The path of the UNIX domain socket; empty for a host.

        Raises:
            InvalidArgument: the address begins with ``unix:`` and names no path.
        """
        return unix_path(self.address)


def unix_path(address: str) -> str:
    """Return the path in an address of the form ``unix:…``; empty when it is a host.

    Raises:
        InvalidArgument: there is no path in it, or a host.

    Source: gRPC's name syntax (``doc/naming.md``): ``unix:path`` or ``unix:///absolute_path``.
    """
    if not address.startswith(_UNIX):
        return ""
    path = address.removeprefix(_UNIX)
    if path.startswith("//"):
        path = path[2:]
        if not path.startswith("/"):
            raise InvalidArgument(
                f"address '{address}': two slashes must be followed by an absolute path; "
                f"write unix:{path} for a relative one, or unix:///{path}"
            )
    if not path:
        raise InvalidArgument(
            f"address '{address}' names no path; write for example unix:/run/bireme/http.sock"
        )
    return path
