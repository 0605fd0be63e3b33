"""One way to run a transaction on SQLite or PostgreSQL: engines, threads, retries and error texts. In: database URLs,
and functions over a connection. Out: what those functions return, or `Unavailable` when the database can't be reached.

Public: `copies`, `database`, `durability`, `postgres`, `presence`, `readers`, `retries`, `sqlite`, `turnstile`.
"""
