"""Settings, secret references and alerts."""

from starlette.responses import Response

from corral.domain.alerts.model import AlertKind
from corral.domain.settings.model import DEFINITIONS
from corral.kernel.clock import format_duration
from corral.web.request import PageRequest


def show(request: PageRequest) -> Response:
    store = request.store
    return request.render(
        "settings.html",
        settings=store.settings.list().items,
        known=DEFINITIONS,
        format_value=format_value,
        secrets=store.secrets.list(limit=200),
        alerts=store.alerts.list(limit=200),
        alert_kinds=[*AlertKind],
        durability=store.db.durability(),
    )


def format_value(name: str, value: object) -> str:
    """Format a value for its input field: durations as 30d, lists with commas."""
    if isinstance(value, list):
        return ", ".join(format_value(name, part) for part in value)
    if name.endswith("_ms") and isinstance(value, int):
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
