"""The store's configuration: organisations, projects, breakers, routers, channels, and the audit log of their changes.
In: drafts, edits and Idempotency-Keys, with the key that asks. Out: rows as they are stored, and change rows (the
outbox of configuration) for the routers' logs.

Public: `audit_log`, `change_rows.name_streams`, `change_rows.newest_gone`, `channels`, `parts.Configuration`,
`projects`, `routing_tables`.
"""
