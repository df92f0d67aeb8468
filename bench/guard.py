"""`tidelog bench guard` (`make bench-quick`): is Tidelog still as close to its floor as it was?

What is compared is never an absolute figure. Each shape of work is done in turn by Tidelog and by its floor
(`bench.floor`: three replicas that only move bytes; for reading, `bench.floor_server`), and the ratio of the two is
held against the ratio in bench/baseline.json. So another machine, or a busy one, moves both sides.

Noise only ever makes a round dearer or slower. Hence the best round of each side counts, for CPU as for wall time, and
a loss must show `ATTEMPTS_MAX` times in a row before it is believed; a baseline is the least of as many measurements.
CPU ratios move least; wall ratios on two shared cores move a lot, which is why the bound is as wide as it is.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import Shape, floor_cluster
from bench.contenders import Contender, running, tidelog
from bench.figures import alternate
from bench.frames import KIB, MIB, batch_of, fetch_frame, records_in
from bench.processes import Program, serving
from bench.raw_client import RawClient
from bench.scratch import scratch
from tidelog.cli import CommandError

BASELINE = Path(__file__).with_name("baseline.json")
LOSS_MAX = 0.25
ATTEMPTS_MAX = 3
ROUNDS, WARM_UP = 5, 1
TOPIC = "guard"
READ_SHAPE = Shape("64 KiB", 64 * KIB, 32, 750)
READ_BYTES = 1 * MIB
SHAPES = (Shape("64 KiB", 64 * KIB, 32, 750), Shape("1 KiB", 1 * KIB, 256, 10_000))
_MARGIN = 4 * KIB  # of an answer, beside its batches


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one round, all processes of a side together."""

    seconds: float
    cpu_s: float


def closeness(ours: Sequence[Cost], floor: Sequence[Cost]) -> dict[str, float]:
    """Floor's best round over ours: 1 is as good as the floor."""
    return {
        "CPU": min(cost.cpu_s for cost in floor) / min(cost.cpu_s for cost in ours),
        "wall time": min(cost.seconds for cost in floor) / min(cost.seconds for cost in ours),
    }


def losses(baseline: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Which ratios have lost more than they may, and what share of the baseline they lost."""
    lost = {name: 1 - measured[name] / before for name, before in baseline.items() if name in measured}
    return {name: share for name, share in lost.items() if share > LOSS_MAX}


def guard(*, write: bool = False) -> int:
    """Exit status: 1 when something has become worse."""
    if not write and not BASELINE.exists():
        raise CommandError(f"there is no {BASELINE.name} to compare with: make one with `tidelog bench guard --write`")
    baseline: dict[str, float] = {} if write else json.loads(BASELINE.read_text())["ratios"]
    best: dict[str, float] = {}
    for attempt in range(1, ATTEMPTS_MAX + 1):
        for name, ratio in measure().items():
            better = min if write else max  # a baseline that was luck would fail everything behind it
            best[name] = better(ratio, best.get(name, ratio))
        if write:
            continue
        if not (lost := losses(baseline, best)):
            break
        print(f"attempt {attempt}: less than before in {', '.join(lost)}", flush=True)
    width = max(map(len, best))
    for name, ratio in best.items():
        before = f"before {baseline[name]:.2f}, {ratio / baseline[name] - 1:+.0%}" if name in baseline else "new"
        print(f"{name:{width}}  {ratio:.2f} of the floor  ({before})")
    if write:
        content = {"at": time.strftime("%Y-%m-%d", time.gmtime()), "ratios": {k: round(v, 3) for k, v in best.items()}}
        BASELINE.write_text(json.dumps(content, indent=1) + "\n")
        return 0
    for name, share in losses(baseline, best).items():
        print(f"FAILED: {name} has lost {share:.0%} against the floor, more than {LOSS_MAX:.0%}")
    return 1 if losses(baseline, best) else 0


def measure() -> dict[str, float]:
    """How close Tidelog is to its floor, shape by shape."""
    found: dict[str, float] = {}
    with scratch() as folder, running(tidelog(folder)) as contender:
        contender.create([TOPIC])
        contender.await_home(TOPIC)
        with closing(contender.connect(contender.leader_of(TOPIC))) as client:
            for shape in SHAPES:
                for kind, ratio in _produce(contender, client, shape).items():
                    found[f"produce {shape.name}, {kind}"] = ratio
            for kind, ratio in _read(contender).items():
                found[f"read {READ_SHAPE.name} batches, {kind}"] = ratio
    return found


def _cost(cpu_s: Callable[[], float], settle: Callable[[], None], action: Callable[[], float]) -> Cost:
    settle()
    before_s = cpu_s()
    seconds = action()
    return Cost(seconds, cpu_s() - before_s)


def _compared(
    contender: Contender, ours: Callable[[], float], floor: Sequence[Program], theirs: Callable[[], float]
) -> dict[str, float]:
    def floor_cpu_s() -> float:
        return sum(program.cpu_s() for program in floor)

    measured = alternate(
        {
            "ours": lambda: _cost(contender.cpu_s, contender.settle, ours),
            "floor": lambda: _cost(floor_cpu_s, contender.settle, theirs),
        },
        ROUNDS,
        WARM_UP,
    )
    return closeness(measured["ours"], measured["floor"])


def _produce(contender: Contender, client: RawClient, shape: Shape) -> dict[str, float]:
    with scratch() as folder, floor_cluster(folder, shape) as bare:

        def ours() -> float:
            return client.produce(TOPIC, bare.batch, shape.count, shape.window).seconds

        return _compared(contender, ours, bare.programs, lambda: bare.send().seconds)


@contextmanager
def _giving(size: int) -> Iterator[tuple[Program, RawClient]]:
    """The floor of reading: answers of `size` bytes, straight from a file."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        path = os.path.join(folder, "given")
        Path(path).write_bytes(os.urandom(16 * MIB))
        server = stack.enter_context(
            serving(["bench.floor_server", "give", str(size), path], os.path.join(folder, "floor.log"))
        )
        yield server.program, stack.enter_context(closing(RawClient(server.address)))


def _read(contender: Contender) -> dict[str, float]:
    """From a stream of its own, so that its batches are all alike."""
    topic = f"{TOPIC}-read"
    contender.create([topic])
    contender.await_home(topic)
    batch = batch_of(READ_SHAPE.batch_bytes)
    per_batch, total = records_in(batch), READ_SHAPE.count * len(batch)
    given = READ_BYTES // len(batch) * len(batch)
    with closing(contender.connect(contender.leader_of(topic))) as reader, _giving(given) as (program, floor_reader):
        reader.produce(topic, batch, READ_SHAPE.count, READ_SHAPE.window)

        def frame_at(position: int) -> bytes:
            return fetch_frame(topic, position // len(batch) * per_batch, given + _MARGIN)

        return _compared(
            contender,
            lambda: reader.read_whole(frame_at, total, len(batch)),
            [program],
            lambda: floor_reader.read_whole(frame_at, total, given),
        )
