"""The server inside a program: no ports, the same scheduling, batching and statistics."""

import asyncio
from pathlib import Path

import numpy as np

import bireme

REPOSITORY = Path(__file__).resolve().parent / "models"


def plain_script() -> None:
    """A script without an event loop: the server brings its own, in a thread."""
    with bireme.Server(REPOSITORY) as server:
        result = server.infer("add", {"A": [[1, 2, 3]], "B": [[10, 20, 30]]})
        print("plain script:", result["OUTPUT"].tolist())


async def async_program() -> None:
    """An async program: the server shares its loop. Requests made at once share a batch."""
    async with bireme.Server(REPOSITORY) as server:
        rows = [np.full((1, 4), number, np.float32) for number in range(8)]
        results = await asyncio.gather(*(server.ainfer("add", {"A": row, "B": row}) for row in rows))
        print("async program:", [float(result["OUTPUT"][0, 0]) for result in results])

        (statistics,) = server.model_statistics("add")["model_stats"]
        print(f"{statistics['inference_count']} inferences in {statistics['execution_count']} executions")

        try:
            await server.ainfer("add", {"A": [[1.0]]})
        except bireme.InvalidArgument as error:
            print("a mistake:", error)


def main() -> None:
    """Run both."""
    plain_script()
    asyncio.run(async_program())


if __name__ == "__main__":
    main()
