"""What goes wrong, and for whom. Each scenario is one function over a stage: a cluster that works, under load.

The function does the harm and, where a majority is left that can serve, expects that it serves (`Stage.served`) while
the harm lasts. Afterwards the runner heals everything, expects service again, and has the history checked.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .asking import AskError
from .cluster import Cluster, ClusterFailed, NodeProcess
from .workload import Load

SERVICE_TIMEOUT_S = 20.0  # generous: many such clusters may share two cores
CATCH_UP_TIMEOUT_S = 60.0
ENDING_S = 5.0
POINT_TIMEOUT_S = 30.0  # for a victim to come by its point
RECORDS = 5  # acknowledged on every partition before a cluster counts as serving


@dataclass(slots=True)
class Stage:
    cluster: Cluster
    load: Load
    rng: random.Random
    target: str
    trims: int = 0

    def note(self, text: str) -> None:
        self.load.history.notes.append((time.monotonic(), text))

    def victims(self) -> list[NodeProcess]:
        """The nodes that `target` means now."""
        cluster = self.cluster
        if self.target == "all":
            return list(cluster.nodes.values())
        if self.target == "config leader":
            return [cluster.nodes[cluster.controller()]]
        leader = cluster.leader(self.load.topic)
        if self.target == "leader":
            return [cluster.nodes[leader]]
        assert self.target == "follower", self.target
        return [cluster.nodes[self.rng.choice([number for number in cluster.nodes if number != leader])]]

    def served(self, what: str, timeout_s: float = SERVICE_TIMEOUT_S) -> None:
        """Records are acknowledged on every partition, though harm was done."""
        self.note(f"{what}: waiting for service")
        self.load.wait_acknowledged(RECORDS, timeout_s)
        self.note(f"{what}: served")

    def hold(self, low_s: float, high_s: float) -> None:
        time.sleep(self.rng.uniform(low_s, high_s))

    def arm(self, node: NodeProcess, point: str, action: str) -> None:
        """A node that is to end there may do so before it answers."""
        self.note(f"{point}={action} at {node}")
        try:
            self.cluster.admin("fault", node=node.number, point=point, action=action)
        except AskError:
            if not node.wait_until_ended(ENDING_S):
                raise

    def bring_to(self, point: str, provoke: "Provoke", node: NodeProcess, is_there: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + POINT_TIMEOUT_S
        while not is_there():
            if time.monotonic() > deadline_s:
                raise ClusterFailed(f"{node} did not come by {point} in {POINT_TIMEOUT_S} s")
            provoke(self, node)
        self.note(f"{node} has come by {point}")

    def has_come_by(self, point: str, node: NodeProcess) -> bool:
        try:
            return node.has_ended or self.cluster.admin("fault", node=node.number)["hits"][point] > 0
        except AskError:
            return node.has_ended

    def disarm(self) -> None:
        for node in self.cluster.answering():
            try:
                self.cluster.admin("fault", node=node.number, clear=True)
            except AskError:
                self.note(f"{node} does not answer any more")

    def transfer(self, partition: int, target: int) -> None:
        self.note(f"partition {partition} to be led by {target}")
        self.cluster.admin("transfer-leader", topic=self.load.topic, partition=partition, target=target)

    def reassign_one(self, node: int) -> None:
        """A partition that `node` does not hold is given to it; if it holds all, one is taken from it."""
        streams = self.cluster.admin("streams", topic=self.load.topic)["streams"]
        stream = next((stream for stream in streams if node not in stream["replicas"]), streams[0])
        before = list(stream["replicas"])
        outside = [number for number in self.cluster.nodes if number not in before]
        joins, leaves = (node, self.rng.choice(before)) if node in outside else (self.rng.choice(outside), node)
        replicas = [joins if number == leaves else number for number in before]
        self.note(f"reassign {stream['partition']}: {before} -> {replicas}")
        try:
            self.cluster.admin("reassign", topic=self.load.topic, partition=stream["partition"], replicas=replicas)
        except AskError as error:
            self.note(f"not reassigned: {error}")

    def is_free_of(self, node: int) -> bool:
        """No partition is held by the node, or is meant to be."""
        try:
            streams = self.cluster.admin("streams")["streams"]
        except (AskError, IndexError):
            return False
        return not any(node in stream[key] for stream in streams for key in ("replicas", "voters", "learners"))

    def is_removed(self, node: int) -> bool:
        try:
            self.cluster.ask_admin("remove-node", node=node, force=False)
        except AskError as error:
            self.note(f"not removed yet: {error}")
            return False
        return True

    def voters_back(self) -> None:
        """All replicas that shall hold a partition are voters, of every topic, as every node knows it."""

        def complete() -> bool:
            nodes = self.cluster.answering()
            try:
                answers = [self.cluster.admin("streams", node=node.number) for node in nodes]
            except AskError:
                return False
            return bool(answers) and all(
                sorted(stream["voters"]) == sorted(stream["replicas"]) and not stream["absent"]
                for answer in answers
                for stream in answer["streams"]
            )

        self.note("waiting for all voters")
        self.cluster.wait_for(complete, "every replica a voter", CATCH_UP_TIMEOUT_S)
        self.note("all voters are there")


Provoke = Callable[[Stage, NodeProcess], None]
"""Makes the node do something; again and again, until it has done what is wanted."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    target: str
    act: Callable[[Stage], None]
    short: bool = False  # part of `make test`
    nodes: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    small_disks: bool = False
    faults: bool = False  # fault points can be set
    ends: bool = False  # nodes may end by themselves
    value_bytes: int = 1_000  # enough that appends soon take the short way to the disk

    @property
    def title(self) -> str:
        return f"{self.name} / {self.target}"


