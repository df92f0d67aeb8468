"""Every client that people use, through one list of scenarios.

A scenario is written once, in `test_*.py`, against `Client` (`client.py`) and runs with each client of
`environments.CLIENTS`. A client lives in a *driver*: a small program in `drivers/` in whatever language the client
is for. It reads one JSON command a line on stdin and writes one answer a line on stdout:

    {"op": "produce", "topic": "t", "codec": "gzip", "idempotent": false, "acks": -1, "records": [...]}
    {"ok": {"results": [{"partition": 0, "offset": 17}]}}

    {"ok": {...}}                                   it worked
    {"error": {"code": 3, "message": "..."}}        refused, with Kafka's error code, or null where there is none
    {"bug": "traceback"}                            the driver itself failed

Keys, values and header values are base64 or null; a place `at` is an offset, "earliest", "latest" or {"time": ms}.

    hello                                           {"client": name and version, "lacks": {feature: why}}
    produce   topic codec idempotent acks records   {"results": [{"partition", "offset"} or {"error"}]}, one a record
    open      consumer group instance reset topics assign       join as `consumer`, or read the places of `assign`
    poll      consumer count timeout_ms             {"records": [...]}, as soon as there are `count`
    settle    consumers partitions timeout_ms       {"assignments": {consumer: [[topic, partition]]}}, once each has
                                                    partitions, none has another's, and together they have that many
    commit    consumer offsets                      the positions after what was polled, or [[topic, partition, offset]]
    committed consumer topic partition              {"offset"}
    close     consumer; reset (all of them)
    create_topic topic partitions configs, delete_topic topic, list_topics, describe_topic topic,
    create_partitions topic count, alter_config topic configs, describe_config topic,
    delete_records topic partition before, list_offsets topic partition at,
    list_groups, describe_group group, delete_group group, group_offsets group topic partition

To add a client: write its driver (in Python, `drivers/stdio.py` has all but the client in it), pin what it needs in
`drivers/pins/`, and add a line to `environments.CLIENTS`. What the client cannot do it says in `lacks`, with the
reason; the words are `client.FEATURES`. Scenarios that need it then skip. Nothing else has to change.

    make test-fast ARGS="tests/e2e/clients -k confluent"                      one client, the quick scenarios
    .venv/bin/python -m pytest tests/e2e/clients -k "java and static"         one client, one scenario
    TIDELOG_E2E_BOOTSTRAP=127.0.0.1:9092 .venv/bin/python -m pytest tests/e2e/clients       against a running broker

Environments are made on demand in `.clients/` (`TIDELOG_CLIENTS_DIR`) and kept. A client that cannot be had, for
want of its runtime or of a network, skips.
"""
