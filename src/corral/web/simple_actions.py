"""Actions that call one operation with the id in the form."""

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from corral.api import Corral
from corral.web.request import PageHandler, PageRequest


def simple_action(
    operation: Callable[[Corral], Callable[[str], Any]],
    noun: str,
    message: Callable[[Any], str],
    *,
    redirect_to: str | None = None,
) -> PageHandler:
    """Make an action that calls an operation with the form's `id`.

    `noun` names the object in the error for a missing id, `message` makes the notice from the
    result, and `redirect_to` is the page to show afterwards.
    """

    def act(request: PageRequest) -> Response:
        result = operation(request.store)(request.require("id", f"The {noun}"))
        return request.success(message(result), redirect_to=redirect_to)

    return act
