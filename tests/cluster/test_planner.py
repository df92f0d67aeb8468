"""What the controller is told to do: tables of situations, then what is remembered from call to call."""

import time
from uuid import UUID

import pytest

from tidelog.cluster import (
    CLUSTER_STREAM,
    AssignReplicas,
    CreateTopic,
    FoundCluster,
    Machine,
    NoteLeaders,
    ReadmitReplicas,
    RegisterNode,
    SetConfigNodes,
    SetDraining,
)
from tidelog.cluster.planner import (
    Action,
    ChangeMembers,
    Health,
    Planner,
    PlannerSettings,
    Submit,
    TransferLeader,
    balance,
)

SETTINGS = PlannerSettings(
    replace_after_ms=60_000, stable_ms=2_000, leader_balance_ms=5_000, actions_max=64, moves_max=16
)
NOW = 1_000_000
NODES: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
RACKS = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}
GROUP0 = (NODES, ())


def _words(situation: str) -> dict[str, list[str]]:
    """`voters 1* 2, learners 3`, taken apart."""
    return {part.split()[0]: part.split()[1:] for part in situation.split(", ")}


def _numbers(words: list[str]) -> tuple[int, ...]:
    return tuple(int(word.rstrip("*")) for word in words)


class Situation:
    """One stream in a cluster of six nodes, two in each of the racks a, b and c, told in a line:

    replicas 1 2 4   who shall hold it          absent 3    lost its disk          ill 3      dead for 30 s
    voters 1* 2 3    as reported; * leads       rack b      preferred to lead      dead 3     dead for 10 min
    learners 4                                  draining 1                         young 1    alive for 1 s
    """

    def __init__(self, text: str) -> None:
        words = _words(text)
        said = {name: _numbers(rest) for name, rest in words.items() if name != "rack"}
        replicas, voters = said["replicas"], said.get("voters", ())
        leader = next((int(word.rstrip("*")) for word in words.get("voters", ()) if word.endswith("*")), -1)
        self.machine = Machine()
        self.machine.apply(FoundCluster("c", NODES))
        for node in NODES:
            self.machine.apply(RegisterNode(node, f"h{node}", 1, RACKS[node], directory="disk"))
        configs = {"leader.rack": words["rack"][0]} if "rack" in words else {}
        self.machine.apply(CreateTopic("t", UUID(int=1), [voters or replicas], configs))
        if voters:
            row = (1, leader, 1, 1, voters, said.get("learners", ()))
            self.machine.apply(NoteLeaders([row]))
            self.machine.apply(AssignReplicas([(1, voters, replicas)]))
        for node in said.get("absent", ()):
            self.machine.apply(RegisterNode(node, f"h{node}", 1, RACKS[node], directory="new"))
            self.machine.apply(ReadmitReplicas([(CLUSTER_STREAM, node)]))
        for node in said.get("draining", ()):
            self.machine.apply(SetDraining(node, True))
        self.dead = dict.fromkeys(said.get("dead", ()), NOW - 600000)
        self.dead |= dict.fromkeys(said.get("ill", ()), NOW - 30000)
        young = said.get("young", ())
        self.alive = {n: NOW - (1_000 if n in young else 600_000) for n in NODES if n not in self.dead}
        self.planner = Planner(SETTINGS)

    def plan(self, after_ms: int = 0) -> list[Action]:
        health = Health(self.alive, self.dead)
        return self.planner.plan(self.machine.state, health, GROUP0, NOW + after_ms)


def _told(actions: list[Action]) -> str:
    return "; ".join(_tell(action) for action in actions) or "-"


def _tell(action: Action) -> str:
    def names(nodes: tuple[int, ...]) -> str:
        return " ".join(map(str, nodes))

    match action:
        case ChangeMembers(_, add_learners, promote, remove):
            named = {"learn": add_learners, "promote": promote, "remove": remove}
            return ", ".join(f"{name} {names(nodes)}" for name, nodes in named.items() if nodes)
        case TransferLeader(_, target):
            return f"lead {target}"
        case Submit(AssignReplicas(rows)):
            return ", ".join(f"assign {names(after)}" for _, _, after in rows)
        case Submit(ReadmitReplicas(rows)):
            return ", ".join(f"readmit {node}" for _, node in rows)
    raise AssertionError(action)


