"""gRPC over TLS and UNIX domain sockets with grpcio and the official client: trust, client certificates, ALPN, reload."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client_library
from tritonclient.grpc import service_pb2

from bireme.frontend.grpc.options import GrpcOptions
from certificates import Authority, organization_of
from e2e_server import wait_until
from grpc_calls import INFER, SERVER_LIVE, A, B, array_of, infer_message, inputs
from grpc_socket import GrpcSocket

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def start_secure(start_server, repository, authority):
    def start(*, mutual: bool = False, **settings):
        options = GrpcOptions(tls=authority.options(mutual=mutual), **settings)
        return start_server(repository, grpc=options, load_model=("add", "plus_one"))

    return start


def infer(channel: grpc.Channel, size: int = 16) -> None:
    """Make a call and check its answer."""
    values = np.arange(size, dtype=np.float32)
    call = channel.unary_unary(
        INFER,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelInferResponse.FromString,
    )
    answer = call(infer_message("plus_one", X=values), timeout=10)
    np.testing.assert_array_equal(array_of(answer), values + 1)


def secure_channel(server, root: Path, *identity: Path) -> grpc.Channel:
    cert, key = (path.read_bytes() for path in identity) if identity else (None, None)
    credentials = grpc.ssl_channel_credentials(root.read_bytes(), key, cert)
    unlimited = (("grpc.max_receive_message_length", -1), *OWN_CONNECTION)
    return grpc.secure_channel(f"localhost:{server.grpc.port}", credentials, options=unlimited)


def test_tls(start_secure, authority):
    with secure_channel(start_secure(), authority.root) as channel:
        for size in (16, 2_000_000):
            infer(channel, size)


def test_a_client_that_trusts_another_authority_does_not_connect(start_secure, tmp_path):
    with secure_channel(start_secure(), Authority(tmp_path / "other").root) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            infer(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_client_without_tls_does_not_connect(start_secure):
    server = start_secure()
    with (
        grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}", options=OWN_CONNECTION) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        infer(channel)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_mutual_tls(start_secure, authority, tmp_path):
    server = start_secure(mutual=True)
    with secure_channel(server, authority.root, *authority.issue("client")) as channel:
        infer(channel)
    strangers = Authority(tmp_path / "strangers").issue("client")
    for identity in ((), strangers):
        with secure_channel(server, authority.root, *identity) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                infer(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_official_client(start_secure, authority):
    server = start_secure(mutual=True)
    cert, key = authority.issue("client")
    with client_library.InferenceServerClient(
        f"localhost:{server.grpc.port}",
        ssl=True,
        root_certificates=str(authority.root),
        private_key=str(key),
        certificate_chain=str(cert),
    ) as client:
        result = client.infer("add", inputs(INPUT0=A, INPUT1=B))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


def test_alpn(start_secure, authority):
    server = start_secure()
    context = authority.client(alpn=("h2",))
    with GrpcSocket(_connect(server, context)) as client:
        assert client.sock.selected_alpn_protocol() == "h2"
        assert client.call(SERVER_LIVE).status == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_of_tls(start_secure, authority, version):
    server = start_secure()
    context = authority.client(alpn=("h2",))
    context.minimum_version = context.maximum_version = version
    with GrpcSocket(_connect(server, context)) as client:
        assert client.call(SERVER_LIVE).status == 0


def test_a_new_certificate_is_used_without_a_restart(start_server, repository, tmp_path):
    own = Authority(tmp_path / "own")
    own.issue("server", "before")
    server = start_server(repository, grpc=GrpcOptions(tls=own.options()), load_model=("plus_one",))
    with secure_channel(server, own.root) as channel:
        infer(channel)
        assert _organization(server, own) == "before"
        own.issue("server", "after")
        server.call(_reopen(server))
        wait_until(lambda: _organization(server, own) == "after")
        infer(channel)  # the connection of before goes on


def test_a_unix_socket(start_server, repository, tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "grpc"
    start_server(repository, grpc=GrpcOptions(address=f"unix:{path}"), load_model=("add", "plus_one"))
    for target in (f"unix:{path}", f"unix://{path}"):
        with grpc.insecure_channel(target) as channel:
            infer(channel)
    with client_library.InferenceServerClient(f"unix:{path}") as client:
        result = client.infer("add", inputs(INPUT0=A, INPUT1=B))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


def test_a_unix_socket_with_tls(start_server, repository, authority, tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "grpc"
    options = replace(GrpcOptions(tls=authority.options()), address=f"unix:{path}")
    start_server(repository, grpc=options, load_model=("plus_one",))
    credentials = grpc.ssl_channel_credentials(authority.root.read_bytes())
    name = (("grpc.ssl_target_name_override", "localhost"), ("grpc.default_authority", "localhost"))
    with grpc.secure_channel(f"unix:{path}", credentials, options=name) as channel:
        infer(channel)


async def _reopen(server) -> None:
    server.grpc.reopen()


def _connect(server, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", server.grpc.port), timeout=10)
    return context.wrap_socket(sock, server_hostname="localhost")


def _organization(server, authority: Authority) -> str:
    """Whom the certificate that a new connection sees was issued to."""
    with _connect(server, authority.client(alpn=("h2",))) as sock:
        certificate = sock.getpeercert()
    assert certificate is not None
    return organization_of(certificate)
