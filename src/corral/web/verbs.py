"""The plainest of actions: one verb, on the one thing that its form names."""

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from corral.api import Corral
from corral.web.request import Show, Visit


def on_one(
    verb: Callable[[Corral], Callable[[str], Any]],
    what: str,
    told: Callable[[Any], str],
    *,
    go: str | None = None,
) -> Show:
    """An action that calls a verb with the id in its form. `what` is what is missing where there is
    none, `told` the sentence for what the verb gave, `go` the page that is shown then."""

    def act(visit: Visit) -> Response:
        found = verb(visit.store)(visit.must("id", f"The {what}"))
        return visit.done(told(found), go=go)

    return act
