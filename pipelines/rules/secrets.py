"""Secrets of channels: in files only where they come from, `{env: NAME}` or `{file: PATH}`, never they themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from breaker_actors.text.redaction import mask
from pipelines.rules.model import Declared, Problem, RuleSet, refused

SECRET_BYTES_MAX = 65_536


def is_reference(value: Any) -> bool:
    """Whether a value says where it comes from."""
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in ("env", "file")


def plain_secrets(config: Any, path: str = "config") -> Iterator[str]:
    """The places of secrets that stand in a channel's config as they are."""
    if not isinstance(config, Mapping):
        return
    for key, value in config.items():
        if is_reference(value):
            continue
        if isinstance(value, Mapping):
            yield from (f"{path}.{key}.{inner}" for inner in _plain(mask({key: value})[key], value))
        elif mask({key: value}) != {key: value}:
            yield f"{path}.{key}"


def _plain(masked: Any, value: Mapping[str, Any]) -> list[str]:
    return [key for key, one in value.items() if not is_reference(one) and masked[key] != one]


def resolved(rules: RuleSet, environ: Mapping[str, str]) -> dict[str, Any]:
    """The document of the rules with the secrets in their places, and `references` beside them. Files are looked for
    beside the file that names them. Raises Invalid with all that is missing."""
    document, missing = resolved_as_far(rules, environ)
    if missing:
        raise refused(missing)
    return document


def resolved_as_far(rules: RuleSet, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """The same without the secrets that are missing, which are told."""
    document, problems = rules.document(), list[Problem]()
    for name, channel in rules.channels.items():
        fields = document["channels"][name]
        config = fields.get("config")
        if isinstance(config, Mapping):
            references = dict[str, Any]()
            fields["config"] = _resolved(channel, config, "", environ, references, problems)
            if references:
                fields["references"] = references
    return document, problems


def unresolved(rules: RuleSet) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """The document without any secret, and where they belong: of each channel paths such as config.url."""
    document, unset = rules.document(), dict[str, set[str]]()
    for name, channel in rules.channels.items():
        config = channel.fields.get("config")
        if isinstance(config, Mapping):
            references = dict[str, Any]()
            document["channels"][name]["config"] = _resolved(channel, config, "", {}, references, [])
            unset[name] = {f"config.{path}" for path in references}
    return document, unset


def _resolved(
    channel: Declared,
    config: Mapping[str, Any],
    above: str,
    environ: Mapping[str, str],
    references: dict[str, Any],
    problems: list[Problem],
) -> dict[str, Any]:
    found = dict[str, Any]()
    for key, value in config.items():
        path = f"{above}{key}"
        if is_reference(value):
            references[path] = dict(value)
            secret = _secret(channel, value, environ)
            if isinstance(secret, Exception):
                place = channel.place_of(f"config.{path}")
                problems.append(Problem(place, f"channels.{channel.name}.config.{path}", "no_secret", str(secret)))
            else:
                found[key] = secret
        elif isinstance(value, Mapping) and not above:
            found[key] = _resolved(channel, value, f"{path}.", environ, references, problems)
        else:
            found[key] = value
    return found


def _secret(channel: Declared, reference: Mapping[str, Any], environ: Mapping[str, str]) -> str | Exception:
    (kind, named), *_ = reference.items()
    if kind == "env":
        value = environ.get(str(named))
        return LookupError(f"the environment has no {named}") if not value else value
    path = Path(channel.place.file).parent / str(named)
    try:
        with path.open("rb") as opened:
            return opened.read(SECRET_BYTES_MAX).decode().strip()
    except (OSError, ValueError) as error:  # ValueError: no text, or a path with NUL
        return LookupError(f"{path} can't be read: {getattr(error, 'strerror', None) or 'it is no text'}")
