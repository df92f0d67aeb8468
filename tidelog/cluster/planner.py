"""What the controller should do next, so that every stream is held and led by the nodes that shall. Pure.

    planner.plan(state, health, group0, now_ms) -> actions      again and again; each call is short

Of each stream the state says what shall be (`replicas`) and what is (`voters`, `learners`, `leader`, as reported).
A step is asked for, and the next one follows from what is reported then; nothing is assumed to have worked:

    a lost disk        out of the group → readmitted → learner → voter
    a dead node        after a grace time another node stands in its place in `replicas`
    a draining node    the same at once, a few streams at a time
    replicas           not in the group → learner → voter, in one joint change with the removal of whom they replace
    a leader           goes home: to the first replica, or the first one in the topic's preferred data centre

Rules that keep it from doing harm:

* nothing is asked that would leave a group without a majority of live voters whose disks are whole, before or after
  (after, an operator may `force`: the group then waits for nodes to come back);
* a leader is never voted out: it hands over first;
* what is refused is asked again later and later (RETRY_MS_MIN … RETRY_MS_MAX). A leader that does not stay at home is
  sent there later and later too, until it has stayed for as long as it was last waited;
* a call returns at most `actions_max` actions, those of the oldest trouble first.

The cost: a look at every topic; at the partitions only of topics that changed, or when nodes went or came.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidelog.cluster.actions import Action, ChangeMembers, Health, Submit, TransferLeader
from tidelog.cluster.balancing import balance
from tidelog.cluster.commands import AssignReplicas, ReadmitReplicas
from tidelog.cluster.placement import loads, replacement, usable
from tidelog.cluster.state import CLUSTER_STREAM, DATA_ROLE, ClusterState, Node, Partition, Topic

__all__ = [
    "Action",
    "ChangeMembers",
    "Health",
    "Planner",
    "PlannerSettings",
    "Submit",
    "TransferLeader",
    "balance",
]

RETRY_MS_MIN = 500
RETRY_MS_MAX = 10_000
HOME_DELAYS_MAX = 32
"""A leader that does not stay at home is waited for at most this many times `leader_balance_ms`."""
HAND_OVERS_MAX = 3
"""So often is a leader that is to leave its group asked to hand over first, before the others change without it."""
ROWS_MAX = 500
"""Of one command."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    replace_after_ms: int = 300_000
    """How long a node must be dead before others take its place."""
    stable_ms: int = 2_000
    """How long a node must be alive before it is given a leader or a replica, and how long after a lost disk was
    noticed the group's report is believed that it is no member."""
    leader_balance_ms: int = 5_000
    """A stream's leader is moved home at most this often."""
    actions_max: int = 64
    moves_max: int = 16
    """Streams that are being moved off dead or draining nodes at a time."""


class _World:
    """The nodes, as this round sees them."""

    def __init__(self, state: ClusterState, health: Health, settings: PlannerSettings, now_ms: int) -> None:
        self.nodes: Sequence[Node] = list(state.nodes.values())
        self.alive = frozenset(health.alive)
        self.stable = frozenset(n for n, since in health.alive.items() if now_ms - since >= settings.stable_ms)
        self.lost = frozenset(n for n, since in health.dead.items() if now_ms - since >= settings.replace_after_ms)
        self.leaving = frozenset(n.node for n in self.nodes if n.draining or DATA_ROLE not in n.roles)
        self.racks: Mapping[int, str | None] = {node.node: node.rack for node in self.nodes}
        self.unfit = self.lost | self.leaving
        self.spare = frozenset(node.node for node in usable(self.nodes)) & self.stable


@dataclass(slots=True)
class _Asked:
    """Something that a stream needs."""

    action: Action
    since_ms: int
    next_ms: int
    delay_ms: int = 0
    times: int = 0
    home_since_ms: int = -1
    """Of a leader: since when it is where it was sent; -1: it is not."""

    def asked(self, now_ms: int, delay_ms_min: int, delay_ms_max: int) -> None:
        self.delay_ms = min(max(self.delay_ms * 2, delay_ms_min), delay_ms_max)
        self.next_ms = now_ms + self.delay_ms
        self.times += 1


_Key = tuple[int, str]
MEMBERS, READMIT, REPLICAS, LEADER, LEAVE = "members", "readmit", "replicas", "leader", "leave"
"""LEADER moves a leader home, which can wait; LEAVE moves one off a node that it has to leave."""


