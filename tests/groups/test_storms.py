"""Members that come, go, die, hang and restart at random, on a journal that is slow and fails; and a coordinator that
moves. Invariants hold after every event:

* a generation has one protocol and one assignment, and never falls; when it is stable, it is so in the journal;
* the leader is a member, an instance id names one member, and nobody is both pending and a member;
* no deadline is left behind by a tick;
* when nothing is under way, memory is what the journal tells;

and at the end every request ever made has had exactly one answer, and those that live form a stable group.
A failing seed is in the test's name; run it alone to replay it.
"""

from random import Random
from typing import Any

import pytest

from tests.groups.harness import GROUP, NONE, Box, World, protocols
from tidelog.groups.rebalance import GroupState
from tidelog.wire.errors import ErrorCode

EVENTS = 600
CLIENTS_MAX = 8
ASSIGNORS = (("range",), ("range", "sticky"), ("sticky", "range"))
RETRY = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS}


class Client:
    """A consumer as they are: it joins, syncs, sends heartbeats, and starts over when told to."""

    def __init__(self, storm: "Storm", name: str, instance_id: str | None) -> None:
        self.storm = storm
        self.name = name
        self.instance_id = instance_id
        self.version = storm.rng.choice((3, 4, 8, 9))
        self.member_id = ""
        self.generation = -1
        self.joining: Box[Any] | None = None
        self.syncing: Box[Any] | None = None
        self.offers = storm.rng.choice(ASSIGNORS)
        self.fenced = False

    @property
    def settled(self) -> bool:
        return self.generation >= 0 and self.joining is None and self.syncing is None

    def step(self) -> None:
        """Do what is to be done next."""
        if self.fenced:
            return
        if self.joining is not None:
            if not self.joining.waits:
                self._joined()
        elif self.syncing is not None:
            if not self.syncing.waits:
                self._synced()
        elif self.generation < 0:
            self.join()
        else:
            self._heard(self.storm.world.heartbeat(self.member_id, self.generation, self.instance_id))

    def join(self) -> None:
        self.generation = -1
        self.syncing = None
        self.joining = self.storm.keep(
            self.storm.world.join(
                self.member_id,
                instance_id=self.instance_id,
                version=self.version,
                client_id=self.name,
                protocols=protocols(*self.offers),
                rebalance_timeout_ms=20_000,
            )
        )

    def _joined(self) -> None:
        assert self.joining is not None
        result, group, self.joining = self.joining.result, self.joining.stamp, None
        if result.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
        elif result.error is not NONE:
            self._heard(result.error)
        else:
            self.member_id, self.generation = result.member_id, result.generation
            self.storm.saw_generation(group, result)
            shares: dict[str, bytes] = {}
            if result.leader_id == self.member_id and not result.skip_assignment:
                token = self.storm.rng.randbytes(4)
                shares = {member.member_id: token for member in result.members}
            box = self.storm.world.sync(self.member_id, self.generation, shares, instance_id=self.instance_id)
            self.syncing = self.storm.keep(box)

    def _synced(self) -> None:
        assert self.syncing is not None
        result, group, self.syncing = self.syncing.result, self.syncing.stamp, None
        if result.error is NONE:
            self.storm.saw_assignment(group, self.generation, result.assignment)
        else:
            self._heard(result.error)

    def _heard(self, error: ErrorCode) -> None:
        if error is NONE:
            return
        self.generation = -1
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        else:
            assert error in RETRY | {ErrorCode.ILLEGAL_GENERATION, ErrorCode.INCONSISTENT_GROUP_PROTOCOL}, error


