"""Variations of a prompt: given as texts, parsed from a file, or taken from the templates."""

import re

from corral.domain.races.model import AttemptSpec
from corral.kernel.errors import Invalid
from corral.kernel.validation import MAX_TEXT, check_text

MAX_ATTEMPTS = 1_000

TEMPLATES = {
    "careful": "Work carefully: read all code that the change affects before you edit anything, "
    "and review your own work before you finish.",
    "minimal": "Make the smallest change that works: touch as few files and lines as possible, and "
    "add nothing that was not requested.",
    "test-first": "Write the tests first: see them fail, make them pass, then clean up.",
    "bold": "Be bold: refactor code that gets in the way, and choose the design that you consider "
    "best.",
}

_AGENT = re.compile(r"(?P<name>[^:,]+?)(?::(?P<count>\d{1,4}))?")


def from_templates(count: int) -> list[str]:
    """Return this many variations from the templates, repeated in order."""
    texts = list(TEMPLATES.values())
    return [texts[number % len(texts)] for number in range(count)]


def parse_variations(text: str) -> list[str]:
    """Split a text into variations: at lines of dashes, or else one variation a line."""
    parts = re.split(r"^-{3,}[ \t]*$", text, flags=re.MULTILINE)
    if len(parts) == 1:
        parts = text.splitlines()
    return [part.strip() for part in parts if part.strip()]


def parse_agents(text: str) -> list[str]:
    """Parse a list such as `claude:2,codex`; an agent appears once for each of its attempts."""
    agents: list[str] = []
    for part in text.split(","):
        match = _AGENT.fullmatch(part.strip())
        count = int(match["count"] or 1) if match else 0
        if match is None or not 1 <= count <= MAX_ATTEMPTS:
            raise Invalid(
                f"Invalid agent {part.strip()!r}: expected NAME or NAME:COUNT with a "
                f"COUNT of at least 1 and at most {MAX_ATTEMPTS}, as in claude:2,codex:2.",
                value=text,
            )
        agents += [match["name"].strip()] * count
    return agents


def combine(agents: list[str], variations: list[str]) -> list[AttemptSpec]:
    """Pair agents with variations; the shorter list is repeated.

    A variation can be the name of a template.
    """
    texts: list[str | None] = [
        TEMPLATES.get(text) or check_text(text, "A variation", max_bytes=MAX_TEXT)
        for text in variations
    ] or [None]
    names: list[str | None] = [*agents] or [None]
    count = max(len(names), len(texts))
    if count > MAX_ATTEMPTS:
        raise Invalid(
            f"A round can have at most {MAX_ATTEMPTS:,} attempts, not {count:,}.", attempts=count
        )
    return [
        AttemptSpec(names[number % len(names)], texts[number % len(texts)])
        for number in range(count)
    ]


def vary_prompt(prompt: str, variation: str | None) -> str:
    """Return the prompt of an attempt: the round's prompt followed by its variation."""
    return f"{prompt}\n\n{variation}" if variation else prompt
