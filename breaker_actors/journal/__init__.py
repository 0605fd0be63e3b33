"""The Journal of one shard: it writes transitions, checkpoints and alerts in one transaction and keeps the change
feed. In: commits of BreakerActors, announcements of replicas, and long polls. Out: a result or a pause per commit,
feed pages, and a nudge to the Notifier.

Public: `host.JournalHost`.
"""
