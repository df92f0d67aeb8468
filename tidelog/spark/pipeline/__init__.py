"""From a PikiwiDB source's WAL and dumps to topics: everything after the receiver, as Spark queries.

`supervisor.run_pipeline` runs all of it; `database.py` is the way of one database, `generation.py` decides what comes
next, `query.py` runs one query from its commit record on, `topics.py` knows where events go. docs/pipeline.md is the
guide.
"""
