"""The data pipeline, end to end: a sample master, a receiver, Spark, topics on real nodes, and a state table.

`check.py` says whether what came out is what went in; the demo uses it too.
"""
