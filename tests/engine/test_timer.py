"""DeadlineTimer: in order, never early, cancellable, on the loop."""

import asyncio
import time

import pytest

from bireme.engine.timer import DeadlineTimer, _LoopAlarm


def run(coroutine):
    return asyncio.run(coroutine)


async def fire(*delays_us: int, portable: bool = False) -> list[tuple[int, int]]:
    """Set one deadline per delay; return (position, nanoseconds late) in the order of the calls."""
    loop = asyncio.get_running_loop()
    timer = DeadlineTimer(loop)
    if portable:
        timer._alarm.close()
        timer._alarm = _LoopAlarm(loop, timer._fire)
    calls: list[tuple[int, int]] = []
    done = loop.create_future()
    base_ns = time.monotonic_ns()

    def called(position: int, when_ns: int) -> None:
        calls.append((position, time.monotonic_ns() - when_ns))
        if len(calls) == len(delays_us):
            done.set_result(None)

    for position, delay_us in enumerate(delays_us):
        when_ns = base_ns + delay_us * 1000
        timer.call_at(when_ns, lambda position=position, when_ns=when_ns: called(position, when_ns))
    await asyncio.wait_for(done, 5)
    timer.close()
    return calls


@pytest.mark.parametrize("portable", [False, True])
def test_callbacks_come_in_time_order_and_never_early(portable: bool) -> None:
    calls = run(fire(3000, 300, 1500, 300, -10, portable=portable))

    assert [position for position, _ in calls] == [4, 1, 3, 2, 0]
    assert min(late_ns for _, late_ns in calls) >= 0


def test_cancelled_deadline_is_not_called() -> None:
    async def main() -> list[str]:
        timer = DeadlineTimer(asyncio.get_running_loop())
        called: list[str] = []
        done = asyncio.get_running_loop().create_future()
        now_ns = time.monotonic_ns()
        timer.call_at(now_ns + 200_000, lambda: called.append("cancelled")).cancel()
        timer.call_at(now_ns + 400_000, lambda: done.set_result(None))
        await asyncio.wait_for(done, 5)
        timer.close()
        return called

    assert run(main()) == []


def test_callback_may_set_the_next_deadline() -> None:
    async def main() -> int:
        timer = DeadlineTimer(asyncio.get_running_loop())
        done = asyncio.get_running_loop().create_future()
        count = 0

        def again() -> None:
            nonlocal count
            count += 1
            if count == 3:
                done.set_result(None)
            else:
                timer.call_at(time.monotonic_ns() + 50_000, again)

        timer.call_at(time.monotonic_ns(), again)
        await asyncio.wait_for(done, 5)
        timer.close()
        return count

    assert run(main()) == 3
