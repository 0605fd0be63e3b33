"""The write-ahead log of samples: one dense sequence of records per router, on SQLite files or PostgreSQL. In: appends
under a fencing epoch, and ranges to read or to trim. Out: offsets once records are durable, and records in log order.

Public: `base`, `postgres.PgLog`, `reader`, `sqlite.SqliteLog`, `sqlite.newest_change`.
"""
