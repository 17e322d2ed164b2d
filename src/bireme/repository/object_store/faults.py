"""What goes wrong with an object store, said so that a person can act: where, and the store's own reason. Pure.

The library's errors are long, hold the store's answer as XML and differ from one try to the next (how long it took); a message
from here is short and the same for the same fault, so that whoever repeats it can be told from whoever does not.
"""

from __future__ import annotations

import re
from typing import Final

from bireme.repository.storage import ChangedMeanwhile


class StoreError(OSError):
    """A store could not be listed, or an object in it not be read; the message names it."""


class AccessDenied(StoreError):
    """The store wants other credentials."""


class BadKey(StoreError):
    """A listing has an object whose key cannot be a path; the library then gives no part of it."""


class ObjectChanged(StoreError, ChangedMeanwhile):
    """An object is no longer what the listing said: it was replaced or removed since."""


_CODE: Final = re.compile(r"<Code>\s*([\w.]+)\s*</Code>")
_MESSAGE: Final = re.compile(r"<Message>\s*([^<]+?)\s*</Message>", re.DOTALL)
_STATUS: Final = re.compile(r"status code: (\d{3})( [A-Z][A-Za-z ]*)?")
_BAD_KEY: Final = re.compile(r'Path "((?:[^"\\]|\\.)*)"')
_DURATION: Final = re.compile(r" (?:in|after) [\d.]+ ?(?:ns|µs|ms|s)\b")
_SECRETS: Final = re.compile(
    r"([?&](?:sig|sv|se|X-Amz-[\w-]+|AWSAccessKeyId|Signature|token|access_token)=)[^&\s\"')]+", re.IGNORECASE
)
_BEARER: Final = re.compile(r"((?:Bearer|Basic|SharedKey|Credential=)\s*)[^\s\",]+", re.IGNORECASE)

_HINTS: Final = {
    "NoSuchBucket": "the bucket does not exist",
    "ContainerNotFound": "the container does not exist",
    "InvalidAccessKeyId": "the store does not know this access key",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "ExpiredToken": "the session token has expired",
    "PermanentRedirect": "the bucket is in another region: set AWS_DEFAULT_REGION",
    "AuthorizationHeaderMalformed": "the bucket may be in another region: set AWS_DEFAULT_REGION",
    "IllegalLocationConstraintException": "the bucket is in another region: set AWS_DEFAULT_REGION",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
}
_CONNECTIONS: Final = (
    ("dns error", "its host's name cannot be resolved"),
    ("Connection refused", "nothing listens there (connection refused)"),
    ("ConnectionRefused", "nothing listens there (connection refused)"),
    (
        "InvalidCertificate",
        "its certificate is not trusted: SSL_CERT_FILE, or AWS_CA_BUNDLE for S3, names what is",
    ),
    ("CertificateRequired", "it asks for a client certificate"),
    ("received corrupt message", "it does not speak TLS there: an http:// location?"),
    ("InvalidContentType", "it does not speak TLS there: an http:// location?"),
    ("Received redirect without LOCATION", "the bucket is in another region: set AWS_DEFAULT_REGION"),
    ("Network is unreachable", "the network is unreachable"),
    ("ConnectionReset", "the connection was reset"),
    ("IncompleteMessage", "the connection was cut"),
    ("IncompleteBody", "the connection was cut"),
    ("UnexpectedEof", "the connection was cut"),
    ("TimedOut", "it does not answer in time"),
    ("operation timed out", "it does not answer in time"),
)
_CHANGED: Final = frozenset({"PreconditionError", "NotModifiedError"})
_DENIED: Final = frozenset({"PermissionDeniedError", "UnauthenticatedError"})


def make_fault(url: str, error: BaseException, *, reads_object: bool = False) -> StoreError:
    """Return what to raise for the library's ``error`` about ``url``; ``reads_object``: the listing said that it is there."""
    text = str(error)
    kind = type(error).__name__
    status = _STATUS.search(text)
    number = status[1] if status else ""
    message = f"{url}: {explain(text)}"
    if kind == "InvalidPathError":
        return BadKey(message)
    if kind in _DENIED or number in {"401", "403"} or (number == "400" and "ExpiredToken" in text):
        return AccessDenied(message)
    if kind in _CHANGED or number == "412":
        return ObjectChanged(f"{url}: it was replaced while it was being read")
    if reads_object and (isinstance(error, FileNotFoundError) or kind == "NotFoundError" or number == "404"):
        return ObjectChanged(message)
    return StoreError(message)


def explain(text: str) -> str:
    """Return the reason that the text of one of the library's errors holds, in one line, without secrets."""
    if "invalid path" in text or "Error parsing Path" in text:
        key = _BAD_KEY.search(text)
        named = f" '{key[1]}'" if key else ""
        return f"the key{named} cannot be a file's path (an empty part, '.' or '..'): rename or remove the object"
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if code or status:
        answer = f"{status[1]}{(status[2] or '').rstrip()}" if status else ""
        hint = _HINTS.get(code[1]) if code else None
        told = hint or (message[1].split("\n")[0][:200] if message else "")
        detail = ": ".join(part for part in (code[1] if code else "", redact(told)) if part)
        return f"{answer} ({detail})" if answer and detail else answer or detail
    for sign, reason in _CONNECTIONS:
        if sign in text:
            return reason
    reason = text.partition("\n")[0].rpartition(" - ")[2]
    return redact(_DURATION.sub("", reason)[:300]).strip() or "unknown error"


def redact(text: str) -> str:
    """Return ``text`` without what may be a secret in it: signatures in URLs, tokens in headers."""
    return _BEARER.sub(r"\1***", _SECRETS.sub(r"\1***", text))
