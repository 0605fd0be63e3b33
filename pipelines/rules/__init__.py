"""Rules as code: what a directory of YAML declares for a project. In: files with breakers, routers, mappings, channels
and mutes by their names. Out: a checked set of them with the place of each, or every problem with file and line.

Public: `files.TESTS`, `files.content_of`, `files.declared`, `files.read`, `files.read_text`,
`model.DEFAULT_OWNER`, `model.SECTIONS`, `model.Declared`, `model.Place`, `model.Problem`, `model.RuleSet`,
`model.refused`, `schema.schema_of_files`, `secrets.resolved`, `secrets.resolved_as_far`, `secrets.unresolved`,
`writing.text_of`, `yaml_text.Keys`, `yaml_text.Text`, `yaml_text.parse`, `yaml_text.shown`.
"""
