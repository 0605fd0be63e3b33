"""Throughput and latency numbers, each module with `main(argv)`; `python -m tests.bench <name>` runs one."""
