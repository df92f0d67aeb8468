"""Several faults that together attack one rule, which single faults would seldom put to the test.

Each scheme begins with a leader and ends with the network healed.
"""

from collections.abc import Callable

from .scheduler import MILLISECOND
from .stage import Stage


class Schemes:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._ends = 0

    @property
    def under_way(self) -> bool:
        return self._stage.scheduler.now < self._ends

    def _end_after(self, least_ms: int, most_ms: int, end: Callable[[], None]) -> None:
        duration = self._stage.rng.randint(least_ms, most_ms) * MILLISECOND
        self._ends = self._stage.scheduler.now + duration
        self._stage.later(duration, end, "a scheme ends")

    def depose(self) -> None:
        """Cut a leader off until others have elected another: what it goes on to append is for nothing.

        Sometimes the network heals just when the new leader dies: then the old one stands for election with all that.
        """
        leader = self._stage.pick_leader()
        if leader is not None:
            self._stage.isolate(leader)
            self._end_after(500, 1500, self._stage.rng.choice((self._stage.heal, self._heal_and_kill_leader)))

    def _heal_and_kill_leader(self) -> None:
        self._stage.heal()
        leader = self._stage.pick_leader()
        if leader is not None:
            leader.cut_power()
            self._stage.start_later(leader)

    def usurp(self) -> None:
        """A leader hands over and hears no more: it must not take its old lease for a licence to answer reads."""
        stage, group = self._stage, self._stage.pick_group()
        leader = stage.client.leader(group)
        if leader is not None:
            leader.transfer(group, stage.rng.choice(list(stage.nodes)))
            for number in stage.nodes.keys() - {leader.number}:
                stage.network.cut(number, leader.number)
            self._end_after(100, 800, stage.heal)

    def leap(self) -> None:
        """A leader is cut off, and to all others it seems that much time has passed: yet its lease must hold."""
        stage, leader = self._stage, self._stage.pick_leader()
        if leader is not None:
            stage.isolate(leader)
            for node in stage.nodes.values():
                if node is not leader:
                    node.clock.jump(stage.rng.randint(1, 5) * stage.mix.raft.election_timeout_ms * MILLISECOND)
            self._end_after(300, 1000, stage.heal)

    def tempt(self) -> None:
        """A follower that has not heard of the leader for long asks for votes just when the leader is cut off.

        The others promised it patience, and one may have died and forgotten. Until their promises end, its lease holds.
        """
        stage, leader = self._stage, self._stage.pick_leader()
        others = [node for node in stage.nodes.values() if node is not leader]
        if leader is None:
            return
        deaf, forgetful = stage.rng.sample(others, 2)
        stage.network.isolate(deaf.number, [leader.number])
        stage.client.rest(700 * MILLISECOND)  # with a shorter log it would not get a vote anyway

        def tempted() -> None:
            stage.isolate(leader)
            if forgetful.alive and stage.rng.random() < 0.5:
                forgetful.kill()
                forgetful.start()

        stage.later(stage.rng.randint(400, 800) * MILLISECOND, tempted, forgetful, "is tempted")
        self._end_after(1000, 1500, stage.heal)

    def outrun(self) -> None:
        """Trim what a follower that is cut off still lacks: it must begin anew with what is left."""
        stage, group = self._stage, self._stage.pick_group()
        leader = stage.client.leader(group)
        others = [node for node in stage.nodes.values() if node is not leader and node.group(group) is not None]
        if leader is not None and others:
            stage.isolate(stage.rng.choice(others))
            self._end_after(500, 1500, lambda: self._trim_and_heal(group))

    def _trim_and_heal(self, group: int) -> None:
        leader = self._stage.client.leader(group)
        if leader is not None and self._stage.may_trim(group):
            self._stage.client.move_log_start(leader, group, leader.high_watermark(group))
        self._stage.later(50 * MILLISECOND, self._stage.heal, "the network heals")