# --- processes -------------------------------------------------------------------------------------------------------


def _kill(stage: Stage) -> None:
    victims = stage.victims()
    for node in victims:
        stage.note(f"kill -9 {node}")
        node.kill()
    if len(victims) == 1:
        stage.served("one killed")
    else:
        stage.hold(0.0, 0.5)


def _kill_again_and_again(stage: Stage) -> None:
    for _ in range(4):
        (node,) = stage.victims()
        stage.note(f"kill -9 {node}")
        node.kill()
        stage.served("one killed")
        stage.cluster.heal()
        stage.cluster.wait_ready()


def _stop(stage: Stage) -> None:
    victims = stage.victims()
    for node in victims:
        stage.note(f"SIGSTOP {node}")
        node.stop()
    stage.hold(0.5, 4.0)
    if len(victims) == 1:
        stage.served("one stopped")
    for node in victims:
        stage.note(f"SIGCONT {node}")
        node.go_on()


def _terminate(stage: Stage) -> None:
    victims = stage.victims()
    for node in victims:
        stage.note(f"SIGTERM {node}")
        node.terminate()
    if len(victims) == 1:
        stage.served("one terminated")


def _roll(stage: Stage) -> None:
    for node in stage.cluster.nodes.values():
        stage.note(f"SIGTERM {node}")
        node.terminate()
        stage.served(f"without {node}")
        node.start()
        node.wait_ready(time.monotonic() + SERVICE_TIMEOUT_S)
        stage.served(f"with {node}")


# --- links -----------------------------------------------------------------------------------------------------------


def _cut(stage: Stage) -> None:
    victims = stage.victims()
    for node in victims:
        stage.note(f"cut off {node}")
        stage.cluster.network.isolate(node.number, stage.cluster.nodes)
    stage.hold(0.5, 4.0)
    if len(victims) == 1:
        stage.served("one cut off")
    stage.cluster.network.heal(reset=stage.rng.random() < 0.5)


def _cut_pair(stage: Stage) -> None:
    """The victim and one other node do not see each other; a third one sees both."""
    (node,) = stage.victims()
    other = stage.rng.choice([number for number in stage.cluster.nodes if number != node.number])
    stage.note(f"cut between {node} and {other}")
    stage.cluster.network.cut(node.number, other)
    stage.hold(0.5, 4.0)
    stage.served("one link cut")
    stage.cluster.network.heal(reset=stage.rng.random() < 0.5)


def _cut_one_way(stage: Stage) -> None:
    """Nobody hears a victim, or the victim hears nobody."""
    victims = stage.victims()
    for node in victims:
        mute = stage.rng.random() < 0.5
        stage.note(f"{node} is {'mute' if mute else 'deaf'}")
        for other in stage.cluster.nodes:
            if other != node.number:
                pair = (node.number, other) if mute else (other, node.number)
                stage.cluster.network.cut_one_way(*pair)
    stage.hold(0.5, 4.0)
    if len(victims) == 1:
        stage.served("one way cut")
    stage.cluster.network.heal(reset=stage.rng.random() < 0.5)


