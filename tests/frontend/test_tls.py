"""TLS: what is read from the files, and when it is read again."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from bireme.frontend.options import TlsOptions
from bireme.frontend.tls import Certificates, CertificateWatch, make_context
from bireme.types import InvalidArgument
from certificates import Authority
from http_fakes import until

LOGGER = "bireme.frontend"


@pytest.fixture
def own_authority(tmp_path) -> Authority:
    """Return one whose files the test may change."""
    return Authority(tmp_path / "own")


def test_a_context_takes_tls_1_2_and_newer_and_asks_for_no_certificate(own_authority):
    context = make_context(own_authority.options())

    assert (ssl.TLSVersion.TLSv1_2, ssl.CERT_NONE) == (context.minimum_version, context.verify_mode)


@pytest.mark.parametrize("flags", ["", "grpc"])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cert": ""}, "TLS needs {cert} and {key}"),
        ({"key": ""}, "TLS needs {cert} and {key}"),
        ({"cert": "none.pem"}, "{cert} 'none.pem': No such file or directory"),
        ({"key": "."}, "{key} '.': Is a directory"),
        ({"cert": "server.key"}, "{cert} 'server.key': there is no PEM certificate in this file"),
        ({"key": "server.pem"}, "{key} 'server.pem': there is no PEM private key in this file"),
        ({"key": "other.key"}, "{cert} 'server.pem' with {key} 'other.key': the key does not belong to the certificate"),
        ({"cert": "torn.pem"}, "cannot use {cert} 'torn.pem' with {key} 'server.key': "),
        ({"key": "locked.key"}, "cannot use {cert} 'server.pem' with {key} 'locked.key': the key is encrypted"),
        ({"root_cert": "none.pem"}, "{root} 'none.pem': No such file or directory"),
        ({"root_cert": "torn.pem"}, "cannot use {root} 'torn.pem': "),
        ({"mutual": True}, "{mutual} needs {root}: a PEM file of the certificates"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_named_with_its_flag(
    own_authority, monkeypatch, flags, change, complaint
):
    monkeypatch.chdir(own_authority.folder)
    own_authority.issue("other")
    Path("torn.pem").write_text(Path("server.pem").read_text()[:200] + "\n-----END CERTIFICATE-----\n")
    Path("locked.key").write_bytes(lock(Path("server.key").read_bytes()))
    names = {
        "cert": "--grpc-server-cert",
        "key": "--grpc-server-key",
        "root": "--grpc-root-cert",
        "mutual": "--grpc-use-ssl-mutual",
    }
    if not flags:
        names = {"cert": "cert", "key": "key", "root": "root_cert", "mutual": "mutual"}
    options = TlsOptions(**{"cert": "server.pem", "key": "server.key", "flags": flags} | change)
    with pytest.raises(InvalidArgument) as caught:
        make_context(options)

    assert caught.value.message.startswith(complaint.format(**names))


def lock(key: bytes) -> bytes:
    """Return a private key that needs a password."""
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_changed_files_are_taken_up_once_they_stay_as_they_are(own_authority, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    certificates = Certificates(own_authority.options())
    before = certificates.context
    assert not certificates.check()
    cert, key = own_authority.issue("new")
    cert.replace(own_authority.cert)
    assert not certificates.check()
    key.replace(own_authority.key)
    assert not certificates.check()
    assert certificates.context is before
    assert not caplog.records

    assert certificates.check()
    assert certificates.context is not before
    assert not certificates.check()
    assert [f"TLS certificates reloaded from '{own_authority.cert}'"] == caplog.messages


def test_a_broken_file_is_told_once_and_the_old_one_stays(own_authority, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    certificates = Certificates(own_authority.options())
    before = certificates.context
    own_authority.cert.unlink()
    for _ in range(5):
        assert not certificates.check()

    assert certificates.context is before
    (message,) = caplog.messages
    assert "not reloaded, the old ones stay in use: cert" in message
    assert "No such file or directory" in message


def test_a_reload_that_was_asked_for_waits_for_nothing(own_authority):
    certificates = Certificates(own_authority.options())
    before = certificates.context
    own_authority.issue("server")

    assert certificates.reload()
    assert certificates.context is not before


def test_the_watch_looks_in_a_thread_again_and_again(own_authority):
    async def scenario():
        certificates = Certificates(own_authority.options())
        watch = CertificateWatch(certificates, 0.001)
        watch.start()
        for _ in range(2):
            before = certificates.context
            own_authority.issue("server")
            await until(lambda old=before: certificates.context is not old)
        watch.stop()
        await asyncio.sleep(0)
        assert watch._timer is None

    asyncio.run(asyncio.wait_for(scenario(), 10))
