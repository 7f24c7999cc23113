"""Benchmarks: feedmux beside what a user would use instead, in the same run on the same data. See README.md."""
