"""Backfill: recorded samples become history, with the events that breakers would have had on them. In: a request that
names samples and breakers, and the manifest of an earlier run. Out: checked samples in the history store, events for
the service's store, and rejected rows with the reason.

Public: `evaluate.BreakerEvent`, `manifest`, `removal`, `steps`, `validation.allowed`.
"""