class Planner:
    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self._asked: dict[_Key, _Asked] = {}
        self._forced: dict[int, tuple[int, ...]] = {}
        self._known_world: object = None
        self._known_topics: dict[str, tuple[Topic, list[int]]] = {}
        """Topics as they were last looked at, with the numbers of the partitions that needed something."""

    def plan(
        self,
        state: ClusterState,
        health: Health,
        group0: tuple[Collection[int], Collection[int]],
        now_ms: int,
        controller: int = -1,
    ) -> list[Action]:
        """`group0`: voters and learners of the cluster's own group, which `controller` leads."""
        world = _World(state, health, self._settings, now_ms)
        self._forget_forced(state, group0[0])
        needy = self._needy(state, world)
        wishes = [
            *self._cluster_wishes(state, world, group0, controller),
            *(wish for topic, partition in needy for wish in self._wishes(topic, partition, world)),
        ]
        moves = self._moves(state, world, needy)
        due = self._due([*wishes, *moves], state, now_ms)
        return self._chosen(due, now_ms)

    def force(self, stream: int, replicas: Sequence[int]) -> None:
        """An operator wants the stream to be held by these, even if no majority of them lives."""
        self._forced[stream] = tuple(replicas)

    def _forget_forced(self, state: ClusterState, group0: Collection[int]) -> None:
        """What has come to pass: another change to the same nodes, later, is not what the operator meant."""
        for stream, wanted in list(self._forced.items()):
            found = state.partition_of(stream)
            voters = group0 if found is None else found[0].partitions[found[1]].voters
            deleted = found is None and stream != CLUSTER_STREAM
            if deleted or set(voters) == set(wanted):
                del self._forced[stream]

    # Which partitions to look at

    def _needy(self, state: ClusterState, world: _World) -> list[tuple[Topic, Partition]]:
        """Those for which something can be done. It is the same as long as neither topic nor nodes have changed."""
        nodes = (world.alive, world.stable, world.unfit, world.spare, world.racks)
        if nodes != self._known_world:
            self._known_world = nodes
            self._known_topics.clear()
        known, fresh = self._known_topics, {}
        needy: list[tuple[Topic, Partition]] = []
        for name, topic in state.topics.items():
            entry = known.get(name)
            if entry is None or entry[0] is not topic:
                rack = topic.configs.get("leader.rack")
                unsettled = [n for n, p in enumerate(topic.partitions) if not _settled(p, rack, world)]
                entry = topic, [n for n in unsettled if self._in_need(topic, topic.partitions[n], world)]
            fresh[name] = entry
            if entry[1]:
                needy += [(topic, topic.partitions[number]) for number in entry[1]]
        self._known_topics = fresh
        return needy

    def _in_need(self, topic: Topic, partition: Partition, world: _World) -> bool:
        return any(self._wishes(topic, partition, world)) or bool(_to_replace(partition, world))

    # What they need

    def _wishes(self, topic: Topic, partition: Partition, world: _World) -> Iterator[tuple[_Key, Action]]:
        """The first that is not being waited for is asked."""
        stream, absent = partition.stream, partition.absent
        let_go = [node for node in absent if node not in partition.members]
        if let_go:
            yield (stream, READMIT), Submit(ReadmitReplicas([(stream, node) for node in let_go]))
        if not _able_to_change(partition, world):
            return  # nobody to ask, or nobody who could; another leader will report
        target = _target(partition, topic.configs.get("leader.rack"), world)
        if target is not None and partition.leader not in partition.replicas:
            yield (stream, LEAVE), TransferLeader(stream, target)
            asked = self._asked.get((stream, LEAVE))
            if asked is None or asked.times < HAND_OVERS_MAX:
                return
        change = _change(
            stream,
            partition.voters,
            partition.learners,
            partition.replicas,
            (),
            absent,
            partition.leader,
            world.alive,
            force=self._forced.get(stream) == partition.replicas,
        )
        if change is not None:
            yield (stream, MEMBERS), change
        if target is not None:
            has_to = partition.leader in world.leaving or partition.leader not in partition.replicas
            yield (stream, LEAVE if has_to else LEADER), TransferLeader(stream, target)

    def _cluster_wishes(
        self, state: ClusterState, world: _World, group0: tuple[Collection[int], Collection[int]], controller: int
    ) -> Iterator[tuple[_Key, Action]]:
        voters, learners = tuple(group0[0]), tuple(group0[1])
        wanted = state.config_nodes or voters
        let_go = [node for node in state.absent if node not in voters and node not in learners]
        if let_go:
            yield (CLUSTER_STREAM, READMIT), Submit(ReadmitReplicas([(CLUSTER_STREAM, node) for node in let_go]))
        followers = tuple(node for node in state.nodes if node not in wanted)
        force = self._forced.get(CLUSTER_STREAM) == wanted
        change = _change(
            CLUSTER_STREAM, voters, learners, wanted, followers, state.absent, controller, world.alive, force=force
        )
        if change is not None:
            yield (CLUSTER_STREAM, MEMBERS), change
        fit = [n for n in wanted if n in voters and n in world.stable and n not in state.absent]
        if controller >= 0 and controller not in wanted and fit:
            yield (CLUSTER_STREAM, LEAVE), TransferLeader(CLUSTER_STREAM, fit[0])

    def _moves(
        self, state: ClusterState, world: _World, needy: Sequence[tuple[Topic, Partition]]
    ) -> Iterator[tuple[_Key, Action]]:
        """Other nodes in the places of dead and draining ones, as many streams at a time as may move."""
        if not world.unfit:
            return
        room = self._settings.moves_max - sum(_moving(partition, world) for _, partition in needy)
        load: dict[int, int] | None = None
        for topic, partition in sorted(needy, key=lambda row: (world.lost.isdisjoint(row[1].replicas), row[1].stream)):
            if room <= 0:
                return
            leaving = _to_replace(partition, world)
            if not leaving:
                continue
            if load is None:
                load = loads(p for each in state.topics.values() for p in each.partitions)[0]
            replicas = list(partition.replicas)
            for node in leaving:
                rack = topic.configs.get("leader.rack") or None
                other = replacement(world.nodes, load, replicas, node, world.stable, rack)
                if other is not None:
                    replicas[replicas.index(node)] = other
                    load[other] = load.get(other, 0) + 1
            if tuple(replicas) != partition.replicas:
                room -= 1
                row = (partition.stream, partition.replicas, tuple(replicas))
                yield (partition.stream, REPLICAS), Submit(AssignReplicas([row]))

    # When to ask

    def _due(
        self, wishes: Iterable[tuple[_Key, Action]], state: ClusterState, now_ms: int
    ) -> list[tuple[_Key, _Asked]]:
        """What is to be asked now, one thing of a stream, oldest first. Forgets what is not needed any more."""
        asked, kept = self._asked, self._kept_leaders(state, now_ms)
        due: dict[int, tuple[_Key, _Asked]] = {}
        for key, action in wishes:
            entry = asked.get(key)
            if entry is None:
                wait_ms = self._settings.stable_ms if key[1] == READMIT else 0
                entry = _Asked(action, now_ms, now_ms + wait_ms)
            elif entry.action != action:
                entry.action = action
                if key[1] in (MEMBERS, REPLICAS):  # a step further
                    entry.next_ms, entry.delay_ms = now_ms, 0
            kept[key] = entry
            if entry.next_ms <= now_ms:
                due.setdefault(key[0], (key, entry))
        self._asked = kept
        return sorted(due.values(), key=lambda row: (row[1].since_ms, row[0]))

    def _kept_leaders(self, state: ClusterState, now_ms: int) -> dict[_Key, _Asked]:
        """Leaders that were sent home and have not been there for long."""
        kept: dict[_Key, _Asked] = {}
        for key, entry in self._asked.items():
            found = state.partition_of(key[0])
            if key[1] != LEADER or found is None or not isinstance(entry.action, TransferLeader):
                continue
            if found[0].partitions[found[1]].leader != entry.action.target:
                entry.home_since_ms = -1
            elif entry.home_since_ms < 0:
                entry.home_since_ms = now_ms
            elif now_ms - entry.home_since_ms >= entry.delay_ms:
                continue
            kept[key] = entry
        return kept

    def _chosen(self, due: Sequence[tuple[_Key, _Asked]], now_ms: int) -> list[Action]:
        """As many as may be, rows of one kind in one command."""
        actions: list[Action] = []
        readmit: list[tuple[int, int]] = []
        assign: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        for key, entry in due:
            full = len(actions) + bool(readmit) + bool(assign) >= self._settings.actions_max
            match entry.action:
                case Submit(ReadmitReplicas(rows)) if (readmit or not full) and len(readmit) + len(rows) <= ROWS_MAX:
                    readmit += rows
                case Submit(AssignReplicas(rows)) if assign or not full:
                    assign += rows
                case ChangeMembers() | TransferLeader() if not full:
                    actions.append(entry.action)
                case _:
                    continue  # its turn comes
            if key[1] == LEADER:
                balance_ms = self._settings.leader_balance_ms
                entry.asked(now_ms, balance_ms, balance_ms * HOME_DELAYS_MAX)
            else:
                entry.asked(now_ms, RETRY_MS_MIN, RETRY_MS_MAX)
        submits: list[Action] = []
        if readmit:
            submits.append(Submit(ReadmitReplicas(readmit)))
        if assign:
            submits.append(Submit(AssignReplicas(assign)))
        return submits + actions