@pytest.mark.parametrize(
    ("situation", "told"),
    [
        # at rest
        ("replicas 1 2 3, voters 1* 2 3", "-"),
        ("replicas 1 2 3, voters 3 2 1*", "-"),
        ("replicas 1 2 3", "-"),  # nobody reported yet
        ("replicas 1 2 3, voters 1* 2 3, ill 3", "-"),  # it may come back
        # a replica that is not in the group: learner, then voter
        ("replicas 1 2 3, voters 1* 2", "learn 3"),
        ("replicas 1 2 3, voters 1*", "learn 2 3"),
        ("replicas 1 2 3, voters 1* 2, ill 3", "-"),
        ("replicas 1 2 3, voters 1*, ill 3", "learn 2"),
        ("replicas 1 2 3, voters 1* 2, learners 3", "promote 3"),
        ("replicas 1 2 3, voters 1* 2, learners 3, ill 3", "-"),
        ("replicas 1 2 3, voters 1* 2, learners 3, ill 2", "-"),  # no majority now
        # a replacement is one joint change
        ("replicas 1 2 4, voters 1* 2 3", "learn 4"),
        ("replicas 1 2 4, voters 1* 2 3, learners 4", "promote 4, remove 3"),
        ("replicas 1 2 4, voters 1* 2 3, learners 4, dead 3", "promote 4, remove 3"),
        ("replicas 1 2 4, voters 1* 2 3, learners 4, ill 4", "-"),
        ("replicas 1 4 5, voters 1* 2 3, learners 4 5", "promote 4 5, remove 2 3"),
        ("replicas 1 4 5, voters 1* 2 3, learners 4 5, ill 5", "promote 4, remove 2"),  # never fewer than there were
        ("replicas 1 4 5, voters 1* 2 3, learners 4 5, ill 5 3", "promote 4, remove 3"),  # the dead one first
        ("replicas 1 2 3, voters 1* 2 3 4", "remove 4"),
        ("replicas 1 2 3, voters 1* 2 3, learners 4", "remove 4"),
        ("replicas 1 2 4, voters 1* 2 3, learners 5", "learn 4, remove 5"),
        ("replicas 1, voters 1* 2 3", "remove 2 3"),
        ("replicas 1 2 3, voters 1* 2 3 4 5, ill 2 3", "-"),  # those who would remain are no majority
        # a leader is not voted out
        ("replicas 2 3 4, voters 1* 2 3, learners 4", "lead 2"),
        ("replicas 2 3, voters 1* 2 3", "lead 2"),
        ("replicas 4, voters 1*, learners 4", "promote 4"),
        ("replicas 4, voters 1* 4", "lead 4"),
        ("replicas 4, voters 1 4*", "remove 1"),
        ("replicas 2 3 4, voters 1* 2 3, learners 4, young 2 3", "promote 4"),
        # nobody to ask
        ("replicas 1 2 3, voters 1* 2, ill 1", "-"),
        ("replicas 1 2 3, voters 1 2", "-"),
        # lost disks
        ("replicas 1 2 3, voters 1* 2 3, absent 3", "remove 3"),
        ("replicas 1 2 3, voters 1* 2, learners 3, absent 3", "remove 3"),
        ("replicas 1 2 3, voters 1* 2 3, absent 3, ill 2", "-"),  # it cannot be decided
        ("replicas 1 2 3, voters 1* 2 3, absent 2 3", "-"),
        ("replicas 1 2 3, voters 1* 2 3, absent 1", "-"),  # another will lead, and report
        ("replicas 1 2 4, voters 1* 2 3, learners 4, absent 3", "remove 3"),
        # dead for too long
        ("replicas 1 2 3, voters 1* 2 3, dead 3", "assign 1 2 6"),  # in the same data centre
        ("replicas 1 2 3, voters 1 2* 3, dead 1", "assign 4 2 3"),
        ("replicas 1 2 3, voters 1* 2 3, dead 3 5 6", "assign 1 2 4"),
        ("replicas 1 2 3, voters 1* 2 3, dead 2 3", "-"),  # no majority
        ("replicas 1 2 3, voters 1* 2 3, dead 1", "-"),  # whoever leads has not reported
        ("replicas 1 2 3, voters 1* 2 3, dead 3, young 4 5 6", "-"),
        ("replicas 1 2 3, voters 1* 2 3, dead 3 4 5 6", "-"),  # nobody to take it
        ("replicas 1 2 6, voters 1* 2 3, dead 3 6, ill 4", "assign 1 2 5"),  # the newcomer died too
        ("replicas 1 2 3 4 5, voters 1* 2 3 4 5, dead 3 4", "assign 1 2 6 4 5"),
        # draining
        ("replicas 1 2 3, voters 1* 2 3, draining 3", "assign 1 2 6"),
        ("replicas 1 2 3, voters 1* 2 3, draining 1", "lead 2"),  # it moves at once, the replicas follow
        ("replicas 1 2 3, voters 1 2* 3, draining 1", "assign 4 2 3"),
        ("replicas 1 2 3, voters 1* 2 3, draining 3 6, ill 5", "assign 1 2 4"),
        ("replicas 1 2 3, voters 1* 2 3, draining 3 4 5 6", "-"),
        ("replicas 1 2 3 4 5 6, voters 1* 2 3 4 5 6, draining 1", "lead 2"),
        ("replicas 1 2 3 4 5 6, voters 1 2* 3 4 5 6, draining 1", "-"),
        # leaders go home
        ("replicas 1 2 3, voters 1 2* 3", "lead 1"),
        ("replicas 1 2 3, voters 1 2* 3, ill 1", "-"),
        ("replicas 1 2 3, voters 1 2* 3, young 1", "-"),
        ("replicas 1 2 3, voters 2* 3, learners 1", "promote 1"),
        ("replicas 1 2 3, voters 1 2* 3, absent 1", "remove 1"),
        ("replicas 1 2 3, voters 1* 2 3, rack b", "lead 2"),
        ("replicas 1 2 3, voters 1 2* 3, rack b", "-"),
        ("replicas 1 2 3, voters 1 2 3*, rack b, ill 2", "-"),
        ("replicas 1 2 5, voters 1* 2 5, rack b, ill 2", "lead 5"),
        ("replicas 1 2 5, voters 1 2 5*, rack b, ill 2", "-"),
        ("replicas 1 2 5, voters 1 2 5*, rack b", "lead 2"),
        ("replicas 1 2 5, voters 1 2* 5, rack b, draining 2", "lead 5"),
        ("replicas 1 2 3, voters 1 2* 3, rack moon", "lead 1"),
    ],
)
def test_the_next_step(situation: str, told: str) -> None:
    assert _told(Situation(situation).plan()) == told


