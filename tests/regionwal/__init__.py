"""The region WAL, against our own server and against Apache Kafka, both real processes."""
