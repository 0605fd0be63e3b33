"""The pages: links and pointers lead somewhere, terms are in the code, what is made from the code is as it is made."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from breaker_actors.core.model import Rule
from breaker_actors.core.moves import TRANSITIONS
from breaker_actors.core.rule_fields import FIELDS, KINDS, OPS, PARAMS, POLICIES
from breaker_actors.core.rules import DEFAULTS, parse_rule
from breaker_actors.settings import CLIENT_VARIABLES, Settings, variables
from breaker_actors.telemetry.catalog import TABLE, exported
from tests.support.exposed import exposed_labels
from tests.support.timelines import ending, parse, told
from tests.unit.test_timelines import live

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
CODE = ("breaker_actors", "api", "pipelines", "tests")
FENCE = re.compile(r"^(```+)(\w*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NUMBERS = r"\d+(?:\.\d+)?"
POINTER = re.compile(
    rf"(?P<page>[\w./-]+\.md)"
    rf"(?:\s+sections?\s+(?P<numbers>{NUMBERS}(?:(?:,\s*|\s+and\s+|\s+to\s+){NUMBERS})*)"
    r'|\s+(?P<titles>"[^"]+"(?:,\s*"[^"]+")*)'
    r"|,\s(?P<title>[A-Z]\w+))?"
)


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    """A page without its code blocks and without inline code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


@cache
def titles(page: Path) -> tuple[str, ...]:
    """The headings of a page, without code in them being taken for text."""
    return tuple(re.findall(r"^#+ (.+?)\s*$", FENCE.sub("", page.read_text()), re.MULTILINE))


def anchor(title: str) -> str:
    """The anchor that a reader's browser jumps to."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def found(page: str, beside: Path = DOCS) -> Path | None:
    """The file that a pointer or link means: in `beside`, docs/ or the root; a bare name also in folders of docs/."""
    near = [path for base in (beside, DOCS, ROOT) if (path := base / page).is_file()]
    return next(iter(near or DOCS.rglob(page)), None) if "/" not in page else next(iter(near), None)


# links and pointers


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_to_pages_and_sections_that_are_there(page: Path) -> None:
    for link in LINK.findall(prose(page.read_text())):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, section = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{ids(page)}: {link}"
        if section:
            assert section in {anchor(title) for title in titles(target)}, f"{ids(page)}: {link}"


def pointers() -> Iterator[tuple[str, str]]:
    """Every mention of a page in the texts of the code and configuration, with its place."""
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    for path in [*files, ROOT / "pyproject.toml", ROOT / "cluster.yaml", ROOT / ".ci" / "run"]:
        if path == Path(__file__):
            continue
        text = re.sub(r"\s*\n\s*(?:#\s*)?", " ", path.read_text())
        yield from ((ids(path), match.group()) for match in POINTER.finditer(text))


def wrong(pointer: str, beside: Path = DOCS) -> str | None:
    """What is wrong with a pointer such as `semantics.md sections 1 to 3`, `interface.md "Breaker"`; None: nothing."""
    match = POINTER.fullmatch(pointer)
    assert match is not None, pointer
    page = found(match["page"], beside)
    if page is None:
        return "no such page"
    numbers = {m[1] for title in titles(page) if (m := re.match(rf"({NUMBERS})\.? ", title))}
    wanted = set(re.findall(NUMBERS, match["numbers"] or ""))
    for first, last in re.findall(r"(\d+) to (\d+)", match["numbers"] or ""):
        wanted |= {str(number) for number in range(int(first), int(last) + 1)}
    names = [match["title"]] if match["title"] else re.findall(r'"([^"]+)"', match["titles"] or "")
    missing = [*sorted(wanted - numbers), *(name for name in names if name not in titles(page))]
    return f"no section {', '.join(missing)}" if missing else None


def test_pointers_in_the_code_lead_to_pages_and_sections_that_are_there() -> None:
    said = list(pointers())
    assert len(said) > 60
    assert {f"{place}: {pointer}: {why}" for place, pointer in said if (why := wrong(pointer))} == set()


def test_a_pointer_to_nowhere_is_noticed() -> None:
    assert wrong("semantics.md sections 2 and 3") is None
    assert wrong('interface.md "Breaker", "BreakerEvent"') is None
    assert wrong("interface.md, Errors") is None
    assert wrong("semantics.md sections 9 to 13") == "no section 13"
    assert wrong("architecture.md section 3.8") == "no section 3.8"
    assert wrong('interface.md "Breakers"') == "no section Breakers"
    assert wrong("elsewhere.md section 1") == "no such page"


BARE = re.compile(r"(?:^|[;&|(] *|until )breakers ", re.MULTILINE)


def test_guides_say_where_the_bare_command_comes_from() -> None:
    """In a checkout it is on nobody's PATH: whoever copies the first line meets `command not found`."""
    for page in sorted((ROOT / "docs" / "guides").glob("*.md")):
        blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", text := page.read_text(encoding="utf-8"), re.DOTALL)
        assert ".venv/bin" in text or not any(map(BARE.search, blocks)), page.name


