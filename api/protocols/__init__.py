"""Open protocols: what senders of OTLP, Prometheus remote-write and StatsD say, as series and points; pure. In: bytes
of request bodies, inflated or about to be, within stated bounds, and a project's mappings. Out: columns of points with
their series, each bad point by name, what each series becomes, and bodies of answers.

Public: `bounds`, `columns`, `mapping`, `memory`, `otlp_answers`, `otlp_json`, `otlp_protobuf`, `points`,
`protobuf`, `remote_write1`, `remote_write2`, `series`, `snappy`, `taking`.
"""