@pytest.mark.parametrize(
    ("situation", "told"),
    [
        ("replicas 1 3, voters 1* 2 3, ill 3", "remove 2"),  # it waits for 3 then
        ("replicas 1 2 3, voters 1* 2 3 4 5, ill 2 3", "remove 4 5"),
        ("replicas 1 3, voters 1* 2 3, ill 2 3", "-"),  # no majority could agree to it
        ("replicas 1 4, voters 1* 2, ill 4", "-"),  # nobody leaves before the newcomer is there
        ("replicas 2 3, voters 1* 2 3, ill 3", "lead 2"),
    ],
)
def test_what_would_leave_no_live_majority_is_asked_only_by_force(situation: str, told: str) -> None:
    unforced, forced = Situation(situation), Situation(situation)
    forced.planner.force(1, forced.machine.state.topics["t"].partitions[0].replicas)
    assert not any(isinstance(action, ChangeMembers) for action in unforced.plan())
    actions = forced.plan()
    assert _told(actions) == told
    assert all(action.force for action in actions if isinstance(action, ChangeMembers))


def test_force_is_for_those_replicas_only() -> None:
    situation = Situation("replicas 1 3, voters 1* 2 3, ill 3")
    situation.planner.force(1, (1, 2))
    assert _told(situation.plan()) == "-"


