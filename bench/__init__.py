"""Benchmarks. Machines are shared and noisy, so a result is a ratio against a floor measured in the same minutes."""
