"""What a replica remembers of keys, projects, routers and mappings, so that a sample costs no query. In: hashes and ids
to look up, and changes from the feed that make an entry stale. Out: rows from memory or, shared by all who miss them,
from the store.

Public: `caches.Caches`, `ingest_memory`, `key_usage`, `mapping_plans`, `project_index`, `project_memories`,
`remembered`, `series_outcomes`, `states.States`.
"""
