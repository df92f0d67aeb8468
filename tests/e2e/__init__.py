"""End to end: real processes and real clients over loopback. The server is ours, or one that is already running
(`TIDELOG_E2E_BOOTSTRAP=HOST:PORT`), such as Apache Kafka, which is the oracle of what is expected here.
"""
