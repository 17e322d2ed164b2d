"""What goes wrong below the rules of the protocol: bytes that are no message."""

from __future__ import annotations

from bireme.types import BiremeError


class UnreadableMessage(BiremeError):
    """The bytes are no protobuf message of the method's type.

    INTERNAL on the wire, although the client is at fault and there's nothing to log: gRPC's own servers answer so.

    Source: gRPC ``server_cc.cc`` (``PayloadAsyncRequest::FinalizeResult``).
    """

    code = "INTERNAL"

    def __init__(self, detail: str = "") -> None:
        super().__init__(f"Unable to parse request: {detail}" if detail else "Unable to parse request")
