"""One scenario from beginning to end: a new cluster, load, harm, healing, and a verdict."""

import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .asking import AskError, ask_admin
from .checker import check
from .cluster import Cluster, ClusterFailed, can_mount
from .scenarios import CATCH_UP_TIMEOUT_S, ENDING_S, RECORDS, SERVICE_TIMEOUT_S, Scenario, Stage
from .workload import Load

WARM_UP_RECORDS = 20
TRACEBACKS_MAX = 3


@dataclass(slots=True)
class Outcome:
    scenario: Scenario
    seed: int
    acknowledged: int = 0
    gap_ms: int = 0  # the longest time without an acknowledgement, from the harm on until all was well again
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)  # what was done when, and what clients met
    logs: str = ""

    @property
    def passed(self) -> bool:
        return not self.violations

    def report(self) -> str:
        replay = f"python -m tests.e2e.faults --only '{self.scenario.title}' --seed {self.seed} --rounds 1"
        lines = [f"{self.scenario.title}, seed {self.seed}: replay with {replay}", *self.violations, "", *self.story]
        return "\n".join([*lines, "", self.logs])


def run(scenario: Scenario, seed: int) -> Outcome:
    outcome = Outcome(scenario, seed)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidelog-faults-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(
            Path(folder),
            nodes=scenario.nodes,
            settings=scenario.settings,
            faults="" if scenario.faults else None,
            small_disks=range(1, scenario.nodes + 1) if scenario.small_disks and can_mount() else (),
        )
        try:
            _play(scenario, cluster, outcome)
        except (ClusterFailed, AskError, TimeoutError, OSError) as error:
            outcome.violations.append(f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001 - a run of many goes on after a mistake of one
            outcome.violations.append(traceback.format_exc())
        finally:
            found = [text for node in cluster.nodes.values() for text in node.tracebacks()]
            if not scenario.ends:
                outcome.violations += [f"log: {text}" for text in found[:TRACEBACKS_MAX]]
            if outcome.violations:
                outcome.logs = cluster.logs()
            cluster.close()
    outcome.seconds = time.monotonic() - began_s
    return outcome


def _play(scenario: Scenario, cluster: Cluster, outcome: Outcome) -> None:
    cluster.start()
    load = Load(cluster, value_bytes=scenario.value_bytes)
    load.start()
    stage = Stage(cluster, load, random.Random(outcome.seed), scenario.target)
    try:
        load.wait_acknowledged(WARM_UP_RECORDS, SERVICE_TIMEOUT_S)
        stage.note("harm begins")
        harm_s = time.monotonic()
        try:
            scenario.act(stage)
            stage.note("healing")
            cluster.heal(reset=stage.rng.random() < 0.5)
            cluster.wait_ready()
            load.wait_acknowledged(RECORDS, SERVICE_TIMEOUT_S)
            stage.note("all is well")
        except (ClusterFailed, AskError, TimeoutError) as error:
            # Heal all the same: what the history shows then is worth knowing too.
            outcome.violations.append(f"service: {type(error).__name__}: {str(error).splitlines()[0]}")
            outcome.logs = cluster.logs()
            time.sleep(ENDING_S)  # whoever is about to end has ended then, and is started again
            cluster.heal()
        outcome.gap_ms = load.history.longest_gap_ms(harm_s, time.monotonic())
    finally:
        began_s = load.history.notes[0][0] if load.history.notes else time.monotonic()
        try:
            load.stop()
        finally:
            outcome.acknowledged = load.history.acknowledged
            errors = Counter((item.client, item.error) for item in load.history.produced)
            outcome.story = [f"{at_s - began_s:8.3f} s  {text}" for at_s, text in load.history.notes]
            outcome.story += [
                f"{client}: {count} × {error or 'acknowledged'}" for (client, error), count in sorted(errors.items())
            ]
    violations = [str(violation) for violation in check(load.history)]
    outcome.violations += violations
    for client, said in load.history.said.items():
        if any(client in violation.split() for violation in violations):
            outcome.story += [f"{at_s - began_s:8.3f} s  {client}: {text}" for at_s, text in said]
    outcome.violations += _compare_replicas(cluster, load)
    cluster.terminate()
    if not scenario.ends:
        outcome.violations += cluster.ended


def _compare_replicas(cluster: Cluster, load: Load) -> Sequence[str]:
    """Every replica has the same bytes, once it has caught up."""
    found: list[str] = []
    streams = {stream["partition"]: stream for stream in cluster.admin("streams", topic=load.topic)["streams"]}
    deadline_s = time.monotonic() + CATCH_UP_TIMEOUT_S
    for read in load.history.final:
        sums: dict[int, int] = {}
        for number in streams[read.partition]["voters"]:
            span = {"topic": load.topic, "partition": read.partition, "start": read.earliest, "end": read.latest}
            while True:
                try:
                    sums[number] = ask_admin(cluster.nodes[number].port, "checksum", **span)["crc"]
                    break
                except AskError as error:
                    if time.monotonic() > deadline_s:
                        found.append(f"replica: node {number} does not have partition {read.partition}: {error}")
                        break
                    time.sleep(0.1)
        if len(set(sums.values())) > 1:
            found.append(f"replica: the nodes' partitions {read.partition} differ: {sums}")
    return found
