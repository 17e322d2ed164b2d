"""A real S3 server (moto) on the loopback that counts what it is asked and fails on purpose."""

from __future__ import annotations

import logging
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import boto3
import trustme
from botocore.config import Config
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)

KEY_ID = "AKIATESTTESTTESTTEST"
SECRET = "a-secret-that-nobody-may-see"
BUCKET = "bucket"

Fault = Callable[[dict[str, Any], Callable[..., Any]], "Iterable[bytes] | None"]


class S3Server:
    """One server with one bucket; ``fault`` may answer a request in its place."""

    def __init__(self, bundle: Path | None = None) -> None:
        """With ``bundle`` it speaks TLS; what has signed its certificate is written there."""
        self.requests: list[tuple[str, str, str]] = []
        """Method, path and query of each."""
        self.ranges: list[str] = []
        """What part of an object each wants; empty: all of it."""
        self.fault: Fault | None = None
        self._app = DomainDispatcherApplication(create_backend_app)
        context = None
        if bundle is not None:
            authority = trustme.CA()
            authority.cert_pem.write_to_path(str(bundle))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        self._protocol = "http" if context is None else "https"
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, ssl_context=context)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            verify=True if bundle is None else str(bundle),
            config=Config(retries={"max_attempts": 1}),
        )
        self.client.create_bucket(Bucket=BUCKET)
        self.empty()  # all servers of a process share their buckets

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        return f"{self._protocol}://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}

    def location(self, path: str) -> str:
        return f"s3://{self.url}/{BUCKET}/{path}"

    def put(self, key: str, content: bytes, **settings: str) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content, **settings)
        self.forget()

    def put_tree(self, prefix: str, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)
        self.forget()

    def empty(self) -> None:
        """Remove all objects."""
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for found in page.get("Contents", []):
                self.delete(found["Key"])
        self.forget()

    def forget(self) -> None:
        self.requests.clear()
        self.ranges.clear()

    @property
    def counts(self) -> Counter[str]:
        """How many lists and how many gets there were since the last put."""
        return Counter("LIST" if "list-type" in query else method for method, _, query in self.requests)

    @property
    def fetched(self) -> list[str]:
        """The keys of all gets."""
        return [
            unquote(path.removeprefix(f"/{BUCKET}/"))
            for method, path, query in self.requests
            if method == "GET" and "list-type" not in query
        ]

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    def close(self) -> None:
        self.client.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]))
        self.ranges.append(environ.get("HTTP_RANGE", ""))
        environ["s3.app"] = self._app
        if self.fault is not None and (answer := self.fault(environ, start_response)) is not None:
            return answer
        return self._app(environ, start_response)


def refuse(status: str, code: str, message: str, only: str = "") -> Fault:
    """Answer every request whose path contains ``only`` with an error of S3."""

    def answer(environ, start_response):
        if only not in environ["PATH_INFO"]:
            return None
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def cut(name: str, *, after: int, times: int) -> Fault:
    """Let answers about an object break off after so many bytes, a few times."""
    left = [times]

    def answer(environ, start_response):
        if not environ["PATH_INFO"].endswith(name) or environ["REQUEST_METHOD"] != "GET" or not left[0]:
            return None
        left[0] -= 1
        return _Cut(environ["s3.app"](environ, start_response), after)

    return answer


class _Cut:
    """A body that ends too early."""

    def __init__(self, body: Iterable[bytes], after: int) -> None:
        self._body = body
        self._after = after

    def __iter__(self) -> Iterator[bytes]:
        whole = b"".join(self._body)
        yield whole[: self._after]
        raise ConnectionAbortedError("cut on purpose")

    def close(self) -> None:
        getattr(self._body, "close", lambda: None)()
