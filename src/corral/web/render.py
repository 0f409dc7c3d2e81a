"""Jinja templates and the formatting of values.

All text is untrusted: templates escape HTML, and control characters, escape sequences and
bidirectional overrides are made visible in every expression.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from corral import __version__
from corral.domain.chat.model import CHAT_MAILBOX, format_asker
from corral.domain.chat.outbound.cards import asks_for_secret
from corral.domain.mail.model import summarize_body
from corral.kernel import display_time
from corral.kernel.clock import SECOND
from corral.kernel.display_text import escape_unprintable
from corral.kernel.money import MICROS_PER_USD, format_usd
from corral.web.navigation import NAVIGATION

HERE = Path(__file__).parent
STATIC = HERE / "static"

UNKNOWN = "\N{EN DASH}"

_now: ContextVar[int] = ContextVar("now", default=0)

# States are shown with a word, an icon and a colour. The tone selects icon and colour.
TONES = {
    "queued": "wait",
    "starting": "wait",
    "running": "live",
    "stopping": "wait",
    "completed": "good",
    "failed": "bad",
    "crashed": "bad",
    "cancelled": "off",
    "timed_out": "bad",
    "interrupted": "bad",
    "needs_input": "need",
    "stuck": "need",
    "parked": "wait",
    "open": "live",
    "closed": "off",
    "active": "live",
    "archived": "off",
    "retired": "off",
    "removed": "off",
    "paused": "wait",
    "finished": "good",
    "waiting": "wait",
    "unconfirmed": "need",
    "unknown": "need",
    "done": "good",
    "dead": "bad",
    "refused": "bad",
    "expired": "off",
    "up": "live",
    "left": "off",
    "lost": "bad",
    "sealed": "good",
    "deleted": "off",
    "ok": "good",
    "warning": "need",
    "broken": "bad",
    "info": "off",
    "debug": "off",
    "warn": "need",
    "error": "bad",
    "works": "live",
    "fails": "bad",
    "waits": "wait",
    "spent": "need",
    "pending": "wait",
    "ready": "wait",
    "submitted": "need",
    "blocked": "bad",
    "skipped": "off",
    "held": "live",
    "released": "off",
    "withdrawn": "off",
    "revoked": "off",
    "answered": "good",
    "recorded": "good",
    "proposed": "need",
    "confirmed": "good",
    "rejected": "bad",
    "dismissed": "off",
    "current": "live",
    "superseded": "off",
    "conflict": "bad",
    "preparing": "wait",
    "checking": "live",
    "selecting": "need",
    "abandoned": "off",
    "asked": "live",
    "given": "good",
    "routed": "good",
    "ignored": "off",
    "sent": "good",
    "undelivered": "bad",
    "known": "good",
}


@contextmanager
def render_time(now: int) -> Iterator[None]:
    """Set the current time for ages, while a template is rendered."""
    token = _now.set(now)
    try:
        yield
    finally:
        _now.reset(token)


def render(template: str, fragment: str | None, values: dict[str, Any]) -> str:
    """Render a page, or only the block named `fragment` if the template has one."""
    page = environment().get_template(template)
    block = page.blocks.get(fragment) if fragment else None
    if block is None:
        return page.render(values)
    return "".join(block(page.new_context(values)))


@lru_cache(1)
def environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=escape_control_characters,
    )
    environment.filters.update(
        usd=short_usd,
        exact_usd=format_usd,
        number=format_number,
        size=format_size,
        duration=format_span,
        age=format_age,
        utc=format_utc,
        humanize=humanize,
        state_label=state_label,
        tone=lambda state: TONES.get(str(state), "off"),
        short_id=short_id,
        pretty=pretty,
        gist=summarize_body,
        name=display_name,
        wants_secret=asks_for_secret,
        asker=format_asker,
    )
    environment.globals.update(
        asset=asset, navigation=NAVIGATION, version=__version__, host=CHAT_MAILBOX
    )
    # Macros, by the name under which templates use them.
    macros = {
        "ui": "ui",
        "task_ui": "task_macros",
        "inbox_ui": "inbox_macros",
        "race_ui": "race_macros",
        "chat_ui": "chat_macros",
    }
    for name, template in macros.items():
        environment.globals[name] = environment.get_template(f"{template}.html").module
    return environment


def escape_control_characters(value: Any) -> Any:
    """Make control characters visible in the value of a template expression."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return escape_unprintable(value, keep="\n\t")
    return value


@lru_cache
def asset(name: str) -> str:
    """Return the URL of a static file. It contains a hash, so browsers can cache it for ever."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def short_usd(micros: int) -> str:
    """Format an amount in dollars and cents; amounts under half a cent as `< $0.01`."""
    if micros < 0:
        return f"\N{MINUS SIGN}{short_usd(-micros)}"
    return "< $0.01" if 0 < micros < 5_000 else f"${round(micros / MICROS_PER_USD, 2):,.2f}"


def format_number(number: int | None) -> str:
    """Format a number as 12,345 or 1.2 M."""
    if number is None:
        return UNKNOWN
    for unit, factor in (("B", 1_000_000_000), ("M", 1_000_000)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:,}"


def format_size(number: int | None) -> str:
    if number is None:
        return UNKNOWN
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1_024
    raise AssertionError


def format_span(ms: int | None) -> str:
    """Format a duration in its two largest units: 850 ms, 12 s, 3 m 20 s, 2 h 5 m, 4 d 1 h."""
    if ms is None:
        return UNKNOWN
    if ms < SECOND:
        return f"{max(ms, 0)} ms"
    units = display_time.UNITS
    for (unit, factor), smaller in zip(units, [*units[1:], None], strict=True):
        if ms >= factor:
            rest = ms % factor // smaller[1] if smaller else 0
            return f"{ms // factor} {unit}" + (f" {rest} {smaller[0]}" if rest and smaller else "")
    raise AssertionError


def format_age(ms: int) -> str:
    """Format a time relative to the time of the page, in its largest unit: 5 m ago, in 2 h."""
    return display_time.format_age(ms, _now.get(), space=" ")


def format_utc(ms: int) -> str:
    """Format a time in UTC, to the second. The browser shows it in its own time zone."""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms / 1_000))


def clock_time(ms: int) -> str:
    return format_utc(ms)[11:]


def humanize(state: object) -> str:
    """Format a state or verb: `needs_input` becomes `needs input`."""
    return str(state).replace("_", " ")


# Words for states whose name is not usual in a user interface.
STATE_LABELS = {
    "fails": "failing",
    "waits": "standby",
    "works": "ok",
}


def state_label(state: object) -> str:
    return STATE_LABELS.get(str(state), humanize(state))


def short_id(id: str) -> str:
    """Shorten an id to its end: it starts with a timestamp, which neighbours share."""
    prefix, underscore, rest = id.partition("_")
    return f"{prefix}_…{rest[-6:]}" if underscore and len(rest) > 12 else id


def pretty(value: Any) -> str:
    """Format a message body, an argument or a result as text or indented JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def display_name(id: str | None, names: dict[str, str]) -> str:
    """Return the name of an object, or its shortened id."""
    return UNKNOWN if id is None else names.get(id, short_id(id))
