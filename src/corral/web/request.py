"""A request for a page: query, form, user, and how to respond."""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlencode, urlsplit

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from corral import config
from corral.adapters.channels.contract import RawAttachment
from corral.api import Corral
from corral.kernel.errors import Invalid
from corral.kernel.redaction_policy import redaction_notice
from corral.services.tokens import TokenIdentity
from corral.web import render
from corral.web.forms import Form, read_form

THEMES = ("light", "dark")
SELECTED_PREFIX = "select:"
"""The names of checkboxes that select items: this prefix and an id."""


class PageRequest:
    """A request as the functions of pages and actions see it."""

    def __init__(self, http: Request, form: Form, *, cursor: str = "") -> None:
        self.http = http
        self.store: Corral = http.state.store
        self.token: TokenIdentity = http.state.who
        self._form = form
        self.redacted: list[str] = []
        """The fields from which secrets were removed in what this request wrote."""
        self.cursor = cursor
        """The newest event before the page was rendered: the browser follows the feed from here."""

    @property
    def can_write(self) -> bool:
        """Whether actions are shown: a read-only token has none."""
        return self.token.scope == "full"

    @property
    def user(self) -> str:
        """The person who posts in groups: the user that the daemon runs as, as at the terminal."""
        return f"user:{config.user()}"

    @property
    def fragment(self) -> str | None:
        """The id of the element that htmx reloads; None for the whole page."""
        return find_fragment(self.http)

    @property
    def url(self) -> str:
        """The path and query of this page."""
        query = self.http.url.query
        return self.http.url.path + (f"?{query}" if query else "")

    @property
    def theme(self) -> str | None:
        theme = self.http.cookies.get("corral_theme")
        return theme if theme in THEMES else None

    def path_param(self, name: str) -> str:
        return str(self.http.path_params[name])

    def query(self, name: str) -> str | None:
        """Return a query parameter; None if it is missing or empty."""
        return self.http.query_params.get(name, "").strip() or None

    def field(self, name: str) -> str | None:
        """Return a form field; None if it is missing or empty."""
        return self._form.get(name, "").strip() or None

    def require(self, name: str, label: str) -> str:
        """Return a form field; raises Invalid if it is empty."""
        value = self.field(name)
        if value is None:
            raise Invalid(f"{label} is required.", field=name)
        return value

    def integer(self, name: str, label: str) -> int | None:
        """Return a form field as a number; None if it is empty, raises Invalid otherwise."""
        value = self.field(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()) or len(value) > 15:
            raise Invalid(f"Invalid number for {label}: {value[:50]!r}.", field=name)
        return int(value)

    def selected(self) -> list[str]:
        """Return the ids or names whose checkboxes are checked."""
        return [
            name[len(SELECTED_PREFIX) :] for name in self._form if name.startswith(SELECTED_PREFIX)
        ]

    @property
    def uploads(self) -> list[RawAttachment]:
        """The files of the form."""
        return self._form.files

    def link(self, **changes: str | None) -> str:
        """Return the URL of this page with changed parameters, on its first list page."""
        parameters = {**self.http.query_params, "after": None, **changes}
        query = urlencode({name: value for name, value in parameters.items() if value})
        return self.http.url.path + (f"?{query}" if query else "")

    def names(self, *ids: Iterable[str | None]) -> dict[str, str]:
        """Return display names by id."""
        return self.store.insights.names([id for group in ids for id in group if id])

    def render(self, template: str, **values: Any) -> Response:
        """Render the page, or the requested fragment of it."""
        now = self.store.now()
        with render.render_time(now):
            text = render.render(
                template,
                self.fragment,
                {"request": self, "now": now, "can_write": self.can_write, **values},
            )
        return HTMLResponse(text)

    def success(self, text: str, *, redirect_to: str | None = None) -> Response:
        """Respond to an action: a notice, or a redirect to `redirect_to`. The page reloads itself.

        If a secret was redacted, the notice reports it, and links to the page instead of a redirect
        to it: a redirect would discard the notice.
        """
        if "hx-request" not in self.http.headers:
            return RedirectResponse(redirect_to or self._referring_page(), status_code=303)
        if self.redacted:
            text = f"{text} {redaction_notice(self.redacted)}".lstrip()
        elif redirect_to is not None:
            return Response(headers={"HX-Redirect": redirect_to})
        if not text:  # the reloaded page shows the change
            return Response(headers={"HX-Reswap": "none", "HX-Trigger": "corral:done"})
        with render.render_time(self.store.now()):
            body = render.render("notice.html", None, {"text": text, "link": redirect_to})
        headers = {"HX-Retarget": "#notices", "HX-Reswap": "beforeend", "HX-Trigger": "corral:done"}
        return HTMLResponse(body, headers=headers)

    def _referring_page(self) -> str:
        """Return the page with the form, as a path of this server: never an open redirect."""
        parts = urlsplit(self.http.headers.get("referer", ""))
        return "/" + parts.path.lstrip("/\\") + (f"?{parts.query}" if parts.query else "")


def find_fragment(http: Request) -> str | None:
    """Return the id of the element that htmx reloads; None for the whole page."""
    if "hx-request" not in http.headers:
        return None
    return http.headers.get("hx-target", "").partition("#")[2] or None


PageHandler = Callable[[PageRequest], Response]


def endpoint(handler: PageHandler) -> Callable[[Request], Any]:
    """Make a handler of a page function. It runs on a thread, because the library blocks."""

    async def handle(http: Request) -> Response:
        form = Form([])
        if http.method == "POST":
            form = await read_form(http)
        return await to_thread.run_sync(_respond, handler, http, form)

    return handle


def _respond(handler: PageHandler, http: Request, form: Form) -> Response:
    cursor = ""
    if http.method == "GET" and find_fragment(http) is None:
        # Read before the page's own reads, so that the browser misses no event.
        store: Corral = http.state.store
        cursor = store.events.newest(limit=1).next or ""
    return handler(PageRequest(http, form, cursor=cursor))