class Storm:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = World(seed, offsets_retention_check_ms=50_000, snapshot_append_bytes_max=200)
        self.world.hold()
        self.clients: list[Client] = []
        self.boxes: list[Box[Any]] = []
        self.names = 0
        self.generation = 0
        self.world.stamp = lambda: self.world.coordinator._groups.get(GROUP)  # the group that answered
        self.protocol_of: dict[tuple[object, int], tuple[Any, ...]] = {}
        self.assignment_of: dict[tuple[object, int], bytes] = {}

    def keep(self, box: Box[Any]) -> Box[Any]:
        self.boxes.append(box)
        return box

    def saw_generation(self, group: object, result: Any) -> None:
        protocol = (result.protocol_type, result.protocol_name)
        assert self.protocol_of.setdefault((group, result.generation), protocol) == protocol

    def saw_assignment(self, group: object, generation: int, assignment: bytes) -> None:
        assert self.assignment_of.setdefault((group, generation), assignment) == assignment

    # Events

    def client_comes(self) -> None:
        if len(self.clients) < CLIENTS_MAX:
            self.names += 1
            instance = f"instance-{self.rng.randrange(3)}" if self.rng.random() < 0.4 else None
            self.clients.append(Client(self, f"client-{self.names}", instance))

    def client_dies(self) -> None:
        if self.clients:
            self.clients.remove(self.rng.choice(self.clients))

    def client_leaves(self) -> None:
        if self.clients:
            client = self.rng.choice(self.clients)
            self.clients.remove(client)
            self.world.leave(client.member_id, client.instance_id if self.rng.random() < 0.5 else None)

    def client_changes_its_mind(self) -> None:
        if self.clients:
            client = self.rng.choice(self.clients)
            client.offers = self.rng.choice(ASSIGNORS)
            if client.joining is None:
                client.join()

    def client_commits(self) -> None:
        if self.clients:
            client = self.rng.choice(self.clients)
            offset = ("orders", self.rng.randrange(4), self.rng.randrange(1_000))
            self.keep(self.world.commit(offset, member_id=client.member_id, generation=client.generation))

    def clients_step(self) -> None:
        for client in self.rng.sample(self.clients, len(self.clients)):
            client.step()

    def time_passes(self) -> None:
        self.world.advance(self.rng.choice((1, 50, 500, 1_000, 2_500, 6_000)))

    def appends_end(self) -> None:
        self.world.release(count=self.rng.randrange(1, 4))

    def append_fails(self) -> None:
        self.world.release(self.rng.choice((ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT)), count=1)

    def snapshot(self) -> None:
        box = Box[ErrorCode]()
        if self.world.coordinator.write_snapshot(box):
            self.keep(box)

    def journal_is_trimmed(self) -> None:
        records = self.world.coordinator.snapshot_records()
        if records is not None:
            self.world.journal = records

    def coordinator_moves(self) -> None:
        self.world.coordinator.unload()
        self.world.restart()
        self.generation = 0

    def run(self) -> None:
        events = {
            self.client_comes: 6,
            self.client_dies: 2,
            self.client_leaves: 2,
            self.client_changes_its_mind: 1,
            self.client_commits: 6,
            self.clients_step: 40,
            self.time_passes: 25,
            self.appends_end: 20,
            self.append_fails: 1,
            self.snapshot: 1,
            self.journal_is_trimmed: 1,
            self.coordinator_moves: 0.3,
        }
        for event in self.rng.choices(list(events), list(events.values()), k=EVENTS):
            event()
            self.check()
        self.calm_down()
        self.world.coordinator.unload()
        assert all(not box.waits for box in self.boxes)

    def calm_down(self) -> None:
        """Everybody behaves, and nobody comes or goes: in the end there is one stable group of those that live."""
        for _ in range(200):
            self.clients_step()
            self.world.release()
            self.world.advance(500)
            self.check()
        living = [client for client in self.clients if client.settled and not client.fenced]
        assert set(self.world.member_ids()) == {client.member_id for client in living}
        # As in Kafka, the journal knows only the protocol that was chosen. After a fail-over members are taken to
        # support no other until they rejoin, and who does not support it stays outside.
        chosen = self.world.coordinator.describe(GROUP).protocol_name
        outside = [client for client in self.clients if not client.settled and not client.fenced]
        assert not any(chosen in client.offers for client in outside)
        assert not outside or living
        assert not living or self.world.state == "Stable"
        self.world.check_journal()

    # Invariants

    def check(self) -> None:
        world = self.world
        deadline_ms = world.coordinator.next_deadline_ms()
        assert deadline_ms is not None
        if not world.held:
            world.check_journal()
        group = world.coordinator._groups.get(GROUP)
        if group is None:
            self.generation = 0
            return
        roster, rebalance = group.roster, group.rebalance
        assert rebalance.generation >= self.generation
        self.generation = rebalance.generation
        members = [member.member_id for member in roster]
        instances = [member.instance_id for member in roster if member.instance_id is not None]
        assert len(set(instances)) == len(instances) == roster.static_count
        assert not roster.pending.keys() & set(members)
        assert (roster.leader_id in members) if members else roster.leader_id is None
        assert (rebalance.state is GroupState.EMPTY) <= (not members)
        if rebalance.state is GroupState.STABLE and not world.held:
            assert group.durable is not None
            assert rebalance.image().members == group.durable.members
        waits_to_sync = any(member.sync_reply is not None for member in roster)
        assert not waits_to_sync or rebalance.state is GroupState.COMPLETING_REBALANCE


@pytest.mark.parametrize("seed", range(40))
def test_storm_breaks_no_rule(seed: int):
    Storm(seed).run()
