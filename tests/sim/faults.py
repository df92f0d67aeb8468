"""What goes wrong. The fault methods of `Faults`, `Schemes` and `Members` are those that `mix.KINDS` names."""

from collections.abc import Callable

from .inode import BLOCK_BYTES
from .members import Members
from .mix import ROUGH, STORMY
from .network import CALM
from .node import SimNode
from .scheduler import MILLISECOND, SECOND
from .schemes import Schemes
from .stage import Stage


class Faults:
    """Single faults of nodes, disks, network and clocks, and what an administrator does."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._schemes = Schemes(stage)
        self._members = Members(stage)
        self._faults = {name: self._find(name) for name in stage.mix.faults}

    def _find(self, name: str) -> Callable[[], None]:
        for owner in (self, self._schemes, self._members):
            if hasattr(owner, name):
                return getattr(owner, name)
        raise AttributeError(f"no fault is called {name}")

    def strike(self) -> str:
        """One fault, drawn by its weight; returns its name. A scheme that is under way is seldom disturbed."""
        rng = self._stage.rng
        if self._schemes.under_way and rng.random() < 0.9:
            return "none"
        name = rng.choices(list(self._faults), list(self._stage.mix.faults.values()))[0]
        self._faults[name]()
        return name

    # ---- nodes

    def power_cut(self) -> None:
        for node in self._stage.pick_alive():
            node.cut_power()
            self._stage.start_later(node)

    def kill(self) -> None:
        for node in self._stage.pick_alive():
            node.kill()
            self._stage.start_later(node)

    def die_in_write(self) -> None:
        rng = self._stage.rng
        for node in self._stage.pick_alive():
            rng.choice((node.disk.crash_after, node.disk.kill_after))(rng.randint(0, 12))

    def all_die(self) -> None:
        for node in self._stage.nodes.values():
            if node.alive:
                self._stage.rng.choice((node.cut_power, node.kill))()
                self._stage.start_later(node)

    # ---- disks

    def disk_full(self) -> None:
        for node in self._stage.pick_alive():
            node.disk.space_bytes = node.disk.used_bytes + self._stage.rng.choice((0, 1, 4)) * BLOCK_BYTES

    def disk_freed(self) -> None:
        for node in self._stage.nodes.values():
            node.disk.space_bytes = None

    def sync_failure(self) -> None:
        for node in self._stage.pick_alive():
            node.disk.fail_next_sync()

    def slow_disk(self) -> None:
        rng = self._stage.rng
        for node in self._stage.pick_alive():
            node.disk.slowness = rng.choice((10, 100, 1000))
            until = rng.randint(0, 2 * SECOND)
            self._stage.later(until, lambda node=node: self._quicken(node), node, "has a quick disk again")

    def _quicken(self, node: SimNode) -> None:
        node.disk.slowness = 1

    # ---- network and clocks

    def isolate(self) -> None:
        for node in self._stage.pick_alive():
            self._stage.isolate(node)

    def split(self) -> None:
        numbers = list(self._stage.nodes)
        self._stage.rng.shuffle(numbers)
        middle = self._stage.rng.randint(1, len(numbers) - 1)
        self._stage.network.split(numbers[:middle], numbers[middle:])

    def one_way_cut(self) -> None:
        source, target = self._stage.rng.sample(list(self._stage.nodes), 2)
        self._stage.network.cut(source, target)

    def heal(self) -> None:
        self._stage.heal()

    def weather(self) -> None:
        self._stage.network.weather = self._stage.rng.choice((CALM, ROUGH, STORMY))

    def clock_jump(self) -> None:
        """Far enough to be noticed: less than half an election timeout at once would be a drift that leases exclude."""
        timeout = self._stage.mix.raft.election_timeout_ms * MILLISECOND
        for node in self._stage.pick_alive():
            node.clock.jump(self._stage.rng.choice((timeout, 3 * timeout, 3600 * SECOND)))

    # ---- administration

    def transfer(self) -> None:
        group = self._stage.pick_group()
        leader = self._stage.client.leader(group)
        if leader is not None:
            leader.transfer(group, self._stage.rng.choice(list(self._stage.nodes)))

    def trim(self) -> None:
        """Move a log start to somewhere in what is committed."""
        rng, group = self._stage.rng, self._stage.pick_group()
        leader = self._stage.client.leader(group)
        if leader is not None and self._stage.may_trim(group):
            start, end = leader.log(group).start_offset, leader.high_watermark(group)
            self._stage.client.move_log_start(leader, group, rng.choice((end, rng.randint(start, end))))
