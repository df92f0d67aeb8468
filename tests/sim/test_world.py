"""Time, clocks and network behave as their modules say."""

from random import Random

from .clock import Clock
from .network import Network, Weather
from .scheduler import MILLISECOND, SECOND, Scheduler


def run(scheduler: Scheduler) -> None:
    while (event := scheduler.next()) is not None:
        assert event.action is not None
        event.action()


def test_events_run_in_time_order_and_ties_in_the_order_of_their_making() -> None:
    scheduler, seen = Scheduler(), []
    for delay, name in ((5, "c"), (1, "a"), (5, "d"), (1, "b")):
        scheduler.after(delay, lambda name=name: seen.append((scheduler.now, name)))
    run(scheduler)
    assert seen == [(1, "a"), (1, "b"), (5, "c"), (5, "d")]


def test_a_cancelled_event_does_not_run() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.after(1, lambda: seen.append("kept"))
    scheduler.after(1, lambda: seen.append("cancelled")).cancel()
    run(scheduler)
    assert (seen, scheduler.events_run) == (["kept"], 1)


def test_a_clock_drifts_within_its_bound_and_jumps_forward_only() -> None:
    for seed in range(50):
        clock = Clock(Random(seed), now=7 * SECOND, drift_max=0.01)
        start = clock.read(7 * SECOND)
        assert abs(clock.read(8 * SECOND) - start - SECOND) <= SECOND * 0.01 + 1
        before = clock.read(9 * SECOND)
        clock.jump(10 * SECOND)
        assert clock.read(9 * SECOND) == before + 10 * SECOND


def test_after_the_world_delay_the_clock_has_moved_on_far_enough() -> None:
    for seed in range(50):
        clock = Clock(Random(seed), now=0, drift_max=0.1)
        now = seed * 1234
        later = now + clock.world_delay(50 * MILLISECOND)
        assert clock.read(later) - clock.read(now) >= 50 * MILLISECOND


def deliveries(weather: Weather, *, messages: int = 1000, cut: tuple[int, int] | None = None) -> list[int]:
    scheduler, seen = Scheduler(), []
    network = Network(scheduler, Random(1), lambda source, target, message: seen.append(message))
    network.weather = weather
    if cut is not None:
        network.cut(*cut)
    for message in range(messages):
        network.send(1, 2, message)
    run(scheduler)
    return seen


def test_a_calm_network_delivers_everything_once_but_not_in_order() -> None:
    seen = deliveries(Weather())
    assert sorted(seen) == list(range(1000))
    assert seen != list(range(1000))


def test_a_bad_network_drops_and_duplicates_about_as_often_as_told() -> None:
    seen = deliveries(Weather(drop=0.2, duplicate=0.1))
    assert 750 < len(set(seen)) < 850
    assert 40 < len(seen) - len(set(seen)) < 120


def test_a_cut_link_is_cut_in_one_direction_only() -> None:
    assert deliveries(Weather(), cut=(1, 2)) == []
    assert len(deliveries(Weather(), cut=(2, 1))) == 1000


def test_a_link_that_is_cut_while_messages_travel_swallows_them_and_heals() -> None:
    scheduler, seen = Scheduler(), []
    network = Network(scheduler, Random(1), lambda source, target, message: seen.append(message))
    network.send(1, 2, "lost")
    network.split([1], [2, 3])
    run(scheduler)
    network.heal()
    network.send(2, 1, "arrives")
    run(scheduler)
    assert seen == ["arrives"]