def _slow(stage: Stage) -> None:
    victims = stage.victims()
    delay_ms, bytes_per_second = stage.rng.choice([(20, 0), (100, 0), (5, 200_000)])
    for node in victims:
        stage.note(f"links of {node} slow: {delay_ms} ms, {bytes_per_second} bytes/s")
        for other in stage.cluster.nodes:
            if other != node.number:
                stage.cluster.network.slow(node.number, other, delay_ms, bytes_per_second)
    stage.hold(2.0, 4.0)
    stage.served("links slow")


# --- disks -----------------------------------------------------------------------------------------------------------


def _fill(stage: Stage) -> None:
    victims = stage.victims()
    for node in victims:
        stage.note(f"disk of {node} full")
        node.fill_disk()
    stage.hold(4.0, 6.0)
    if len(victims) == 1:
        stage.served("one disk full")  # what it led is led by others
    for node in victims:
        stage.note(f"disk of {node} has room")
        node.free_disk()


def _wipe(stage: Stage) -> None:
    """All means one after the other: what was on a majority of the disks cannot come back from nowhere."""
    victims = stage.victims()
    for node in victims:
        stage.note(f"kill -9 {node}, disk wiped")
        node.kill()
        stage.served("one killed")
        node.wipe()
        node.start()
        node.wait_ready(time.monotonic() + CATCH_UP_TIMEOUT_S)
        stage.voters_back()
    # They must be worth their votes: without another one they have to make a majority.
    gone = stage.rng.choice([other for other in stage.cluster.nodes.values() if other is not victims[-1]])
    stage.note(f"kill -9 {gone}")
    gone.kill()
    stage.served("another one killed")


def _point(name: str, provoke: Provoke, action: str) -> Callable[[Stage], None]:
    """Something goes wrong at a point that the victim is made to come by, and everything goes on."""

    def act(stage: Stage) -> None:
        (node,) = stage.victims()
        stage.arm(node, name, action)
        stage.bring_to(name, provoke, node, lambda: stage.has_come_by(name, node))
        stage.hold(1.0, 3.0)
        stage.served(f"{name}={action}")
        stage.disarm()

    return act


def _crash(name: str, provoke: Provoke, action: str) -> Callable[[Stage], None]:
    """The victim ends at a point that it is made to come by; the others go on, and it recovers."""

    def act(stage: Stage) -> None:
        (node,) = stage.victims()
        stage.arm(node, name, action)
        stage.bring_to(name, provoke, node, lambda: node.has_ended)
        stage.note(f"{node} has ended")
        stage.served("one has ended")

    return act


def _wait(stage: Stage, _node: NodeProcess) -> None:
    """Records come in, segments begin and are closed."""
    stage.hold(0.05, 0.1)


def _move_leaders(stage: Stage, node: NodeProcess) -> None:
    """Every move is a term: everybody votes."""
    for partition in range(stage.load.partitions):
        try:
            leader = stage.cluster.leader(stage.load.topic, partition)
            others = [other for other in stage.cluster.nodes if other not in (leader, node.number)]
            stage.transfer(partition, stage.rng.choice(others))
        except (AskError, ClusterFailed) as error:
            stage.note(f"no transfer: {error}")
    stage.hold(0.05, 0.2)


def _trim(stage: Stage, _node: NodeProcess) -> None:
    """The log start moves up, to where all consumers are past."""
    stage.trims += 1
    stage.load.delete_records(min(5 * stage.trims, 50))
    stage.hold(0.2, 0.4)


def _diverge(stage: Stage, node: NodeProcess) -> None:
    """It gets records that nobody else has, and has to give them up."""
    stage.cluster.network.isolate(node.number, stage.cluster.nodes)
    stage.hold(1.0, 1.5)
    stage.cluster.network.heal(reset=True)
    stage.hold(1.0, 1.5)
    if not node.has_ended and stage.cluster.leader(stage.load.topic) != node.number:
        try:
            stage.transfer(0, node.number)
        except AskError as error:
            stage.note(f"no transfer: {error}")


