"""Consensus on a log, as a pure state machine: no sockets, clocks, files or threads.

A `Group` is one replicated log on one node; a `Host` carries all groups of a node. Both take events and give effects.
Whoever owns one drives it like this, in one turn of its loop after another:

    for envelope in arrived:
        host.receive(envelope, now_ms)
    ticket = host.group(7).propose(EntryKind.DATA, batches, deadline_ms, now_ms)     # or a Refusal, at once
    host.touched(7)

    work = host.poll(now_ms)                   # fires what is due, collects what there is to do
    for envelope in work.envelopes:
        transport.send(envelope)               # may be lost, repeated, reordered
    for group, effects in work.groups:
        effects.hard_state                     # write it, sync it, then host.hard_state_written(group, it, now_ms)
        effects.base                           # likewise, then host.base_written(group, it, now_ms)
        effects.answers                        # Committed, Readable or Refused; each ticket gets one
        effects.commit, effects.leadership, effects.configuration
    sleep until host.next_deadline_ms(), or something arrives

The log (`Log`, which the owner implements) is written behind the core's back: whenever its `durable_index` has moved,
say `host.written(group, now_ms)`. On start, hand each group what was last made durable: hard state, base configuration,
and the configurations found in the log.
"""
