"""Delta tables out of streams: what every key holds, all events, any stream of JSON.

`fold` and `rows` are pure; `delta` writes tables through delta-rs; `state` is the table of current state, `build` keeps
it up with a source's dump and WAL; `append` is a sink of Spark's for events; `from_stream` lands a stream of JSON;
`merge` keeps the state table up by MERGE; `query` asks Spark SQL. Only `append`, `merge` and `query` import pyspark.
"""
