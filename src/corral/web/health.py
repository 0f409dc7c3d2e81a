"""Health: the store, the machines, and the loops of the daemon that serves this page."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

from corral.web.request import Show, Visit


def page(status: Callable[[], Any] | None) -> Show:
    """The page; `status` tells how the daemon is."""

    def show(visit: Visit) -> Response:
        store = visit.store
        told = msgspec.to_builtins(status()) if status is not None else {}
        return visit.show(
            "health.html",
            status=told,
            loops=told.get("loops", []),
            checks=store.db.check(),
            nodes=store.nodes.list(limit=50),
            engine=store.db.engine,
            url=store.db.url,
            schema=store.db.schema_version(),
            durability=store.db.durability(),
            behind=store.search.behind(),
        )

    return show