def _settled(partition: Partition, leader_rack: str | None, world: _World) -> bool:
    """Whether nothing is to be done for it, whoever is alive. Nothing can be before its leader reported."""
    replicas = partition.replicas
    return partition.term < 0 or (
        not partition.absent
        and not partition.learners
        and len(partition.voters) == len(replicas)
        and partition.leader == _home(partition, leader_rack, world)
        and world.unfit.isdisjoint(replicas)
        and set(partition.voters) == set(replicas)
    )


def _home(partition: Partition, leader_rack: str | None, world: _World) -> int:
    """Who shall lead."""
    home = -1
    for node in partition.replicas:
        if node not in world.leaving:
            if not leader_rack or world.racks.get(node) == leader_rack:
                return node
            home = node if home < 0 else home
    return home if home >= 0 else partition.replicas[0]


def _target(partition: Partition, leader_rack: str | None, world: _World) -> int | None:
    """Who should be asked to lead now; None: the leader should stay."""
    leader, replicas = partition.leader, partition.replicas
    fit = [
        node
        for node in replicas
        if node in partition.voters
        and node in world.stable
        and node not in world.leaving
        and node not in partition.absent
        and node != leader
    ]
    home = _home(partition, leader_rack, world)
    in_rack = [node for node in fit if leader_rack and world.racks.get(node) == leader_rack]
    if leader == home and leader not in world.leaving:
        return None
    if home in fit:
        return home
    if in_rack and world.racks.get(leader) != leader_rack:
        return in_rack[0]
    if fit and (leader not in replicas or leader in world.leaving):
        return fit[0]
    return None


