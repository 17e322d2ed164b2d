"""Which requests run together, when, and which not at all. Pure: state in, decision out; time is an argument.

A `Scheduler` holds the waiting requests of one model version; the engine feeds it events (a request came, was
cancelled; an instance is free; the time it asked for has come) and acts on the `Decision` that it returns. Nothing
here may know a socket, a thread, an event loop or a clock.
"""

from bireme.scheduling.deadlines import Deadlines
from bireme.scheduling.direct import DirectScheduler
from bireme.scheduling.dynamic_batch import DynamicBatcher
from bireme.scheduling.factory import build_scheduler
from bireme.scheduling.inline_policy import InlinePolicy
from bireme.scheduling.interface import NOTHING_TO_DO, CloseReason, Decision, Scheduler
from bireme.scheduling.request_queue import RequestQueue
from bireme.scheduling.response_order import ResponseOrder, make_response_order

__all__ = [
    "NOTHING_TO_DO",
    "CloseReason",
    "Deadlines",
    "Decision",
    "DirectScheduler",
    "DynamicBatcher",
    "InlinePolicy",
    "RequestQueue",
    "ResponseOrder",
    "Scheduler",
    "build_scheduler",
    "make_response_order",
]
