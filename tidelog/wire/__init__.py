"""Kafka's protocol as bytes: no sockets, no state, nothing of the rest of the project."""
