"""Clients of several brokers, all in the test's own event loop and joined by real connections."""
