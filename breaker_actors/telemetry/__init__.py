"""Metrics, logs, supervised loops, and what was set aside because it could not be read. In: counts, durations and
errors of every part. Out: JSON lines on stderr, metrics for Prometheus through Ray, and rows for the table
`set_aside`.

Public: `after_commit`, `catalog`, `guard`, `logs`, `meters`, `ray_export`, `set_aside`.
"""
