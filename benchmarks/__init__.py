"""Benchmarks: ratios taken side by side in one process. `make bench` runs them all."""
