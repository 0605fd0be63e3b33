"""Rules as code, on the side of the service: what files declare against what there is. In: a document of an owner, and
all that a project has. Out: a plan in a stable order, the change that carries it out, and the document of a project.

Public: `checking.wrong_in`, `comparing.Comparison`, `comparing.compared`, `comparing.drifted`, `deciding.Guards`,
`deciding.adopting`, `deciding.applying`, `exporting.exported`, `model.Asked`, `model.NOT_COMPARED`.
"""
