"""A process that walks through steps until it is killed: `python -m tests.regionwal.victim BOOTSTRAP NAMESPACE SEED N`.

It prints the number of each step when it has been done, so that whoever reads knows what was acknowledged.
"""

import sys

from tidelog.regionwal import RegionWal, Settings

from .model import do_to_wal, random_steps
from .world import NEVER_S

REGION = 1
RECORD_BYTES_MAX = 2_000


def settings(bootstrap: str, namespace: str) -> Settings:
    return Settings(
        bootstrap=bootstrap, namespace=namespace, clean_period_s=NEVER_S, entry_record_bytes_max=RECORD_BYTES_MAX
    )


def main(bootstrap: str, namespace: str, seed: str, count: str) -> None:
    wal = RegionWal(settings(bootstrap, namespace))
    wal.open_region(REGION)
    print("open", flush=True)
    for number, step in enumerate(random_steps(int(seed), int(count))):
        do_to_wal(wal, REGION, step)
        print(number, flush=True)
    wal.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
