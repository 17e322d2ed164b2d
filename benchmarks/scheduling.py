"""What scheduling costs per request, without any model: `python -m benchmarks.scheduling`.

Each row drives a scheduler as the engine does: requests are enqueued in groups, then decisions are asked for until
there is none. It prints nanoseconds of CPU time per request (best of several rounds) and, for scale, how many
requests per second one core could schedule if it did nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bireme.config.model_config import ModelConfig, ModelDynamicBatching, ModelQueuePolicy
from bireme.scheduling import Scheduler, build_scheduler
from bireme.types import InferenceRequest

NUM_REQUESTS = 16_384
NUM_ROUNDS = 7
SECOND_NS = 1_000_000_000


def dynamic(**settings) -> ModelConfig:
    return ModelConfig("model", max_batch_size=16, dynamic_batching=ModelDynamicBatching(**settings))


def make_requests(keys: tuple[object, ...] = (None,), priorities: tuple[int, ...] = (0,)):
    requests = []
    for index in range(NUM_REQUESTS):
        request = InferenceRequest("model", {}, print, priority=priorities[index % len(priorities)])
        request.batch_key = keys[index % len(keys)]
        requests.append(request)
    return requests


def drive(scheduler: Scheduler, requests: list[InferenceRequest], group: int) -> None:
    """Enqueue ``group`` requests at a time, then schedule until nothing is left."""
    now_ns = 0
    for start in range(0, len(requests), group):
        for request in requests[start : start + group]:
            scheduler.enqueue(request, now_ns)
        while scheduler.num_waiting:
            scheduler.schedule(now_ns, instance_free=True)
        now_ns += 1000


def drive_delayed(scheduler: Scheduler, requests: list[InferenceRequest], group: int) -> None:
    """As `drive`, but look again after every ``group``, whether a batch can start or has to wait."""
    now_ns = 0
    for start in range(0, len(requests), group):
        for request in requests[start : start + group]:
            scheduler.enqueue(request, now_ns)
        while scheduler.schedule(now_ns, instance_free=True).batch is not None:
            pass
        now_ns += 1000


def drive_cancelled(scheduler: Scheduler, requests: list[InferenceRequest], group: int) -> None:
    """Cancel every request while ``group`` of them wait behind a busy instance."""
    for start in range(0, len(requests), group):
        waiting = requests[start : start + group]
        for request in waiting:
            scheduler.enqueue(request, 0)
        for request in waiting:
            scheduler.cancel(request)


def measure(
    config: ModelConfig, requests: list[InferenceRequest], group: int, drive: Callable[..., None]
) -> float:
    best_ns = float("inf")
    for _ in range(NUM_ROUNDS):
        scheduler = build_scheduler(config)
        start_ns = time.process_time_ns()
        drive(scheduler, requests, group)
        best_ns = min(best_ns, (time.process_time_ns() - start_ns) / len(requests))
    return best_ns


def main() -> None:
    plain = make_requests()
    shape = ((("INPUT", (3, 224, 224)),),)
    timeout = ModelQueuePolicy(default_timeout_microseconds=1_000_000, max_queue_size=100_000)
    rows = [
        ("direct, one at a time", ModelConfig("model"), plain, 1, drive),
        ("direct, 16 at once", ModelConfig("model"), plain, 16, drive),
        ("dynamic, batches of 1", dynamic(), plain, 1, drive),
        ("dynamic, batches of 8 of at most 16", dynamic(), plain, 8, drive),
        ("dynamic, full batches of 16", dynamic(), plain, 16, drive),
        ("dynamic, full batches, 16,384 waiting", dynamic(), plain, NUM_REQUESTS, drive),
        ("  preferred sizes 4 and 8", dynamic(preferred_batch_size=(4, 8)), plain, 16, drive),
        (
            "  delay, looked at per arrival",
            dynamic(max_queue_delay_microseconds=5000),
            plain,
            1,
            drive_delayed,
        ),
        ("  equal shapes", dynamic(), make_requests(keys=shape), 16, drive),
        ("  4 shapes in turn", dynamic(), make_requests(keys=(1, 2, 3, 4)), 64, drive),
        (
            "  3 priority levels in turn",
            dynamic(priority_levels=3, default_priority_level=2),
            make_requests(priorities=(3, 1, 2)),
            16,
            drive,
        ),
        ("  timeout and queue limit", dynamic(default_queue_policy=timeout), plain, 16, drive),
        ("  enqueue and cancel", dynamic(default_queue_policy=timeout), plain, NUM_REQUESTS, drive_cancelled),
    ]
    print(f"{'scheduler':40} {'ns/request':>10} {'requests/s':>12}")
    for name, config, requests, group, driver in rows:
        per_request_ns = measure(config, requests, group, driver)
        print(f"{name:40} {per_request_ns:10.0f} {SECOND_NS / per_request_ns:12,.0f}")


if __name__ == "__main__":
    main()
