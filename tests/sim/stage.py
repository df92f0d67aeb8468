"""What faults act upon: the nodes and the network, the clients who know the leaders, and time."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .client import Client
from .invariants import Invariants
from .mix import Mix
from .network import Network
from .node import SimNode
from .scheduler import MILLISECOND, Scheduler


@dataclass(slots=True)
class Stage:
    mix: Mix
    nodes: dict[int, SimNode]
    scheduler: Scheduler
    network: Network
    client: Client
    invariants: Invariants
    rng: Random
    stormy: bool = True

    def later(self, delay: int, action: Callable[[], None], *what: object) -> None:
        """Let something happen after a while, unless the storm is over by then."""

        def happen() -> None:
            if self.stormy:
                action()

        self.scheduler.after(delay, happen, *what)

    def start_later(self, node: SimNode) -> None:
        """Whoever died comes back after a while, also when the storm is over."""
        delay = int(self.rng.expovariate(1.0) * self.rng.choice((50, 300, 1000)) * MILLISECOND)
        self.scheduler.after(delay, lambda: self._start(node), node, "starts")

    def _start(self, node: SimNode) -> None:
        if node.alive:
            return
        if self.stormy and "die_in_write" in self.mix.faults and self.rng.random() < 0.3:
            node.disk.crash_after(self.rng.randint(0, 40))  # in the middle of its recovery, or soon after
        node.start()

    def isolate(self, node: SimNode) -> None:
        self.network.isolate(node.number, self.nodes.keys() - {node.number})

    def heal(self) -> None:
        self.network.heal()

    def pick_group(self) -> int:
        return self.rng.randint(1, self.mix.groups)

    def may_trim(self, group: int) -> bool:
        """The cluster's own log is trimmed by nobody but its leader, who writes a snapshot first."""
        return group != self.mix.cluster_group

    def pick_leader(self) -> SimNode | None:
        return self.client.leader(self.pick_group())

    def pick_alive(self) -> list[SimNode]:
        """One node, if any is alive: often a leader, whose fate says most."""
        leader = self.pick_leader()
        if leader is not None and self.rng.random() < 0.4:
            return [leader]
        alive = [node for node in self.nodes.values() if node.alive]
        return [self.rng.choice(alive)] if alive else []