def test_paths_in_the_pages_are_there() -> None:
    """Every `folder/file` of ours in backticks."""
    for page in PAGES:
        for path in re.findall(
            r"`((?:breaker_actors|api|pipelines|tests|docs|dashboards|deploy|examples)/[\w./*-]+)`", page.read_text()
        ):
            assert list(ROOT.glob(path)) or path.endswith("rNNNN_name.py"), f"{ids(page)}: {path}"


def test_settings_and_metrics_of_the_pages_are_those_of_the_code() -> None:
    known = variables()
    scraped = exposed_labels().keys()
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r"`(BREAKERS_[A-Z0-9_]*[A-Z0-9])(?:=[^`]*)?`", text):
            assert name in known, f"{ids(page)}: {name}"
        for name in re.findall(r"`(?:ray_)?(breakers_[a-z_]*[a-z])(?:\{[^`]*)?`", text):
            assert name in scraped or exported(name)[0].name in TABLE, f"{ids(page)}: {name}"


# README and the glossary


def test_readme_is_short_and_leads_everywhere() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = (link.partition("#")[0] for link in LINK.findall(prose(page.read_text())))
            waiting += [p for link in links if link.endswith(".md") and (p := (page.parent / link).resolve()).is_file()]
    assert set(PAGES) - reached == set()


def places() -> list[tuple[str, str]]:
    """(term, place) of every row of the glossary that names one."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", (DOCS / "concepts.md").read_text(), re.MULTILINE)
    return [
        (term, place)
        for term, where in rows
        for place in re.findall(r"`((?:breaker_actors|api|pipelines)\.[\w.]+)`", where)
    ]


def in_code(place: str) -> bool:
    """Is there such a module, or such a class, function, field or name in one?"""
    names = place.split(".")
    for end in range(len(names), 0, -1):
        base = ROOT.joinpath(*names[:end])
        path = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if path.is_file():
            return declares(ast.parse(path.read_text()).body, names[end:])
    return False


def declares(body: list[ast.stmt], names: list[str]) -> bool:
    """Does this body declare the first name, and in it the next?"""
    if not names:
        return True
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == names[0]:
            return declares(node.body, names[1:])
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == names[0] for target in targets):
            return len(names) == 1
    return False


def test_every_term_of_the_glossary_is_in_the_code() -> None:
    terms = places()
    assert len(terms) > 90
    assert [f"{term}: {place}" for term, place in terms if not in_code(place)] == []


def test_a_term_without_its_place_is_noticed() -> None:
    assert in_code("breaker_actors.core.model.Rule.metric")
    assert in_code("breaker_actors.core.model.StateWord")
    assert in_code("pipelines.replay")
    assert not in_code("breaker_actors.core.model.Rulebook")
    assert not in_code("breaker_actors.core.model.Rule.colour")
    assert not in_code("breaker_actors.nowhere.Rule")


def test_a_term_is_defined_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", (DOCS / "concepts.md").read_text(), re.MULTILINE)
    terms = [term for term in rows if term != "term" and not term.startswith("-")]
    assert len(terms) == len(set(terms))


# what is made from the code


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MADE: dict[Path, str] = generator().everything()


@pytest.mark.parametrize("page", MADE, ids=ids)
def test_generated_pages_are_as_they_are_made(page: Path) -> None:
    """Otherwise: uv run python docs/generate.py."""
    assert page.read_text() == MADE[page]


def test_what_is_made_has_everything_in_it() -> None:
    reference = DOCS / "reference"
    assert Settings.table() in MADE[reference / "settings.md"]
    assert all(f"`{name}`" in MADE[reference / "settings.md"] for name in CLIENT_VARIABLES)
    assert all(f"`{name}`" in MADE[reference / "metrics.md"] for name in TABLE)
    assert "## breakers deliveries redrive" in MADE[reference / "cli.md"]
    assert "| POST | `/v1/projects/{project_id}/ingest` |" in MADE[reference / "api.md"]
    assert "{{" not in MADE[reference / "limits.md"]


def test_a_picture_of_other_layers_is_noticed() -> None:
    page = DOCS / "architecture.md"
    other = page.read_text().replace('["wal"]', '["wall"]')
    assert other != page.read_text()
    assert generator().with_pictures(other) == page.read_text()


def test_the_picture_of_states_has_the_moves_of_the_table() -> None:
    drawn = re.findall(r"^ +(\w+) --> (\w+): ", (DOCS / "rules.md").read_text(), re.MULTILINE)
    assert set(drawn) == set(TRANSITIONS)


def test_the_stops_of_a_sample_are_files() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 16))
    for _, stop in rows:
        for path in re.findall(r"`([^`]+)`", stop):
            assert (ROOT / path).is_file(), path


def test_the_workflow_calls_the_one_command_and_nothing_else() -> None:
    jobs: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step] == [".ci/run"]


# the page of rules


def blocks(language: str) -> list[str]:
    return [body for _, word, body in FENCE.findall((DOCS / "rules.md").read_text()) if word == language]


@pytest.mark.parametrize("text", blocks("timeline"), ids=lambda text: text.splitlines()[0])
def test_timelines_of_the_page_run_as_they_say(text: str) -> None:
    timeline = parse("page", text)
    effects, breaker = live(timeline)
    assert told(effects) == timeline.expect
    assert ending(breaker.view(timeline.until_ms)) == timeline.end


def test_rules_of_the_page_are_rules() -> None:
    rules = [parse_rule(json.loads(text)) for text in blocks("json")]
    assert {rule.kind for rule in rules} >= {"error_rate", "percentile", "delta"}


def test_the_page_teaches_all_there_is() -> None:
    page = (DOCS / "rules.md").read_text()
    taught = {word for title in titles(DOCS / "rules.md") for word in title.replace(",", " ").split()}
    assert set(KINDS) <= taught
    assert {parse("page", text).rule["kind"] for text in blocks("timeline")} | {"percentile"} == set(KINDS)
    assert {field.name for field in FIELDS} == set(Rule.__struct_fields__)
    for word in (*KINDS, *OPS, *POLICIES, *(field.name for field in (*FIELDS, *PARAMS))):
        assert f"`{word}`" in page, word
    for name, value in DEFAULTS.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
        shown = row.split("|")[3].strip()
        assert shown == ("none" if value is None else str(value).lower()), name


# commands


def said_commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words) of every `breakers ...` in the blocks of the pages, up to where a shell or a remark ends it."""
    for page in PAGES:
        for _, language, body in FENCE.findall(page.read_text()):
            if language in ("", "sh", "bash"):
                for line in re.findall(r"\bbreakers ([a-z][^#&;|\n]*)", body.replace("\\\n", " ")):
                    yield ids(page), [word.strip("()[]\"'") for word in line.split()]