def _many_commands(stage: Stage, _node: NodeProcess) -> None:
    """Enough for a snapshot of the cluster's state."""
    stage.load.alter_topic(100)


def _hold_up(stage: Stage, node: NodeProcess) -> None:
    """Another node lags, and is sent what it lacks."""
    other = stage.rng.choice([other for other in stage.cluster.nodes.values() if other is not node])
    other.stop()
    stage.hold(0.5, 1.0)
    other.go_on()
    stage.hold(0.2, 0.4)


def _make_it_call(stage: Stage, node: NodeProcess) -> None:
    """It asks the controller; or, if it is that, the leaders that are to hand over."""
    try:
        stage.cluster.admin("cluster", node=node.number)
    except AskError as error:
        stage.note(f"no answer: {error}")
    _move_leaders(stage, node)


def _replace(stage: Stage, node: NodeProcess) -> None:
    """The victim is given a replica, or takes part in giving one away."""
    stage.reassign_one(node.number)
    stage.hold(1.0, 1.5)


# --- what operators do -----------------------------------------------------------------------------------------------


def _transfer(stage: Stage) -> None:
    for _ in range(8):
        for partition in range(stage.load.partitions):
            leader = stage.cluster.leader(stage.load.topic, partition)
            target = stage.rng.choice([number for number in stage.cluster.nodes if number != leader])
            try:
                stage.transfer(partition, target)
            except AskError as error:
                stage.note(f"transfer refused: {error}")
        stage.hold(0.1, 0.5)
    stage.served("leaders moved")


def _reassign(stage: Stage) -> None:
    """One node takes another's place on every partition; with a target, that node is killed in the midst."""
    cluster, load = stage.cluster, stage.load
    streams = cluster.admin("streams", topic=load.topic)["streams"]
    for stream in streams:
        outside = [number for number in cluster.nodes if number not in stream["replicas"]]
        replicas = list(stream["replicas"])
        replicas[stage.rng.randrange(len(replicas))] = stage.rng.choice(outside)
        stage.note(f"reassign {stream['partition']}: {stream['replicas']} -> {replicas}")
        cluster.admin("reassign", topic=load.topic, partition=stream["partition"], replicas=replicas)
        if stage.target != "nobody":
            stage.hold(0.0, 0.3)
            (node,) = stage.victims()
            stage.note(f"kill -9 {node}")
            node.kill()
            stage.served("one killed")
            cluster.heal()
            cluster.wait_ready()
    stage.voters_back()


def _lose(stage: Stage) -> None:
    """A node goes and does not come back in time: others take its replicas, and it finds itself without."""
    (node,) = stage.victims()
    stage.note(f"kill -9 {node} for good")
    node.kill()
    stage.served("one killed")
    stage.cluster.wait_for(lambda: stage.is_free_of(node.number) or None, f"no replica on {node}", CATCH_UP_TIMEOUT_S)
    stage.note(f"nothing is left on {node}")
    stage.voters_back()


def _decommission(stage: Stage) -> None:
    """A node is drained under load; a data node, so that it can go altogether."""
    node = stage.cluster.nodes[max(stage.cluster.nodes)]
    stage.note(f"drain {node}")
    stage.cluster.ask_admin("drain-node", node=node.number, draining=True, force=False)
    stage.cluster.wait_for(lambda: stage.is_free_of(node.number) or None, f"no replica on {node}", CATCH_UP_TIMEOUT_S)
    stage.note(f"remove {node}")
    stage.cluster.wait_for(lambda: stage.is_removed(node.number), f"{node} removed", SERVICE_TIMEOUT_S)
    node.kill()
    del stage.cluster.nodes[node.number]
    stage.served("one removed")


def _leave_behind(stage: Stage) -> None:
    """While a node is away, others delete what it lacks: it has to begin anew behind that."""
    (node,) = stage.victims()
    stage.note(f"kill -9 {node}")
    node.kill()
    stage.served("one killed")
    for _ in range(4):
        stage.hold(1.0, 1.5)
        stage.note(f"trim to {stage.load.delete_what_was_read()}")
    node.start()
    node.wait_ready(time.monotonic() + CATCH_UP_TIMEOUT_S)
    stage.voters_back()
    gone = stage.rng.choice([other for other in stage.cluster.nodes.values() if other is not node])
    stage.note(f"kill -9 {gone}")
    gone.kill()
    stage.served("another one killed")


