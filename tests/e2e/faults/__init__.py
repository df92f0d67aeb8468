"""Real nodes on loopback while something goes wrong, under real clients; a checker reads what they saw.

links      what lies between two nodes: cut, cut one way, slowed, healed
cluster    nodes as processes: started, killed, stopped, wiped, their disks filled
workload   clients that write down everything they asked for and got
history    what they write down
checker    what such a history must never show (pure)
scenarios  what goes wrong, and for whom
runner     one scenario from beginning to end; `python -m tests.e2e.faults` runs them for as long as asked
"""
