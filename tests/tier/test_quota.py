"""Bytes per second."""

from tidelog.tier.quota import UNBOUNDED, WAIT_MS_MAX, ByteRate, Pace


def test_without_a_bound_nobody_waits() -> None:
    assert ByteRate(UNBOUNDED, 0).charge(10**12, 0) == 0


def test_over_a_while_the_rate_holds() -> None:
    rate, now, sent = ByteRate(1_000, 0), 0, 0
    while now < 60_000:
        sent += 300
        now += rate.charge(300, now)
    assert 60_000 <= sent <= 62_000, "a minute's bytes, and one second's burst"


def test_a_large_piece_is_taken_and_paid_for_afterwards() -> None:
    rate = ByteRate(1_000, 0)
    assert 4_000 <= rate.charge(5_000, 0) <= 4_001
    assert rate.wait_ms(3_000) > 0
    assert rate.wait_ms(4_001) == 0


def test_a_new_rate_counts_from_now_on() -> None:
    rate = ByteRate(1_000, 0)
    rate.charge(2_000, 0)
    rate.set_rate(100_000, 0)
    assert rate.charge(0, 20) == 0
    rate.set_rate(UNBOUNDED, 20)
    assert rate.charge(10**9, 20) == 0


def test_nobody_waits_for_ever() -> None:
    assert ByteRate(1, 0).charge(10**9, 0) == WAIT_MS_MAX


def test_what_is_paced_follows_as_its_bytes_allow() -> None:
    pace = Pace(1_000, wait_s_max=1.0)
    assert pace.wait_s(500, 10.0) == 0.0
    assert pace.wait_s(250, 10.0) == 0.5
    assert pace.wait_s(250, 10.5) == 0.25
    assert pace.wait_s(250, 20.0) == 0.0, "what was not used is not saved up"
    assert pace.wait_s(250, 20.0) == 0.25


def test_what_is_paced_waits_for_so_long_at_most() -> None:
    pace = Pace(1_000, wait_s_max=0.1)
    assert [round(pace.wait_s(10_000, 1.0), 9) for _ in range(3)] == [0.0, 0.1, 0.1]
