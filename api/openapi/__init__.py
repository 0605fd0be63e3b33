"""The API in its own words: the table of operations, described bodies, the document and its page. In: nothing from the
running service: tables, structs and the rules' bounds. Out: `/openapi.json`, `/docs` and `breakers openapi`.

Public: `document.document`, `page.SCRIPT_PATH`, `page.packed`, `page.page`, `page.policy`, `page.script`,
`printing.print_document`, `rule_files.schema_of_rule_files`, `words.words_of`.
"""
