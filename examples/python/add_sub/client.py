"""Ask add_sub over HTTP and over gRPC with the official clients.

python examples/python/add_sub/client.py [--http localhost:8000] [--grpc localhost:8001]
"""

from __future__ import annotations

import argparse
from types import ModuleType

import numpy as np
import tritonclient.grpc
import tritonclient.http


def ask(library: ModuleType, url: str, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sum and difference; the two libraries have the same classes."""
    inputs = []
    for name, array in (("INPUT0", a), ("INPUT1", b)):
        tensor = library.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    with library.InferenceServerClient(url) as client:
        result = client.infer("add_sub", inputs)
    return result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")


def main(argv: list[str] | None = None) -> None:
    """Ask twice, then make a mistake."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", default="localhost:8000")
    parser.add_argument("--grpc", default="localhost:8001")
    args = parser.parse_args(argv)

    a = np.array([[5, 6, 7, 8]], np.float32)  # the first dimension is the batch
    b = np.array([[1, 2, 3, 4]], np.float32)
    for library, url in ((tritonclient.http, args.http), (tritonclient.grpc, args.grpc)):
        total, difference = ask(library, url, a, b)
        print(f"{library.__name__}: sum {total[0].tolist()}, difference {difference[0].tolist()}")
    try:
        ask(tritonclient.http, args.http, a, b[:, :3])
    except tritonclient.utils.InferenceServerException as error:
        print(f"a mistake: {error.message()}")


if __name__ == "__main__":
    main()
