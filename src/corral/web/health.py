"""Health: the store, the nodes, and the loops of the daemon."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

from corral.web.request import PageHandler, PageRequest


def page(status: Callable[[], Any] | None) -> PageHandler:
    """Make the page; `status` returns the state of the daemon."""

    def show(request: PageRequest) -> Response:
        store = request.store
        daemon = msgspec.to_builtins(status()) if status is not None else {}
        return request.render(
            "health.html",
            status=daemon,
            loops=daemon.get("loops", []),
            checks=store.db.check(),
            nodes=store.nodes.list(limit=50),
            engine=store.db.engine,
            url=store.db.url,
            schema=store.db.schema_version(),
            durability=store.db.durability(),
            behind=store.search.count_unindexed(),
        )

    return show
