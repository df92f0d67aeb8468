"""A process ends as by kill -9, at every step of open, write, mark, snapshot and clean: what was acknowledged is there.

Each fault point of the WAL is tried early and again later, when there are snapshots and a trimmed log to crash upon.
The region is then opened by this process, compared with the model, and worked with on.
"""

import os
import subprocess
import sys

import pytest

from tidelog import faults
from tidelog.regionwal import RegionWal

from .model import RegionModel, content_of, deleted_in, do_to_model, do_to_wal, possible_after, random_steps
from .victim import RECORD_BYTES_MAX, REGION
from .world import World, contents

POINTS = sorted(name for name in faults.POINTS if name.startswith("regionwal."))
STEPS = 40
STEPS_AFTER = 12
FIRST_OF_ALL = {
    "regionwal.write.resolve": "regionwal.write.delivered=drop,skip:3,count:4"
}  # so that it is passed at all
VICTIM_S_MAX = 60
# Half of the points at once, half the second time; `HYPOTHESIS_PROFILE=search` tries each point both ways.
SEARCHING = os.environ.get("HYPOTHESIS_PROFILE") == "search"
TRIED = [(point, skip) for number, point in enumerate(POINTS) for skip in ((0, 1) if SEARCHING else (number % 2,))]


def crash(world: World, seed: int, fault: str) -> tuple[int, list[str]]:
    """The victim's status and what it said."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.regionwal.victim", world.log.bootstrap, world.namespace, str(seed), str(STEPS)],
        env={**os.environ, faults.ENVIRONMENT: fault},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=VICTIM_S_MAX,
        check=False,
    )
    assert ended.returncode in (0, faults.CRASH_STATUS), ended.stderr
    return ended.returncode, ended.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(("point", "skip"), TRIED)
def test_what_was_acknowledged_survives_a_crash(tidelog_world: World, point: str, skip: int) -> None:
    seed = 100 * POINTS.index(point) + skip
    steps = random_steps(seed, STEPS)

    status, said = crash(tidelog_world, seed, f"{point}=crash,skip:{skip};{FIRST_OF_ALL.get(point, '')}")

    assert status == faults.CRASH_STATUS, f"the WAL did not pass {point} {skip + 1} times in {STEPS} steps"
    done = max(0, len(said) - 1)  # the first word says that the region is open
    model = RegionModel()
    for step in steps[:done]:
        do_to_model(model, step)
    wal = tidelog_world.node(entry_record_bytes_max=RECORD_BYTES_MAX)
    works_on(wal, model_of(wal, possible_after(model, steps[done] if said and done < STEPS else None)), seed)


def model_of(wal: RegionWal, possible: list[RegionModel]) -> RegionModel:
    """The one that the WAL holds."""
    found, deleted = content_of(wal.scan(REGION)), deleted_in(wal, REGION)
    for model in possible:
        if model.recover(deleted) and model.content == found:
            return model
    raise AssertionError(f"{found}, of which {deleted} are deleted, is none of {possible}")


def works_on(wal: RegionWal, model: RegionModel, seed: int) -> None:
    """From what is there on the WAL does what the model does, and goes on with the same numbers."""
    for table, held in model.tables.items():
        assert wal.sequence_num(REGION, table) == held.last
    for step in random_steps(seed + 1, STEPS_AFTER, model=model):
        do_to_wal(wal, REGION, step)
    assert contents(wal.scan(REGION)) == model.scanned
    for table, held in model.tables.items():
        assert [(entry.sequence, bytes(entry.payload)) for entry in wal.read(REGION, table)] == held.live
