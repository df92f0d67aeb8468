"""The deterministic simulator: real Raft hosts, storage, replicas and cluster state, in a world that a seed decides.

Everything that is not deterministic in a data centre is simulated here and drawn from one seed: the order of events
(`scheduler`), delays and losses (`network`), clocks (`clock`), what a power cut leaves on a disk (`disk`), the faults
(`faults`) and the clients (`client`). After every event the safety properties of consensus and of the log are
checked (`invariants`); at the end everything heals and must agree (`world`). A seed that fails once fails always:

    python -m tests.sim --seeds 1000            a range of seeds, two processes
    python -m tests.sim --seed 4711             one seed again, with the trace of its events

Not simulated: two threads of a node at work in the very same moment (their steps are events, see `threads`), sockets
and codecs of the peer transport, damaged media (the storage tests flip bits), and lies (Byzantine nodes).
"""