def test_force_ends_with_the_change_that_it_was_for() -> None:
    situation = Situation("replicas 1 3, voters 1* 2 3, ill 3")
    situation.planner.force(1, (1, 3))
    assert any(isinstance(action, ChangeMembers) for action in situation.plan())
    situation.machine.apply(NoteLeaders([(1, 1, 1, 2, (1, 3), ())]))
    situation.plan(10)
    situation.machine.apply(NoteLeaders([(1, 1, 1, 3, (1, 2, 3), ())]))
    assert not any(isinstance(action, ChangeMembers) for action in situation.plan(60_000))


# --- from call to call -----------------------------------------------------------------------------------------------


def _times(situation: Situation, until_ms: int, step_ms: int = 100) -> list[int]:
    """When something was asked, though nothing ever comes of it."""
    return [at for at in range(0, until_ms, step_ms) if situation.plan(at)]


def test_what_is_refused_is_asked_again_later_and_later() -> None:
    asked = _times(Situation("replicas 1 2 3, voters 1* 2, learners 3"), 45_000)
    assert asked == [0, 500, 1_500, 3_500, 7_500, 15_500, 25_500, 35_500]


def test_the_step_after_one_that_worked_is_asked_at_once() -> None:
    situation = Situation("replicas 1 2 3, voters 1* 2")
    assert _told(situation.plan()) == "learn 3"
    assert _told(situation.plan(10)) == "-"
    situation.machine.apply(NoteLeaders([(1, 1, 1, 2, (1, 2), (3,))]))
    assert _told(situation.plan(20)) == "promote 3"


def test_a_leader_that_will_not_go_home_is_asked_later_and_later() -> None:
    asked = _times(Situation("replicas 1 2 3, voters 1 2* 3"), 400_000, 1_000)
    assert asked == [0, 5_000, 15_000, 35_000, 75_000, 155_000, 315_000]


def _lead(situation: Situation, leader: int, term: int) -> None:
    situation.machine.apply(NoteLeaders([(1, leader, term, 1, (1, 2, 3), ())]))


def test_a_leader_that_does_not_stay_at_home_is_sent_there_later_and_later() -> None:
    situation = Situation("replicas 1 2 3, voters 1 2* 3")
    asked: list[int] = []
    for at in range(0, 100_000, 1_000):
        if situation.plan(at):
            asked.append(at)
            _lead(situation, 1, 2 + at)  # it goes, and is away again a second later
        else:
            _lead(situation, 2, 2 + at)
    assert asked == [0, 5_000, 15_000, 35_000, 75_000]


def test_a_leader_that_stayed_at_home_for_a_while_is_sent_there_at_once_the_next_time() -> None:
    situation = Situation("replicas 1 2 3, voters 1 2* 3")
    assert _told(situation.plan()) == "lead 1"
    _lead(situation, 1, 2)
    assert [at for at in range(1_000, 8_000, 1_000) if situation.plan(at)] == []
    _lead(situation, 2, 3)
    assert _told(situation.plan(8_000)) == "lead 1"
    assert _told(situation.plan(9_000)) == "-"


def test_a_lost_disk_that_no_report_names_is_readmitted_when_reports_had_time_to_come() -> None:
    situation = Situation("replicas 1 2 3, voters 1* 2, absent 3")
    assert _times(situation, 2_500) == [2_000]
    assert _told(Situation("replicas 1 2 3, voters 1* 2, absent 3").plan()) == "-"


def test_a_leader_that_cannot_hand_over_does_not_keep_the_others_from_changing() -> None:
    situation = Situation("replicas 2 3 4, voters 1* 2 3, learners 4")
    told = [_told(situation.plan(at)) for at in range(0, 40_000, 1_000)]
    assert [line for line in told if line != "-"][:4] == ["lead 2", "lead 2", "lead 2", "promote 4"]


def test_no_leader_is_sent_to_a_lost_disk_while_its_group_lets_go_of_it() -> None:
    situation = Situation("replicas 1 2 3, voters 1 2* 3, absent 1")
    assert [_told(situation.plan(at)) for at in (0, 100, 200)] == ["remove 1", "-", "-"]


