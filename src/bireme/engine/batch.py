"""BatchPlan: how a model's requests become one execution and its results become their responses.

What depends on the config alone (names, data types, which special cases the model has) is decided here, once, at load.
"""

from __future__ import annotations

from bireme.config import ModelConfig
from bireme.engine.gather import GatherBuffers, make_gather
from bireme.engine.scatter import make_scatter
from bireme.engine.sequence_state import SequenceStates

__all__ = ["BatchPlan", "GatherBuffers"]


class BatchPlan:
    """The two ends of an execution, chosen for one model. Holds no state: any thread may use it.

    ``gather(requests, batch_size, buffers)`` returns the inputs of `Instance.execute`, by name. They are borrowed from
    the requests or from ``buffers``, which leave memory alone for as long as something refers to it. Requests share a
    batch only if their inputs have the same names and, ragged ones apart, the same shapes.

    ``scatter(outputs, requests)`` returns for each request its wanted outputs in the config's order (views of
    ``outputs``), or the error to answer it with.

    ``states`` are what the server carries from one request of a sequence to the next; None: nothing.
    """

    __slots__ = ("gather", "scatter", "states")

    def __init__(self, config: ModelConfig, states: SequenceStates | None = None) -> None:
        """Plan for ``config``, which is final and valid; ``states`` are those of `read_states`."""
        self.states = states
        self.gather = make_gather(config)
        self.scatter = make_scatter(config)
