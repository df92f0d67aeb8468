"""PikiwiDB (Pika) as a source: its replication stream and its snapshots, up to a durable log on this side.

    master ──PB replication──▶ link, session ──▶ WAL ──▶ (Spark: filter, events, Kafka)
           ──rsync2──────────▶ dump (a folder) ──▶ commands

A receiver (`receiver.py`) registers with a master as its slaves do, appends what it gets to a WAL and acknowledges
what is durable there, nothing else. When the master no longer has the wanted position, the receiver fetches a dump,
and the binlog goes on flowing into the WAL meanwhile.

Words: a **position** is the end of a binlog item, file number and offset (`position.py`); an **item** is one command
of the master's binlog with its header; **AckCP** is the position up to which a pipeline has delivered, **DurableCP**
the one up to which the WAL is durable.
"""
