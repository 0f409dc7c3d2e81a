"""Settings, and what else people chose: secrets (where they are), alerts."""

from starlette.responses import Response

from corral.domain.alerts.model import Kind
from corral.domain.settings.model import KNOWN
from corral.kernel.clock import format_duration
from corral.web.request import Visit


def show(visit: Visit) -> Response:
    store = visit.store
    return visit.show(
        "settings.html",
        settings=store.settings.list().items,
        known=KNOWN,
        typed=as_typed,
        secrets=store.secrets.list(limit=200),
        alerts=store.alerts.list(limit=200),
        alert_kinds=[*Kind],
        durability=store.db.durability(),
    )


def as_typed(name: str, value: object) -> str:
    """A value as it can be typed in again: durations as 30d, lists with commas."""
    if isinstance(value, list):
        return ", ".join(as_typed(name, part) for part in value)
    if name.endswith("_ms") and isinstance(value, int):
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
