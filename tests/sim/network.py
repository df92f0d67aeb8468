"""The network between nodes: it delays, drops, duplicates and reorders, and cuts links in one direction or both.

Messages are envelopes without a connection: each travels on its own, so a later one may arrive first, and one that was
sent to a node's previous life may reach its next one. A link that is cut when a message arrives swallows it, too.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from .scheduler import MILLISECOND, Scheduler


@dataclass(frozen=True, slots=True)
class Weather:
    """How a network treats its messages. Times in microseconds."""

    delay_min: int = MILLISECOND // 10
    delay_mean: int = MILLISECOND // 2  # of the exponential tail above the minimum
    slow: float = 0.0  # share of messages that take the slow way
    slow_max: int = 300 * MILLISECOND
    drop: float = 0.0
    duplicate: float = 0.0


CALM = Weather()


class Network:
    def __init__(self, scheduler: Scheduler, rng: Random, deliver: Callable[[int, int, object], None]) -> None:
        """`deliver(source, target, message)` is called when a message arrives, whether anybody is there or not."""
        self.weather = CALM
        self._scheduler = scheduler
        self._rng = rng
        self._deliver = deliver
        self._cut: set[tuple[int, int]] = set()  # ordered pairs

    def send(self, source: int, target: int, message: object) -> None:
        weather, rng = self.weather, self._rng
        if (source, target) in self._cut or rng.random() < weather.drop:
            return
        self._post(source, target, message)
        if rng.random() < weather.duplicate:
            self._post(source, target, message)

    def _post(self, source: int, target: int, message: object) -> None:
        def arrive() -> None:
            if (source, target) not in self._cut:
                self._deliver(source, target, message)

        self._scheduler.after(self._delay(), arrive, f"n{target} receives from n{source}:", message)

    def _delay(self) -> int:
        weather, rng = self.weather, self._rng
        if rng.random() < weather.slow:
            return rng.randint(weather.delay_min, weather.slow_max)
        return weather.delay_min + int(rng.expovariate(1.0) * weather.delay_mean)

    # ---- partitions

    def cut(self, source: int, target: int) -> None:
        """Nothing from `source` reaches `target` any more; the other direction is not touched."""
        self._cut.add((source, target))

    def isolate(self, node: int, others: Iterable[int]) -> None:
        for other in others:
            self._cut |= {(node, other), (other, node)}

    def split(self, side: Iterable[int], other_side: Iterable[int]) -> None:
        others = list(other_side)
        for node in side:
            self.isolate(node, others)

    def heal(self) -> None:
        self._cut.clear()