def test_a_new_planner_asks_the_same() -> None:
    """A controller that takes over knows nothing of what was asked."""
    situation = Situation("replicas 1 2 4, voters 1* 2 3, learners 4")
    first = situation.plan()
    situation.planner = Planner(SETTINGS)
    assert situation.plan() == first


# --- bounds ----------------------------------------------------------------------------------------------------------


def _many(partitions: int, voters: tuple[int, ...], leader: int, replicas: tuple[int, ...] = (1, 2, 3)) -> Machine:
    machine = Situation("replicas 1 2 3, voters 1* 2 3").machine
    machine.apply(CreateTopic("many", UUID(int=2), [replicas] * partitions, {}))
    machine.apply(NoteLeaders([(2 + n, leader, 1, 1, voters, ()) for n in range(partitions)]))
    return machine


ALL_ALIVE = Health(dict.fromkeys(NODES, 0), {})


def test_no_call_asks_for_more_than_the_bound_and_all_get_their_turn() -> None:
    machine, planner = _many(100, (1, 2, 3), 2), Planner(PlannerSettings(actions_max=12))
    asked: list[int] = []
    for round_number in range(10):
        actions = planner.plan(machine.state, ALL_ALIVE, GROUP0, NOW + round_number)
        assert len(actions) <= 12
        asked += [action.stream for action in actions if isinstance(action, TransferLeader)]
    assert sorted(asked) == list(range(2, 102))


def test_the_oldest_trouble_comes_first() -> None:
    machine, planner = _many(20, (1, 2, 3), 1), Planner(PlannerSettings(actions_max=1))
    asked: list[int] = []
    for at, troubled in enumerate(((7, 9), (2,), (), ())):
        machine.apply(NoteLeaders([(stream, 1, 1, 2, (1, 2), ()) for stream in troubled]))
        actions = planner.plan(machine.state, ALL_ALIVE, GROUP0, NOW + at)
        asked += [action.stream for action in actions if isinstance(action, ChangeMembers)]
    assert asked == [7, 9, 2]


def test_only_so_many_streams_move_at_a_time() -> None:
    machine, planner = _many(100, (1, 2, 3), 1), Planner(SETTINGS)
    machine.apply(SetDraining(3, True))
    (submit,) = planner.plan(machine.state, ALL_ALIVE, GROUP0, NOW)
    assert isinstance(submit, Submit)
    assert isinstance(submit.command, AssignReplicas)
    assert len(submit.command.rows) == 16
    machine.apply(submit.command)
    actions = planner.plan(machine.state, ALL_ALIVE, GROUP0, NOW + 100)
    assert [type(action) for action in actions] == [ChangeMembers] * 16
    stream, _, replicas = submit.command.rows[0]
    machine.apply(NoteLeaders([(stream, 1, 1, 2, replicas, ())]))
    (submit,) = planner.plan(machine.state, ALL_ALIVE, GROUP0, NOW + 200)
    assert isinstance(submit, Submit)
    assert isinstance(submit.command, AssignReplicas)
    assert len(submit.command.rows) == 1


def test_moves_that_cannot_end_do_not_keep_others_from_moving() -> None:
    machine, planner = _many(40, (1, 2, 3), 1), Planner(SETTINGS)
    machine.apply(AssignReplicas([(stream, (1, 2, 3), (1, 2, 6)) for stream in range(2, 20)]))
    health = Health({1: 0, 2: 0, 4: 0, 5: 0}, {3: NOW - 600_000, 6: NOW - 100})
    (submit,) = planner.plan(machine.state, health, GROUP0, NOW)
    assert isinstance(submit, Submit)
    assert isinstance(submit.command, AssignReplicas)
    assert len(submit.command.rows) == 16


def test_the_streams_of_a_dead_node_are_spread_over_the_others() -> None:
    machine, planner = _many(16, (1, 2, 3), 1), Planner(SETTINGS)
    for node in (4, 5, 6):
        machine.apply(RegisterNode(node, f"h{node}", 1, "c", directory="disk"))
    health = Health({1: 0, 2: 0, 4: 0, 5: 0, 6: 0}, {3: 0})
    (submit,) = planner.plan(machine.state, health, GROUP0, NOW)
    assert isinstance(submit, Submit)
    assert isinstance(submit.command, AssignReplicas)
    taken = [after[2] for _, _, after in submit.command.rows]
    assert sorted(taken.count(node) for node in (4, 5, 6)) == [5, 5, 6]


