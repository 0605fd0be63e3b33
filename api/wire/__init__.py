"""Bodies and query strings: how requests become values and values become answers; pure. In: bytes and query strings of
a request, and stored rows. Out: typed requests or one error that names the field, and JSON answers with their headers.

Public: `changed_fields`, `comparison`, `decoding`, `exposition`, `http`, `overrides`, `query`, `remarks`, `requests`,
`requests_accounts`, `requests_bulk`, `requests_mappings`, `requests_mutes`, `requests_rules`, `responses`,
`responses_accounts`, `responses_admin`, `responses_deliveries`, `responses_mappings`, `responses_mutes`,
`responses_rules`, `sample_columns`, `samples`, `telling`, `types`, `unknown`.
"""
