"""Attacks by hostile jobs, visitors and agents on a running site; see `benchmarks.intrusion`."""