def _change(
    stream: int,
    voters: tuple[int, ...],
    learners: tuple[int, ...],
    replicas: Sequence[int],
    followers: Sequence[int],
    absent: Collection[int],
    leader: int,
    alive: Collection[int],
    *,
    force: bool = False,
) -> ChangeMembers | None:
    """The next step towards a group whose voters are `replicas` and whose learners are `followers`."""
    members = voters + learners
    able = [node for node in voters if node in alive and node not in absent]
    if not _majority(voters, able):
        return None
    gone = tuple(node for node in members if node in absent)
    if gone:
        return ChangeMembers(stream, remove=gone)  # the able are a majority of the rest all the more

    missing = tuple(n for n in (*replicas, *followers) if n not in members and n in alive and n not in absent)
    stale = tuple(node for node in learners if node not in replicas and node not in followers)
    if missing or stale:
        return ChangeMembers(stream, add_learners=missing, remove=stale)

    promote = tuple(node for node in replicas if node in learners and node in alive)
    if not promote and any(node not in voters for node in replicas):
        return None  # who is to replace the others is not there
    surplus = max(0, len(voters) + len(promote) - len(replicas))
    outgoing = [node for node in voters if node not in replicas and node != leader]
    outgoing = sorted(outgoing, key=lambda node: node in alive)[:surplus]  # the dead first
    after = [node for node in voters if node not in outgoing] + list(promote)
    safe = _majority(after, [*able, *promote])
    if not (promote or outgoing) or not (safe or force):
        return None
    demote = tuple(node for node in outgoing if node in followers)
    remove = tuple(node for node in outgoing if node not in followers)
    return ChangeMembers(stream, add_learners=demote, promote=promote, remove=remove, force=not safe)


def _majority(voters: Sequence[int], able: Collection[int]) -> bool:
    return 2 * sum(node in able for node in voters) > len(voters)


def _able_to_change(partition: Partition, world: _World) -> bool:
    able = [node for node in partition.voters if node in world.alive and node not in partition.absent]
    return partition.leader in able and _majority(partition.voters, able)


def _moving(partition: Partition, world: _World) -> bool:
    """Whether a newcomer is on its way into the group. One that cannot get there takes no one's place."""
    newcomers = [node for node in partition.replicas if node not in partition.voters]
    return bool(newcomers) and world.alive.issuperset(newcomers) and _able_to_change(partition, world)


def _to_replace(partition: Partition, world: _World) -> list[int]:
    """The replicas that others should stand for, if the group can change at all."""
    if world.unfit.isdisjoint(partition.replicas) or world.spare.issubset(partition.replicas):
        return []
    if not _able_to_change(partition, world):
        return []
    lost = [node for node in partition.replicas if node in world.lost]
    if lost or any(node not in partition.voters for node in partition.replicas):
        return lost
    return [node for node in partition.replicas if node in world.leaving]
