"""The engine: models, their lifecycle, and `Server`, the in-process API that everything above calls."""

from bireme.engine.blocking import BlockingServer
from bireme.engine.inference import InferResult
from bireme.engine.model import Model
from bireme.engine.options import ModelControlMode, OnDemandOptions, ServerOptions
from bireme.engine.server import Server
from bireme.engine.server_state import ServerState

__all__ = [
    "BlockingServer",
    "InferResult",
    "Model",
    "ModelControlMode",
    "OnDemandOptions",
    "Server",
    "ServerOptions",
    "ServerState",
]
