"""What the service keeps in its database: protocols, rows, tables, secrets and quotas. In: drafts, queries and fenced
commits. Out: rows as values, and errors such as `NotFound` or `Overloaded`.

Public: `base`, `config`, `faults`, `holders`, `identity`, `mappings`, `migrations`, `mutes`, `operational`, `outbox`,
`own_file`, `quotas`, `rows`, `secrets`, `sql_store`, `tables`.
"""
