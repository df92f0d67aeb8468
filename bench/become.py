"""`python -m bench.become PROGRAM ARGUMENTS…`: becomes another program, under the same process id.

So `bench.processes.Program` starts, measures and ends what is not written in Python as it does all else.
"""

import os
import sys

if __name__ == "__main__":
    os.execvp(sys.argv[1], sys.argv[1:])
