"""A seed's world from beginning to end.

storm      clients write and read while faults strike
calm       everything heals and restarts; each group must soon have a leader, take a write, and agree
reckoning  the power fails everywhere; what comes back must again agree, and hold all that was ever acknowledged
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tidelog.raft import Configuration, Envelope

from .client import Client, Tally
from .faults import Faults
from .history import Violation, check
from .invariants import Invariants
from .mix import mix_of
from .network import CALM, Network
from .node import SimNode
from .scheduler import MILLISECOND, SECOND, Scheduler
from .stage import Stage
from .trace import describe_event

PATIENCE = 20 * SECOND  # for a healthy cluster to elect, write and agree
EVENTS_MAX = 100_000  # no seed comes near


@dataclass(slots=True)
class Story:
    """What happened, in numbers. Two runs of a seed have equal stories."""

    mix: str
    events: int = 0
    deaths: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    clients: Tally = field(default_factory=Tally)
    committed: int = 0
    terms: int = 0

    @property
    def acknowledged(self) -> int:
        return self.clients.acknowledged


class World:
    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.mix = mix = mix_of(seed)
        self.story = Story(mix.kind)
        self._trace = trace
        self._scheduler = Scheduler()
        self._rng = Random(f"{seed} world")
        self._invariants = Invariants()
        self._network = Network(self._scheduler, Random(f"{seed} network"), self._deliver)
        self._nodes = {number: self._make_node(number, seed) for number in range(1, mix.nodes + 1)}
        self._groups = range(1, mix.groups + 1)
        self._client = Client(
            self._nodes, self._groups, mix.cluster_group, self._scheduler, self._invariants, Random(f"{seed} client")
        )
        self.story.clients = self._client.tally
        rng = Random(f"{seed} faults")
        self._stage = Stage(mix, self._nodes, self._scheduler, self._network, self._client, self._invariants, rng)
        self._faults = Faults(self._stage)

    def _make_node(self, number: int, seed: int) -> SimNode:
        rng = Random(f"{seed} node {number}")
        return SimNode(number, self.mix, self._scheduler, self._network, self._invariants, rng, self._node_died)

    @property
    def now_text(self) -> str:
        return f"{self._scheduler.now / SECOND:.6f} s"

    def run(self) -> None:
        self._begin()
        self._run_until(lambda: self._scheduler.now >= self.mix.storm, self.mix.storm + SECOND, "the storm ends")
        self._stage.stormy = False
        self._calm()
        self._reckon()

    # ---- the storm

    def _begin(self) -> None:
        self._network.weather = self.mix.weather
        first = Configuration.of(range(1, self.mix.voters + 1))
        for group in filter(self.mix.is_founded, self._groups):
            founder = self._rng.randint(1, self.mix.voters)
            self._nodes[founder].founds.add(group)
            self._invariants.founded(group, founder, first)
        for node in self._nodes.values():
            if node.number <= self.mix.voters:
                for group in self._groups:
                    node.join(group, (0, first))
            node.start()
        for group in self._groups:
            if not self.mix.is_founded(group):
                self._nodes[self._rng.randint(1, self.mix.voters)].campaign(group)
        self._plan(self.mix.proposal_interval, self._client.act, "client acts")
        if self.mix.faults:
            self._plan(self.mix.fault_interval, self._strike, "a fault strikes")

    def _plan(self, interval: int, action: Callable[[], None], what: str) -> None:
        """Let something happen again and again while the storm lasts."""

        def happen() -> None:
            action()
            self._plan(interval, action, what)

        self._stage.later(int(self._rng.expovariate(1.0) * interval), happen, what)

    def _strike(self) -> None:
        name = self._faults.strike()
        self.story.faults[name] = self.story.faults.get(name, 0) + 1
        self._say(f"fault: {name}")

    def _deliver(self, source: int, target: int, message: object) -> None:
        assert isinstance(message, Envelope)
        self._nodes[target].receive(message)

    def _node_died(self, node: SimNode, why: str) -> None:
        self.story.deaths += 1
        self._say(f"{node} {why}")
        self._stage.start_later(node)

    # ---- the calm

    def _calm(self) -> None:
        self._say("--- calm")
        self._network.heal()
        self._network.weather = CALM
        for node in self._nodes.values():
            node.disk.slowness = 1
            node.disk.space_bytes = None
            node.disk.disarm()
        self._agree_on_a_new_write()
        self._run_until(self._all_sleep, PATIENCE, "all groups sleep")

    def _agree_on_a_new_write(self) -> None:
        for group in self._groups:
            self._commit_a_write(group)
        self._run_until(self._all_agree, PATIENCE, "all replicas agree")

    def _commit_a_write(self, group: int) -> None:
        before = self._client.acknowledged(group)
        for node in self._nodes.values():
            if not node.alive:
                node.start()
        asked = -SECOND

        def committed() -> bool:
            nonlocal asked
            leader = self._client.leader(group)
            if leader is not None and self._scheduler.now - asked > 300 * MILLISECOND:
                asked = self._scheduler.now
                self._client.write(leader, group)
            return self._client.acknowledged(group) > before

        self._run_until(committed, PATIENCE, f"group {group} commits a write")

    def _all_agree(self) -> bool:
        return all(self._agrees(group) for group in self._groups)

    def _agrees(self, group: int) -> bool:
        leader = self._client.leader(group)
        if leader is None:
            return False
        known = leader.host.group(group)
        end = leader.log(group).last_index
        if known.configuration.joint or leader.number not in known.configuration.voters:
            return False
        return all(
            (theirs := self._nodes[number].group(group)) is not None
            and theirs.commit == end
            and self._nodes[number].has_turned
            and self._nodes[number].log(group).last_index == end
            for number in known.configuration.members
        )

    def _all_sleep(self) -> bool:
        return all(
            (leader := self._client.leader(group)) is not None and leader.host.group(group).asleep
            for group in self._groups
        )

    # ---- the reckoning

    def _reckon(self) -> None:
        self._say("--- reckoning")
        self._check_all_data()
        for node in self._nodes.values():
            if node.alive:
                node.cut_power()
        self._agree_on_a_new_write()
        self._check_all_data()
        histories = [self._invariants.history(group) for group in self._groups]
        self.story.committed = sum(history.commit_index for history in histories)
        self.story.terms = max(max(history.leaders, default=0) for history in histories)

    def _check_all_data(self) -> None:
        """Every member of every group serves all that is committed, from its log start to its end."""
        for group in self._groups:
            leader = self._client.leader(group)
            assert leader is not None, "they have just agreed"
            for number in leader.host.group(group).configuration.members:
                self._check_served(self._nodes[number], group)
            self._invariants.check_producers(group)
            if leader.cluster_log is not None and group == self.mix.cluster_group:
                self._invariants.check_replay(group, leader.cluster_log.machine)

    def _check_served(self, node: SimNode, group: int) -> None:
        log, commit = node.log(group), node.host.group(group).commit
        history = self._invariants.history(group)
        check(commit == history.commit_index, "all replicas agree", f"{node} at {commit} of {history.commit_index}")
        offset = log.start_offset
        check(offset == history.log_start, "all replicas agree", f"{node} of group {group} begins at {offset}")
        while offset < history.high_watermark:
            offset = self._invariants.check_content(group, commit, log, offset)
        check(offset == log.next_offset, "all replicas agree", f"{node} of group {group} ends at {log.next_offset}")

    # ---- events

    def _run_until(self, done: Callable[[], bool], patience: int, what: str) -> None:
        limit = self._scheduler.now + patience
        while not done():
            event = self._scheduler.next()
            if event is None or event.time > limit or self._scheduler.events_run > EVENTS_MAX:
                raise Violation("a healthy cluster makes progress", f"waited until {self.now_text}, but not: {what}")
            if self._trace is not None:
                self._say(describe_event(event))
            action = event.action
            assert action is not None
            event.cancel()  # it has happened
            action()
            self.story.events = self._scheduler.events_run

    def _say(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self._scheduler.now / SECOND:10.6f}  {text}")
