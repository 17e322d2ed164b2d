"""Certificates for tests of TLS: an authority of their own, which both sides trust."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from bireme.frontend.options import TlsOptions


class Authority:
    """Signs certificates and writes them as PEM files into ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.root = folder / "root.pem"
        self._ca.cert_pem.write_to_path(str(self.root))
        self.cert, self.key = self.issue("server")

    def issue(self, name: str, organization: str | None = None) -> tuple[Path, Path]:
        """Write ``<name>.pem`` and ``<name>.key`` for this host; return their paths. Existing files are replaced."""
        leaf = self._ca.issue_cert("localhost", "127.0.0.1", organization_name=organization)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(key))
        return cert, key

    def options(self, *, mutual: bool = False, flags: str = "") -> TlsOptions:
        """Return what a listener needs to know of these files."""
        root = str(self.root) if mutual else ""
        return TlsOptions(str(self.cert), str(self.key), root, mutual=mutual, flags=flags)

    def client(self, *identity: Path, alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority, and shows ``identity`` (certificate and key)."""
        context = ssl.create_default_context(cafile=str(self.root))
        if identity:
            context.load_cert_chain(*identity)
        if alpn:
            context.set_alpn_protocols(alpn)
        return context


def organization_of(peer_certificate: dict[str, object]) -> str:
    """Return who a certificate, as `ssl.SSLSocket.getpeercert` gives it, was issued to."""
    subject = peer_certificate["subject"]
    assert isinstance(subject, tuple)
    return next(value for ((name, value),) in subject if name == "organizationName")