def test_a_thousand_partitions_that_are_well_cost_next_to_nothing() -> None:
    machine, planner = _many(1_000, (1, 2, 3), 1), Planner(SETTINGS)
    assert planner.plan(machine.state, ALL_ALIVE, GROUP0, NOW) == []
    best_ms = 1e9
    for attempt in range(20):
        started = time.perf_counter()
        assert planner.plan(machine.state, ALL_ALIVE, GROUP0, NOW + attempt) == []
        best_ms = min(best_ms, (time.perf_counter() - started) * 1_000)
    assert best_ms < 2


# --- the cluster's own group -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "group", "controller", "told"),
    [
        ((1, 2, 3), ((1, 2, 3), (4, 5, 6)), 1, "-"),
        ((1, 2, 3), ((1, 2, 3), (4,)), 1, "learn 5 6"),
        ((1, 2, 3), ((1, 2), (3, 4, 5, 6)), 1, "promote 3"),
        ((1, 2, 3), ((1, 2, 3), (4, 5, 6, 7)), 1, "remove 7"),
        ((1, 2, 3), ((1, 2, 3, 7), (4, 5, 6)), 1, "remove 7"),
        ((1, 2, 3), ((1, 2, 4), (3, 5, 6)), 1, "learn 4, promote 3"),  # 4 keeps following
        ((1, 2, 3), ((1, 2, 4), (3, 5, 6)), 4, "promote 3"),
        ((1, 2, 3), ((1, 2, 3, 4), (5, 6)), 4, "lead 1"),
        ((1, 2, 3), ((1, 2, 3, 4), (5, 6)), -1, "learn 4"),
    ],
)
def test_the_config_servers_vote_and_all_other_nodes_follow(
    config: tuple[int, ...], group: tuple[tuple[int, ...], tuple[int, ...]], controller: int, told: str
) -> None:
    situation = Situation("replicas 1 2 3, voters 1* 2 3")
    situation.machine.apply(SetConfigNodes(config))
    actions = situation.planner.plan(situation.machine.state, ALL_ALIVE, group, NOW, controller)
    assert _told(actions) == told
    assert all(getattr(action, "stream", None) == CLUSTER_STREAM for action in actions)


def test_a_config_server_that_lost_its_disk_is_removed_readmitted_and_promoted_again() -> None:
    situation = Situation("replicas 1 2, voters 1* 2")
    machine, planner, config = situation.machine, situation.planner, (1, 2, 3)
    machine.apply(SetConfigNodes(config))
    machine.apply(RegisterNode(3, "h3", 1, directory="another"))
    others = (4, 5, 6)

    def told(voters: tuple[int, ...], learners: tuple[int, ...], at_ms: int) -> str:
        actions = planner.plan(machine.state, ALL_ALIVE, (voters, learners), NOW + at_ms, 1)
        for action in actions:
            if isinstance(action, Submit):
                machine.apply(action.command)
        return _told(actions)

    assert told((1, 2, 3), others, 0) == "remove 3"
    assert told((1, 2), others, 100) == "-", "not before reports had time to come"
    assert told((1, 2), others, 2_100) == "readmit 3"
    assert told((1, 2), others, 2_200) == "learn 3"
    assert told((1, 2), (3, *others), 2_300) == "promote 3"
    assert told((1, 2, 3), others, 2_400) == "-"


@pytest.mark.parametrize("wiped", [None, 3])
def test_nothing_is_asked_of_a_cluster_without_a_majority_of_whole_voters(wiped: int | None) -> None:
    machine = Situation("replicas 1, voters 1*").machine
    machine.apply(SetConfigNodes((1, 2, 3) if wiped else (1,)))
    health = Health(dict.fromkeys((1, 4, 5, 6), 0), {2: NOW, 3: NOW})
    if wiped:
        machine.apply(RegisterNode(wiped, "h", 1, directory="another"))
        health = Health(dict.fromkeys((1, 3, 4, 5, 6), 0), {2: NOW})
    assert Planner(SETTINGS).plan(machine.state, health, ((1, 2, 3), (4, 5, 6)), NOW) == []