def _trim_and_kill(stage: Stage) -> None:
    """The log start moves while leaders come and go: earliest never goes back."""
    for _ in range(3):
        stage.note(f"trim to {stage.load.delete_what_was_read()}")
        (node,) = stage.victims()
        stage.note(f"kill -9 {node}")
        node.kill()
        stage.served("one killed")
        stage.cluster.heal()
        stage.cluster.wait_ready()


def _storm(stage: Stage) -> None:
    """One harm after another, each healed but for what it leaves behind."""
    harms: Sequence[tuple[Callable[[Stage], None], Sequence[str]]] = (
        (_kill, ("leader", "follower", "config leader", "all")),
        (_stop, ("leader", "follower", "config leader", "all")),
        (_terminate, ("leader", "follower")),
        (_cut, ("leader", "follower", "config leader", "all")),
        (_cut_pair, ("leader", "follower")),
        (_cut_one_way, ("leader", "follower", "config leader")),
        (_slow, ("leader", "all")),
        (_transfer, ("leader",)),
    )
    for _ in range(6):
        harm, targets = stage.rng.choice(harms)
        stage.target = stage.rng.choice(targets)
        stage.note(f"storm: {harm.__name__} {stage.target}")
        harm(stage)
        stage.cluster.heal(reset=stage.rng.random() < 0.5)
        stage.cluster.wait_ready()
        stage.served("healed")


# --- all of them -----------------------------------------------------------------------------------------------------

_CRASHES: Sequence[tuple[str, Provoke, Sequence[str]]] = (
    ("writer.before-write", _wait, ("leader", "follower")),
    ("writer.before-sync", _wait, ("leader", "follower")),
    ("writer.after-sync", _wait, ("leader", "follower")),
    ("lane.submit", _wait, ("leader", "follower")),
    ("lane.between-data-and-rows", _wait, ("leader", "follower")),
    ("lane.collect", _wait, ("leader", "follower")),
    ("segment.between-data-and-rows", _wait, ("leader", "follower")),
    ("segment.torn-data", _wait, ("leader", "follower")),
    ("segment.torn-row", _wait, ("leader", "follower")),
    ("segment.begin", _wait, ("leader", "follower")),
    ("segment.close", _wait, ("leader", "follower")),
    ("segment.wipe-rows", _diverge, ("leader",)),
    ("votes.before-write", _move_leaders, ("leader", "follower")),
    ("votes.after-sync", _move_leaders, ("leader", "follower")),
    ("state.before-replace", _trim, ("leader", "follower")),
    ("state.after-replace", _trim, ("leader", "follower")),
    ("log.trim", _trim, ("leader", "follower")),
    ("replica.apply", _wait, ("leader", "follower")),
    ("cluster.apply", _many_commands, ("config leader", "follower")),
    ("cluster.snapshot", _many_commands, ("config leader",)),
    ("members.before-change", _replace, ("leader",)),
    ("members.after-change", _replace, ("leader",)),
    ("members.begin", _replace, ("follower",)),
    ("fill.piece", _replace, ("follower",)),
    ("fill.open", _replace, ("follower",)),
    ("produce.answer", _wait, ("leader",)),
)
_BOTH = ("leader", "follower")
_POINTS: Sequence[tuple[str, str, Provoke, Sequence[str]]] = (
    ("disk.sync", "delay:50", _wait, _BOTH),
    ("disk.sync", "delay:1000,count:3", _wait, _BOTH),
    ("disk.sync", "error:EIO,count:1", _wait, _BOTH),
    ("disk.write", "error:EIO,count:1", _wait, _BOTH),
    ("disk.write", "error:ENOSPC,count:50", _wait, _BOTH),
    ("lane.submit", "delay:50", _wait, _BOTH),
    ("lane.collect", "delay:1000,count:3", _wait, _BOTH),
    ("lane.collect", "error:EIO,count:1", _wait, _BOTH),
    ("lane.collect", "error:ENOSPC,count:50", _wait, _BOTH),
    ("disk.rename", "error:EIO,count:1", _trim, _BOTH),
    ("disk.sync-directory", "error:EIO,count:1", _trim, _BOTH),
    ("disk.read", "delay:20", _wait, _BOTH),
    ("log.append", "error:EIO,count:1", _wait, _BOTH),
    ("log.term", "error:EIO,count:1", _wait, _BOTH),
    ("log.entries", "delay:600,count:5", _hold_up, ("leader",)),
    ("log.read", "delay:20", _wait, _BOTH),
    ("replica.save", "drop", _trim, _BOTH),
    ("peers.call", "delay:100,count:20", _make_it_call, _BOTH),
    ("fetch.read", "delay:200", _wait, _BOTH),
    ("replica.apply", "delay:100,count:20", _wait, _BOTH),
    ("replica.ready", "drop,count:2000", _wait, _BOTH),
    ("peers.send", "drop,count:100", _wait, _BOTH),
    ("peers.receive", "drop,count:100", _wait, _BOTH),
    ("produce.answer", "drop,count:10", _wait, ("leader",)),
)
_READS = ("disk.read", "log.entries", "fetch.read")
_COLD = {"storage.tail.cache.bytes": "1"}  # what is read comes from the disk
_HALVES = (
    "lane.between-data-and-rows",
    "segment.torn-data",
    "segment.torn-row",
)  # points that end the process by themselves when dropped
_IMPATIENT = {"replica.replace.after.ms": "2000"}
_FULL = {"storage.segment.bytes": str(1 << 20)}

