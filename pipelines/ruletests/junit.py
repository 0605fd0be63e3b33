"""The outcome of tests as JUnit XML, which build servers show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree  # nosec B405 # it is written, nothing is parsed

from pipelines.ruletests.outcome import Outcome
from pipelines.ruletests.words import lines_of

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(outcomes: Sequence[Outcome]) -> str:
    """A document with a suite for each file and a case for each test and breaker; a failure has the lines that the
    command prints."""
    root = ElementTree.Element("testsuites", _counts(outcomes))
    for file in dict.fromkeys(one.case.place.file for one in outcomes):
        inside = [one for one in outcomes if one.case.place.file == file]
        suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(file), **_counts(inside)})
        for one in inside:
            _add_case(suite, one)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(outcomes: Sequence[Outcome]) -> dict[str, str]:
    failed = sum(not one.passed for one in outcomes)
    took = f"{sum(one.took_s for one in outcomes):.3f}"
    return {"tests": str(len(outcomes)), "failures": str(failed), "errors": "0", "time": took}


def _add_case(suite: ElementTree.Element, one: Outcome) -> None:
    place = one.case.place
    name = one.case.name if len(one.case.breakers) == 1 else f"{one.case.name} ({one.breaker.name})"
    where = {"file": _clean(place.file), "line": str(place.line)}
    named = {"classname": _clean(one.breaker.name), "name": _clean(name), "time": f"{one.took_s:.3f}", **where}
    case = ElementTree.SubElement(suite, "testcase", named)
    if not one.passed:
        problems = [row for row in one.rows if row.problem]
        told = {"message": _clean(f"{one.case.time(problems[0].at_ms)}: {problems[0].problem}"), "type": "expectation"}
        ElementTree.SubElement(case, "failure", told).text = _clean("\n".join(lines_of(one)))


def _clean(text: str) -> str:
    """Text without what XML can't say."""
    return _NOT_XML.sub("\ufffd", text)
