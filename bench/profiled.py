"""`python -m bench.profiled FILE MODULE ARGUMENTS…`: a module under cProfile, which writes FILE when it ends.

Only the main thread is looked at, and what counts is its CPU time: waiting, for the disk, for the interpreter or for a
machine that is busy otherwise, is not what one looks for.
"""

import cProfile
import runpy
import sys
import time


def main(path: str, module: str, arguments: list[str]) -> None:
    sys.argv = [module, *arguments]
    profile = cProfile.Profile(time.thread_time)
    try:
        profile.runcall(runpy.run_module, module, run_name="__main__", alter_sys=True)
    finally:
        profile.dump_stats(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
