"""Faults: the library's texts become one line with the reason, the same for the same fault, without secrets."""

import pytest

from bireme.repository.object_store.faults import (
    AccessDenied,
    BadKey,
    ObjectChanged,
    StoreError,
    explain,
    make_fault,
)

URL = "s3://bucket/m/1/model.onnx"


def answer(status, code, message, took="4.132678ms"):
    return (
        f"Generic S3 error: Error performing list request: Error performing GET http://h/b?prefix=m in {took} - "
        f"Server returned non-2xx status code: {status}: <?xml version='1.0'?>\n<Error><Code>{code}</Code>"
        f"<Message>{message}</Message></Error>\n\nDebug source:\nGeneric {{ }}"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            answer("404 Not Found", "NoSuchBucket", "x"),
            "404 Not Found (NoSuchBucket: the bucket does not exist)",
        ),
        (
            answer("403 Forbidden", "AccessDenied", "Access Denied"),
            "403 Forbidden (AccessDenied: Access Denied)",
        ),
        (
            answer("403 Forbidden", "RequestTimeTooSkewed", ""),
            "403 Forbidden (RequestTimeTooSkewed: this machine's clock is wrong)",
        ),
        ("x - Server returned non-2xx status code: 503 Service Unavailable: ", "503 Service Unavailable"),
        (
            "x in 1s - HTTP error: error sending request\n\nDebug: dns error",
            "its host's name cannot be resolved",
        ),
        ("x\nkind: ConnectionRefused, Connection refused", "nothing listens there (connection refused)"),
        ("x\nIncompleteBody", "the connection was cut"),
        (
            "x\nInvalidCertificate(UnknownIssuer)",
            "its certificate is not trusted: SSL_CERT_FILE, or AWS_CA_BUNDLE for S3, names what is",
        ),
        (
            "GET u in 2.5ms - Received redirect without LOCATION",
            "the bucket is in another region: set AWS_DEFAULT_REGION",
        ),
        (
            'Encountered object with invalid path: Path "m/a//b" contained empty path segment\n\nDebug',
            "the key 'm/a//b' cannot be a file's path (an empty part, '.' or '..'): rename or remove the object",
        ),
        ("Generic error: GET http://h in 2.5ms - something odd, in 7ms", "something odd, "),
        ("", "unknown error"),
    ],
)
def test_the_reason_is_one_line(text, expected):
    assert explain(text) == expected.strip()


def test_the_same_fault_has_the_same_text():
    texts = {
        explain(answer("500 Internal Server Error", "InternalError", "no", took)) for took in ("1ms", "2.2s")
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    "text",
    [
        "GET https://a.blob.core.windows.net/c?sv=2020&sig=hunter2&x=1",
        "GET https://h/b?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2",
        "header Authorization: Bearer hunter2",
        answer("400 Bad Request", "Odd", "you sent Credential=hunter2, which is odd"),
    ],
)
def test_no_secret_is_told(text):
    assert "hunter2" not in explain(text)


def named(name, text):
    return type(name, (Exception,), {})(text)


@pytest.mark.parametrize(
    ("error", "reads_object", "kind"),
    [
        (named("PermissionDeniedError", ""), False, AccessDenied),
        (named("GenericError", answer("401 Unauthorized", "X", "")), False, AccessDenied),
        (named("GenericError", answer("400 Bad Request", "ExpiredToken", "")), False, AccessDenied),
        (named("PreconditionError", ""), True, ObjectChanged),
        (FileNotFoundError("status code: 404 Not Found"), True, ObjectChanged),
        (FileNotFoundError("status code: 404 Not Found"), False, StoreError),
        (named("InvalidPathError", 'invalid path: Path "a//b"'), False, BadKey),
        (named("GenericError", "x"), True, StoreError),
    ],
)
def test_what_kind_of_fault_it_is(error, reads_object, kind):
    fault = make_fault(URL, error, reads_object=reads_object)
    assert type(fault) is kind
    assert str(fault).startswith(f"{URL}: ")