def test_commands_of_the_pages_are_commands_with_these_options() -> None:
    cli = MADE[DOCS / "reference" / "cli.md"]
    sections = {name: text for name, text in re.findall(r"^## breakers (.+)\n((?:.|\n(?!## ))*)", cli, re.MULTILINE)}
    said = list(said_commands())
    assert len(said) > 15
    for page, words in said:
        section = next((sections[name] for n in (2, 1) if (name := " ".join(words[:n])) in sections), None)
        assert section is not None, f"{page}: breakers {' '.join(words)}"
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert f"`{option}`" in section, f"{page}: {option} of breakers {' '.join(words)}"


def lines_of_guarantees() -> list[str]:
    """Each line that begins a point, with what goes on below it."""
    text = (DOCS / "guarantees.md").read_text().split("## To look for yourself")[0]
    return [re.sub(r"\s+", " ", point) for point in re.findall(r"^- (.+?)(?=\n- |\n\n|\Z)", text, re.M | re.S)]


@pytest.mark.parametrize("line", lines_of_guarantees(), ids=lambda line: line[:40])
def test_each_guarantee_names_its_test(line: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", line)
    assert named
    for path, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M), f"{path}::{name}"


def test_there_are_guarantees() -> None:
    assert len(lines_of_guarantees()) >= 20


def test_the_guide_to_sdks_ends_on_a_busy_machine() -> None:
    """A breaker that is judged late is open for its cooldown by the log's clock, which may be over by then: a short one
    was never seen open by the SDK, and the loop went on without end."""
    code = (ROOT / "docs/guides/sdks.md").read_text().partition("```python")[2].partition("```")[0]
    cooldown = re.search(r"cooldown_ms=([0-9_]+)", code)
    assert cooldown is not None
    assert int(cooldown.group(1)) >= 60_000
    assert all("deadline" in line for line in code.splitlines() if line.strip().startswith("while "))


def test_the_statsd_walk_ends_on_a_busy_machine() -> None:
    """The breaker is open for its cooldown of five seconds, then half_open without samples: a look that came later than
    that never saw it open, and the loop went on without end. Its history keeps the trip."""
    (wait,) = re.findall(r"^until .*\n(?=until )", (ROOT / "docs/guides/from-statsd.md").read_text(), re.MULTILINE)
    late = (
        "breakers() { case $1 in get) printf 'status.state\\thalf_open\\n';; "
        "events) printf 'time\\tpay\\thalf_open\\topen\\ntime\\tpay\\tclosed\\topen\\n';; esac; }\n"
    )
    done = subprocess.run(["bash", "-c", late + wait], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (0, "time\tpay\tclosed\topen\n")
