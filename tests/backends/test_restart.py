"""When a worker process that died is started again."""

from bireme.backends.restart import RestartPolicy

S = 1_000_000_000


def test_the_first_death_is_followed_by_a_restart_at_once():
    policy = RestartPolicy()
    policy.note_start(0)

    assert policy.note_death(1 * S) == 0


def test_deaths_shortly_after_the_start_are_followed_by_longer_and_longer_waits():
    policy = RestartPolicy()
    now_ns = 0
    delays = []
    for _ in range(9):
        policy.note_start(now_ns)
        now_ns += 5 * S
        delays.append(policy.note_death(now_ns))
        now_ns += int(delays[-1] * S)

    assert delays == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_failed_starts_count_like_deaths():
    policy = RestartPolicy()
    policy.note_start(0)

    assert [policy.note_death(100 * S) for _ in range(4)] == [0, 1, 2, 4]


def test_a_process_that_ran_for_ten_seconds_is_forgiven_what_was_before():
    policy = RestartPolicy()
    for at in range(5):
        policy.note_start(at * S)
        policy.note_death(at * S + 1)
    policy.note_start(10 * S)

    assert policy.note_death(20 * S) == 0


def test_the_wait_stays_bounded_however_often_it_fails():
    policy = RestartPolicy()

    assert max(policy.note_death(0) for _ in range(5000)) == 30
