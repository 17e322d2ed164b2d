"""Readings of /proc: what they mean, how old they may be, and machines without it."""

import pytest

from bireme.telemetry.host import HostSampler, HostUsage, parse_cpu_times, parse_memory

STAT = "cpu  10 1 5 100 4 2 1 3 7 0\ncpu0 10 1 5 100 4 2 1 3 7 0\nintr 12\n"
MEMINFO = (
    "MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:    500 kB\nHugePages_Total:       0\n"
)


def test_busy_time_leaves_out_idle_and_waiting_and_does_not_count_guests_twice():
    assert parse_cpu_times(STAT) == (10 + 1 + 5 + 2 + 1 + 3, 100 + 4)


def test_used_memory_is_what_is_not_available():
    assert parse_memory(MEMINFO) == (2000 * 1024, 1500 * 1024)


def test_more_available_than_total_memory_is_none_used():
    assert parse_memory("MemTotal: 5 kB\nMemAvailable: 6 kB\n") == (5 * 1024, 0)


@pytest.mark.parametrize("text", ["", "intr 1 2 3", "cpu 1 2 3", "cpu a b c d e f g h"])
def test_a_foreign_stat_is_refused(text):
    with pytest.raises(ValueError):
        parse_cpu_times(text)


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemAvailable: 5 kB\n"])
def test_a_foreign_meminfo_is_refused(text):
    with pytest.raises(ValueError, match="MemTotal"):
        parse_memory(text)


class Machine:
    """A /proc whose CPU times advance when told, and a clock."""

    def __init__(self):
        self.busy = 0
        self.idle = 0
        self.now_ns = 0
        self.num_reads = 0
        self.meminfo = MEMINFO

    def read(self, path):
        self.num_reads += 1
        return self.meminfo if path == "/proc/meminfo" else f"cpu {self.busy} 0 0 {self.idle} 0 0 0 0"

    def sampler(self, interval_ns=1000):
        return HostSampler(interval_ns, read=self.read, clock_ns=lambda: self.now_ns)


def test_utilization_is_that_since_the_reading_before():
    machine = Machine()
    sampler = machine.sampler()
    machine.busy, machine.idle = 30, 70
    first = sampler.sample()
    machine.now_ns, machine.busy, machine.idle = 1000, 50, 90

    assert first == HostUsage(0.3, 2000 * 1024, 1500 * 1024)
    assert sampler.sample() == HostUsage(0.5, 2000 * 1024, 1500 * 1024)


def test_a_second_look_within_the_interval_reads_nothing():
    machine = Machine()
    sampler = machine.sampler()
    first = sampler.sample()
    num_reads, machine.now_ns = machine.num_reads, 999

    assert sampler.sample() is first
    assert machine.num_reads == num_reads


def test_counters_that_stand_still_or_step_back_give_zero():
    machine = Machine()
    machine.busy, machine.idle = 10, 10
    sampler = machine.sampler()

    assert sampler.sample().cpu_utilization == 0.0
    machine.now_ns, machine.busy, machine.idle = 5000, 5, 20
    assert sampler.sample().cpu_utilization == 0.0


def test_a_machine_without_proc_tells_nothing():
    def missing(path):
        raise FileNotFoundError(path)

    assert HostSampler(0, read=missing).sample() is None


def test_a_reading_that_fails_later_tells_nothing_until_it_works_again():
    machine = Machine()
    sampler = machine.sampler()
    machine.meminfo = "broken"
    assert sampler.sample() is None

    machine.meminfo = MEMINFO
    assert sampler.sample() is not None


def test_this_machine_can_be_read():
    usage = HostSampler(0).sample()

    assert usage is not None
    assert 0.0 <= usage.cpu_utilization <= 1.0
    assert 0 < usage.memory_used_bytes < usage.memory_total_bytes
