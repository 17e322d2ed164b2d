"""The official clients of one server, over HTTP or gRPC, asked in one way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from e2e_server import RunningServer

Client = tuple[ModuleType, Any]
"""The client's module, and a client of it."""


@contextmanager
def connect(server: RunningServer, protocol: str) -> Iterator[Client]:
    """Connect to ``server`` over ``protocol``, ``http`` or ``grpc``."""
    module = getattr(tritonclient, protocol)
    address = server.address if protocol == "http" else server.grpc_address
    with module.InferenceServerClient(address) as connection:
        yield module, connection


def infer(
    client: Client,
    name: str,
    arrays: Mapping[str, np.ndarray],
    datatype: str = "FP32",
    outputs: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Ask model ``name``; every input is of ``datatype``. ``outputs``: those to ask for; empty: all."""
    module, connection = client
    inputs = []
    for key, array in arrays.items():
        tensor = module.InferInput(key, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    wanted = [module.InferRequestedOutput(each) for each in outputs] or None
    return connection.infer(name, inputs, outputs=wanted, **options)
