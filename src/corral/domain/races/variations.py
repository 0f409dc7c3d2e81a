"""Ways in which one prompt is asked: given, read from a text, or out of a few templates."""

import re

from corral.domain.races.model import Entry
from corral.kernel.errors import Invalid
from corral.kernel.text import MAX_TEXT, clean_text

MOST = 1_000

TEMPLATES = {
    "careful": "Work carefully: read all that the change touches before you change anything, and "
    "look at your own work again before you end.",
    "minimal": "Make the smallest change that does it: touch as few files and lines as you can, "
    "and add nothing that was not asked for.",
    "test-first": "Write the tests first: see them fail, then make them pass, then tidy up.",
    "bold": "Be bold: where the code stands in the way, rework it, and choose the design that you "
    "would be proud of.",
}

_AGENT = re.compile(r"(?P<name>[^:,]+?)(?::(?P<count>\d{1,4}))?")


def templates(count: int) -> list[str]:
    """So many variations out of the templates, again and again in their order."""
    texts = list(TEMPLATES.values())
    return [texts[number % len(texts)] for number in range(count)]


def read_text(text: str) -> list[str]:
    """Variations of a text: parted by lines of dashes, else one a line. A template is known by its
    name."""
    parts = re.split(r"^-{3,}[ \t]*$", text, flags=re.MULTILINE)
    if len(parts) == 1:
        parts = text.splitlines()
    return [part.strip() for part in parts if part.strip()]


def read_agents(text: str) -> list[str]:
    """The agents of `claude:2,codex`: each as often as it is to try."""
    found: list[str] = []
    for part in text.split(","):
        match = _AGENT.fullmatch(part.strip())
        count = int(match["count"] or 1) if match else 0
        if match is None or not 1 <= count <= MOST:
            raise Invalid(
                f"{part.strip()!r} names no agent; write them as in claude:2,codex:2.", value=text
            )
        found += [match["name"].strip()] * count
    return found


def entries(agents: list[str], variations: list[str]) -> list[Entry]:
    """Who tries in which way: as many as there are agents or variations, whichever is more; the
    shorter list goes round."""
    texts: list[str | None] = [
        TEMPLATES.get(text) or clean_text(text, "A variation", most=MAX_TEXT) for text in variations
    ] or [None]
    who: list[str | None] = [*agents] or [None]
    count = max(len(who), len(texts))
    if count > MOST:
        raise Invalid(f"A round has up to {MOST:,} attempts, not {count:,}.", attempts=count)
    return [Entry(who[number % len(who)], texts[number % len(texts)]) for number in range(count)]


def prompt_of(prompt: str, variation: str | None) -> str:
    """What an attempt is asked."""
    return f"{prompt}\n\n{variation}" if variation else prompt
