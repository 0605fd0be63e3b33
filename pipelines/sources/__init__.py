"""Where recorded samples come from and how files are written: files, object stores, the history store, a service's
log. In: paths, URLs, frames, or the data directory of a service. Out: checked batches in one shape and in order of
time, and files that are there as a whole or not at all.

Public: `atomic_files`, `before_log`, `choice.Choice`, `external_sort.Sorted`, `files`, `given.source_over`,
`history_store`, `object_store`, `passed_over`, `routing`, `service_log`, `together`.
"""
