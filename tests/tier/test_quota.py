"""Bytes per second."""

from tidelog.tier.quota import UNBOUNDED, WAIT_MS_MAX, ByteRate


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
