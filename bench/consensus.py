"""The consensus core: what one committed proposal costs three nodes, and what a thousand idle groups cost one."""

import random
import statistics
import time
from collections.abc import Callable

from bench.rounds import Line
from tests.raft.memory_log import MemoryLog, floor_context
from tidelog.raft import Committed, Configuration, EntryKind, HardState, Host, RaftSettings, Role

NODES = (1, 2, 3)
STEPS = 5_000
ROUNDS = 7
IDLE_GROUPS = 1_000
IDLE_SECONDS = 30


class _Trio:
    """Three hosts whose messages, writes and time pass at once. Disks are memory, so only the core is measured."""

    def __init__(self, groups: int) -> None:
        self.now_ms = 1_000
        self.logs: dict[int, dict[int, MemoryLog]] = {}
        self.hosts: dict[int, Host] = {}
        settings = RaftSettings()
        configuration = Configuration(voters=NODES)
        for node in NODES:
            host = Host(node, 1, settings, random.Random(node), self.now_ms)
            self.logs[node] = {}
            for group in range(groups):
                log = MemoryLog(floor_context=floor_context(0, configuration))
                self.logs[node][group] = log
                host.add(group, log, HardState(), [(0, configuration)], self.now_ms)
            self.hosts[node] = host
        self.answers: list[object] = []

    def settle(self) -> None:
        """Let everything happen that needs no time to pass."""
        busy = True
        while busy:
            busy = False
            for node, host in self.hosts.items():
                work = host.poll(self.now_ms)
                for group, effects in work.groups:
                    if effects.hard_state is not None:
                        host.hard_state_written(group, effects.hard_state, self.now_ms)
                        busy = True
                    self.answers += effects.answers
                for group in self._written(node):
                    host.written(group, self.now_ms)
                    busy = True
                for envelope in work.envelopes:
                    if envelope.messages:
                        busy = True
                    self.hosts[envelope.destination].receive(envelope, self.now_ms)

    def _written(self, node: int) -> list[int]:
        return [group for group, log in self.logs[node].items() if log.durable_index != log.last_index and log.sync()]

    def run(self, milliseconds: int) -> int:
        """Let time pass, from deadline to deadline; returns how many polls that took."""
        end_ms, polls = self.now_ms + milliseconds, 0
        while self.now_ms < end_ms:
            deadlines = [host.next_deadline_ms() for host in self.hosts.values()]
            self.now_ms = min([end_ms, *(max(self.now_ms, d) for d in deadlines if d is not None)])
            self.settle()
            polls += 1
        return polls

    def leader_of(self, group: int) -> Host | None:
        return next((host for host in self.hosts.values() if host.group(group).role is Role.LEADER), None)

    def elect(self, groups: int) -> None:
        while any(self.leader_of(group) is None for group in range(groups)):
            self.run(100)


class _Elected:
    """One group on three nodes, its leader elected, everything committed."""

    def __init__(self) -> None:
        trio = _Trio(1)
        trio.elect(1)
        trio.run(500)
        self.now_ms = trio.now_ms
        self.hosts = trio.hosts
        self.groups = {node: host.group(0) for node, host in trio.hosts.items()}
        self.logs = {node: logs[0] for node, logs in trio.logs.items()}
        self.leader = next(node for node, group in self.groups.items() if group.role is Role.LEADER)

    def commit_in_groups(self, batch: bytes) -> None:
        """Proposal, two appends, three writes, two acknowledgements, commit, and the followers learn of it."""
        now_ms, groups, logs = self.now_ms, self.groups, self.logs
        leader = groups[self.leader]
        leader.propose(EntryKind.DATA, [batch], now_ms + 1_000, now_ms)
        for message in leader.take_effects().messages:
            follower, log = groups[message.destination], logs[message.destination]
            follower.receive(message, now_ms)
            log.durable_index = log.last_index
            follower.written(now_ms)
            for answer in follower.take_effects().messages:
                leader.receive(answer, now_ms)
        logs[self.leader].durable_index = logs[self.leader].last_index
        leader.written(now_ms)
        effects = leader.take_effects()
        assert isinstance(effects.answers[0], Committed)
        for message in effects.messages:
            groups[message.destination].receive(message, now_ms)

    def commit_in_hosts(self, batch: bytes) -> None:
        """The same with the hosts around the groups: timers, envelopes, watching each other."""
        now_ms, hosts, logs = self.now_ms, self.hosts, self.logs
        leader = hosts[self.leader]
        leader.propose(0, EntryKind.DATA, [batch], now_ms + 1_000, now_ms)
        for envelope in leader.poll(now_ms).envelopes:
            follower, log = hosts[envelope.destination], logs[envelope.destination]
            follower.receive(envelope, now_ms)
            log.durable_index = log.last_index
            follower.written(0, now_ms)
            for answer in follower.poll(now_ms).envelopes:
                hosts[answer.destination].receive(answer, now_ms)
        logs[self.leader].durable_index = logs[self.leader].last_index
        leader.written(0, now_ms)
        work = leader.poll(now_ms)
        assert isinstance(work.groups[0][1].answers[0], Committed)
        for envelope in work.envelopes:
            hosts[envelope.destination].receive(envelope, now_ms)


def _cost_us(commit: Callable[[_Elected, bytes], None]) -> list[float]:
    costs: list[float] = []
    for _ in range(ROUNDS):
        trio = _Elected()
        begun = time.process_time()
        for _ in range(STEPS):
            commit(trio, b"x")
        costs.append((time.process_time() - begun) / STEPS * 1e6)
    return costs


def step() -> Line:
    costs = _cost_us(_Elected.commit_in_groups)
    cost, in_hosts = statistics.median(costs), statistics.median(_cost_us(_Elected.commit_in_hosts))
    note = f"{min(costs):.0f} to {max(costs):.0f}; {in_hosts:.0f} with the hosts around it"
    return Line("proposal to commit, three nodes in all", f"{cost:.0f} µs CPU", "< 60 µs", cost < 60, note)


def idle() -> Line:
    """CPU time of one host while simulated time passes, per simulated second."""
    trio = _Trio(IDLE_GROUPS)
    trio.elect(IDLE_GROUPS)
    trio.run(5_000)
    awake = sum(host.groups_awake for host in trio.hosts.values())
    begun = time.process_time()
    end_ms = trio.now_ms + IDLE_SECONDS * 1000
    while trio.now_ms < end_ms:
        deadlines = [d for d in (host.next_deadline_ms() for host in trio.hosts.values()) if d is not None]
        trio.now_ms = max(trio.now_ms, min(deadlines))
        for host in trio.hosts.values():
            for envelope in host.poll(trio.now_ms).envelopes:
                trio.hosts[envelope.destination].receive(envelope, trio.now_ms)
    share = (time.process_time() - begun) / IDLE_SECONDS / len(NODES)
    note = f"a node; {awake} of {IDLE_GROUPS * len(NODES)} replicas awake"
    return Line("1,000 idle groups", f"{share:.2%} of a core", "< 2 %", share < 0.02, note)
