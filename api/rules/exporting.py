"""The document of a project, or of one owner in it, in its only form."""

from __future__ import annotations

from api.rules.differing import declared_fields
from api.rules.forms import Form, form_of, sparse
from api.rules.model import KINDS, declarations, name_of, names_of, rows_of
from api.wire.responses_rules import RulesExport
from breaker_actors.store.rows import MuteRow, ProjectRules


def exported(rules: ProjectRules, owner: str | None, now_ms: int) -> RulesExport:
    """What is declared by an owner, as it is now; of everybody, and of nobody, where it is None. Defaults are left out;
    mappings keep their order, all else is in the order of names. Of equal names the oldest is told."""
    names, known = names_of(rules), declarations(rules)
    labels = dict[str, str]()
    found: dict[str, dict[str, Form]] = {}
    for kind in KINDS:
        told = dict[str, Form]()
        for row in rows_of(rules, kind):
            one = known.get((kind, row.id))
            if owner is not None and (one is None or one.owner != owner):
                continue
            if isinstance(row, MuteRow) and row.state(now_ms) == "expired":
                continue
            if one is not None and owner is not None:
                labels = one.labels
            references = {} if one is None else one.fields.get("references", {})
            form = declared_fields(row, form_of(row, names), references)
            form.pop("references", None)
            # Who declares a thing knows it by its name in the files, which is the same unless it was renamed by hand.
            name = one.name if one is not None and isinstance(row, MuteRow) else name_of(row)
            told.setdefault(name, sparse(kind, form))
        found[kind] = told if kind == "mappings" else dict(sorted(told.items()))
    return RulesExport(owner=owner, labels=labels, **found)
