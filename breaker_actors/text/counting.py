"""Numbers of things in sentences."""

from __future__ import annotations


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """A number with its noun, in the plural unless it is 1; `nouns`: the plural that is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"