SCENARIOS: Sequence[Scenario] = (
    *(
        Scenario("kill -9", target, _kill, short=target in ("leader", "all"))
        for target in ("leader", "follower", "config leader", "all")
    ),
    Scenario("kill -9, 4 times", "leader", _kill_again_and_again),
    *(
        Scenario("SIGSTOP", target, _stop, short=target == "leader")
        for target in ("leader", "follower", "config leader", "all")
    ),
    *(Scenario("SIGTERM", target, _terminate) for target in ("leader", "follower", "config leader", "all")),
    *(
        Scenario("cut link", target, _cut, short=target == "leader")
        for target in ("leader", "follower", "config leader", "all")
    ),
    *(Scenario("cut one pair", target, _cut_pair) for target in ("leader", "config leader")),
    *(
        Scenario("cut one way", target, _cut_one_way, short=target == "leader")
        for target in ("leader", "follower", "config leader", "all")
    ),
    *(Scenario("slow link", target, _slow) for target in ("leader", "follower", "config leader", "all")),
    *(
        Scenario("full disk", target, _fill, settings=_FULL, small_disks=True, faults=True, value_bytes=4_000)
        for target in ("leader", "follower", "config leader", "all")
    ),
    *(
        Scenario("wiped disk", target, _wipe, short=target == "follower", value_bytes=4_000)
        for target in ("leader", "follower", "config leader", "all")
    ),
    Scenario("leader transfer", "leader", _transfer, short=True),
    *(
        Scenario("reassign under kill", target, _reassign, nodes=4, value_bytes=4_000)
        for target in ("nobody", "leader", "follower", "config leader")
    ),
    *(
        Scenario("lost node", target, _lose, nodes=4, settings=_IMPATIENT, value_bytes=4_000)
        for target in ("leader", "follower")
    ),
    Scenario("decommission", "data node", _decommission, nodes=4, value_bytes=4_000),
    *(Scenario("left behind", target, _leave_behind, value_bytes=8_000) for target in ("leader", "follower")),
    *(Scenario("trim and kill", target, _trim_and_kill, value_bytes=4_000) for target in ("leader", "follower")),
    Scenario("rolling restart", "all", _roll, short=True),
    Scenario("storm", "all", _storm),
    *(
        Scenario(
            f"crash at {name}",
            target,
            _crash(name, provoke, "drop,skip:20" if name in _HALVES else "crash"),
            nodes=4 if provoke is _replace else 3,
            faults=True,
            ends=True,
            value_bytes=4_000,
        )
        for name, provoke, targets in _CRASHES
        for target in targets
    ),
    *(
        Scenario(
            f"{name} {action}",
            target,
            _point(name, provoke, action),
            settings=_COLD if name in _READS else {},
            faults=True,
            ends="error" in action,
        )
        for name, action, provoke, targets in _POINTS
        for target in targets
    ),
)

BY_TITLE: Mapping[str, Scenario] = {scenario.title: scenario for scenario in SCENARIOS}
SHORT: Sequence[Scenario] = [scenario for scenario in SCENARIOS if scenario.short]
