"""Templates, and how values look on a page.

Nothing that an agent or a person wrote reaches a browser as it is: HTML is escaped by the
templates, and control characters, escapes and overrides of direction are spelled out, everywhere,
before that.
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
from corral.domain.chat.model import HOST, asker
from corral.domain.chat.outbound.cards import asks_for_secret
from corral.domain.mail.model import gist
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND
from corral.kernel.money import MICROS, format_usd
from corral.kernel.text import printable
from corral.web.navigation import NAVIGATION

HERE = Path(__file__).parent
STATIC = HERE / "static"

UNKNOWN = "\N{EN DASH}"

_now: ContextVar[int] = ContextVar("now", default=0)

# A state is told by a word, a sign and a colour; the sign and the colour go by this.
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
    "clash": "bad",
    "preparing": "wait",
    "checking": "live",
    "selecting": "need",
    "abandoned": "off",
    "asked": "live",
    "given": "good",
    "heard": "good",
    "unheard": "off",
    "sent": "good",
    "undelivered": "bad",
    "known": "good",
}


@contextmanager
def at(now: int) -> Iterator[None]:
    """The moment from which ages are told."""
    token = _now.set(now)
    try:
        yield
    finally:
        _now.reset(token)


def render(template: str, part: str | None, values: dict[str, Any]) -> str:
    """A whole page, or one block of it by its name."""
    found = environment().get_template(template)
    block = found.blocks.get(part) if part else None
    if block is None:
        return found.render(values)
    return "".join(block(found.new_context(values)))


@lru_cache(1)
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=spelled_out,
    )
    made.filters.update(
        usd=usd,
        exact_usd=format_usd,
        count=count,
        size=size,
        lasting=lasting,
        ago=ago,
        moment=moment,
        clock_time=clock_time,
        words=words,
        tone=lambda state: TONES.get(str(state), "off"),
        short=short,
        readable=readable,
        gist=gist,
        label=label,
        wants_secret=asks_for_secret,
        asker=asker,
    )
    made.globals.update(asset=asset, navigation=NAVIGATION, version=__version__, host=HOST)
    modules = {"ui": "ui", "board": "board_head", "asks": "asking", "racing": "racing"}
    modules["chats"] = "chatting"
    for name, template in modules.items():
        made.globals[name] = made.get_template(f"{template}.html").module
    return made


def spelled_out(value: Any) -> Any:
    """What every expression of a template gives: text that acts on nothing."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, kept="\n\t")
    return value


@lru_cache
def asset(name: str) -> str:
    """The address of a file of ours; it changes when the file does, so that it can be kept."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def usd(micros: int) -> str:
    """Dollars and cents; what is less than a cent is said to be."""
    if micros < 0:
        return f"\N{MINUS SIGN}{usd(-micros)}"
    return "< $0.01" if 0 < micros < 5_000 else f"${round(micros / MICROS, 2):,.2f}"


def count(number: int | None) -> str:
    """12,345; large ones as 1.2 M."""
    if number is None:
        return UNKNOWN
    for unit, many in (("B", 1_000_000_000), ("M", 1_000_000)):
        if number >= many:
            return f"{number / many:.1f} {unit}"
    return f"{number:,}"


def size(number: int | None) -> str:
    if number is None:
        return UNKNOWN
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1_024
    raise AssertionError


def lasting(ms: int | None) -> str:
    """How long, in its two largest units: 850 ms, 12 s, 3 m 20 s, 2 h 5 m, 4 d 1 h."""
    if ms is None:
        return UNKNOWN
    if ms < SECOND:
        return f"{max(ms, 0)} ms"
    units = [("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)]
    for (unit, many), smaller in zip(units, [*units[1:], None], strict=True):
        if ms >= many:
            rest = ms % many // smaller[1] if smaller else 0
            return f"{ms // many} {unit}" + (f" {rest} {smaller[0]}" if rest and smaller else "")
    raise AssertionError


def ago(ms: int) -> str:
    """How far a moment is from now, in its largest unit."""
    distance = _now.get() - ms
    for unit, many in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        if abs(distance) >= many:
            told = f"{abs(distance) // many} {unit}"
            return f"{told} ago" if distance > 0 else f"in {told}"
    return "now"


def moment(ms: int) -> str:
    """A moment in UTC, to the second; the browser shows it in its own zone."""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms / 1_000))


def clock_time(ms: int) -> str:
    return moment(ms)[11:]


def words(state: object) -> str:
    return str(state).replace("_", " ")


def short(id: str) -> str:
    """The end of an id: its beginning is a time, and like that of its neighbours."""
    prefix, underscore, rest = id.partition("_")
    return f"{prefix}_…{rest[-6:]}" if underscore and len(rest) > 12 else id


def readable(value: Any) -> str:
    """A body, an argument or a result, as text or as JSON that people can read."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def label(id: str | None, names: dict[str, str]) -> str:
    return UNKNOWN if id is None else names.get(id, short(id))
