"""Power cuts and kills at random: what was reported is there, what comes back was written, and in that order."""

import random
from contextlib import suppress

import pytest

from tests.sim.disk import SimulatedCrash
from tests.storage.machine import Machine
from tidelog.raft.log import EntryKind
from tidelog.storage import StoredVote


def _random_steps(machine: Machine, rng: random.Random, count: int) -> None:
    for _ in range(count):
        log = machine.log
        match rng.choices(
            [
                *("append", "append_many", "own", "write", "write_only", "house"),
                *("truncate", "trim", "vote", "settle", "take_over", "roll"),
            ],
            [30, 10, 5, 20, 10, 15, 6, 6, 4, 4, 1, 4],
        )[0]:
            case "append":
                machine.append(rng.choice([10, 100, 700, 2500]))
            case "append_many":
                machine.append(*[rng.choice([10, 200, 1500]) for _ in range(rng.randrange(2, 6))])
            case "own":
                machine.append(rng.randrange(30), kind=rng.choice([EntryKind.NOOP, EntryKind.CONFIGURATION]))
            case "write":
                machine.write()
            case "write_only":
                machine.store.run_write()  # and the next group may come before its sync
            case "house":
                machine.keep_house()
            case "truncate" if log.last_index > machine.committed_index:
                machine.truncate_from(max(machine.committed_index + 1, log.last_index - rng.randrange(12)))
            case "trim":
                machine.trim(rng.randint(log.start_offset, log.offset_after(log.durable_index)))
            case "vote":
                machine.cast_vote(StoredVote(machine.term, rng.choice([None, 1, 2, 3])))
            case "settle":
                log.settle()
            case "roll":
                log.roll()
            case "take_over":
                machine.take_over(log.last_index + rng.randrange(1, 50), log.next_offset + rng.randrange(100))
            case _:
                pass


def _survive(machine: Machine, rng: random.Random, lives: int, steps: int, crash_within: int) -> None:
    for _ in range(lives):
        dies_after = rng.choice([machine.disk.crash_after, machine.disk.crash_after, machine.disk.kill_after])
        dies_after(rng.randrange(crash_within))  # a killed process leaves what it wrote, synced or not, to the next one
        with suppress(SimulatedCrash):
            _random_steps(machine, rng, steps)
        machine.crash()
        while True:
            machine.disk.crash_after(rng.randrange(1, 60))
            try:
                machine.recover()
                break
            except SimulatedCrash:
                machine.crash()


@pytest.mark.parametrize("seed", range(40))
def test_power_cut_anywhere_loses_nothing_durable_and_invents_nothing(seed: int) -> None:
    rng = random.Random(seed)
    _survive(Machine(seed, direct=seed % 4 != 0), rng, lives=6, steps=60, crash_within=120)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_many_more_power_cuts(block: int) -> None:
    for seed in range(1000 + block * 60, 1060 + block * 60):
        rng = random.Random(seed)
        _survive(Machine(seed, direct=seed % 4 != 0), rng, lives=8, steps=80, crash_within=rng.choice([20, 100, 300]))