def test_a_cluster_of_the_first_version_keeps_its_only_voter() -> None:
    machine = Machine()
    machine.apply(FoundCluster("old"))
    machine.apply(RegisterNode(1, "h", 1))
    assert Planner(SETTINGS).plan(machine.state, ALL_ALIVE, ((1,), ()), NOW) == []


# --- balance ---------------------------------------------------------------------------------------------------------


def _balanced(machine: Machine, health: Health = ALL_ALIVE) -> tuple[int, int]:
    """Carry out what is advised, with groups that obey at once; how many moves and transfers it took."""
    moves = transfers = 0
    for action in balance(machine.state, health):
        match action:
            case Submit(AssignReplicas(rows) as command):
                machine.apply(command)
                moves += len(rows)
                stream, _, replicas = rows[0]
                machine.apply(NoteLeaders([(stream, replicas[0], 9, 9, replicas, ())]))
            case TransferLeader(stream, target):
                transfers += 1
                found = machine.state.partition_of(stream)
                assert found is not None
                assert target == found[0].partitions[found[1]].replicas[0]
            case _:
                raise AssertionError(action)
    return moves, transfers


def _shares(machine: Machine) -> tuple[list[int], list[int]]:
    partitions = machine.state.topics["many"].partitions
    held = [sum(node in p.replicas for p in partitions) for node in NODES]
    return held, [sum(p.replicas[0] == node for p in partitions) for node in NODES]


def test_balance_fills_new_nodes_and_spreads_leaders_and_keeps_every_stream_in_three_data_centres() -> None:
    machine = _many(60, (1, 2, 3), 1)
    assert _shares(machine) == ([60, 60, 60, 0, 0, 0], [60, 0, 0, 0, 0, 0])
    rounds = 0
    while any(_balanced(machine)):
        rounds += 1
        assert rounds < 5
    held, led = _shares(machine)
    assert max(held) - min(held) <= 2
    assert max(led) - min(led) <= 2
    for partition in machine.state.topics["many"].partitions:
        assert {RACKS[node] for node in partition.replicas} == {"a", "b", "c"}


def test_balance_of_what_is_even_does_nothing() -> None:
    machine = Situation("replicas 1 2 3, voters 1* 2 3").machine
    assert balance(machine.state, ALL_ALIVE) == []


def test_balance_moves_leaders_home_and_leaves_alone_what_is_changing() -> None:
    assert balance(Situation("replicas 1 2 3, voters 1 2* 3").machine.state, ALL_ALIVE) == [TransferLeader(1, 1)]
    assert balance(Situation("replicas 1 2 4, voters 1 2* 3").machine.state, ALL_ALIVE) == []
    assert balance(Situation("replicas 1 2 3, voters 1 2* 3, absent 3").machine.state, ALL_ALIVE) == []


def test_balance_does_not_place_on_dead_or_draining_nodes() -> None:
    machine = _many(10, (1, 2, 3), 1)
    machine.apply(SetDraining(4, True))
    health = Health({1: 0, 2: 0, 3: 0, 4: 0, 6: 0}, {5: 0})
    _balanced(machine, health)
    held, _ = _shares(machine)
    assert (held[3], held[4]) == (0, 0)
    assert held[5] == 4, "and the other topic's stream, so that it has as many as node 3"


def test_balance_keeps_leaders_in_the_preferred_data_centre() -> None:
    machine = _many(0, (1, 2, 3), 1)
    machine.apply(CreateTopic("home", UUID(int=3), [(1, 2, 4)] * 6, {"leader.rack": "a"}))
    machine.apply(NoteLeaders([(2 + n, 1, 1, 1, (1, 2, 4), ()) for n in range(6)]))
    _balanced(machine)
    for partition in machine.state.topics["home"].partitions:
        assert RACKS[partition.replicas[0]] == "a"
