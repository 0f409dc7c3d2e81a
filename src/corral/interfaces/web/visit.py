"""One request for a page, as the page's function sees it."""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlencode

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from corral import config
from corral.adapters.channels.contract import Attached
from corral.interfaces.web import rendering
from corral.interfaces.web.forms import Form, read_form
from corral.kernel.errors import Invalid
from corral.kernel.redaction_policy import taken_out
from corral.library import Corral

THEMES = ("light", "dark")
PICK = "pick:"
"""What the boxes are called by which one chooses among many; behind it is an id."""


class Visit:
    def __init__(self, request: Request, form: Form) -> None:
        self.request = request
        self.store: Corral = request.state.store
        self.who: Any = request.state.who
        self._form = form
        self.taken: list[str] = []
        """What secrets were taken out of, in what this visit wrote."""
        self.seen = ""
        """The newest event before the page was looked up: the page follows those behind it."""
        if request.method == "GET" and self.part is None:
            self.seen = self.store.events.newest(limit=1).next or ""

    @property
    def may_act(self) -> bool:
        """Whether buttons are shown: a token that may only read has none."""
        return bool(self.who.scope == "full")

    @property
    def person(self) -> str:
        """Who talks in groups from here: whoever the daemon works for, as at the terminal."""
        return f"user:{config.user()}"

    @property
    def part(self) -> str | None:
        """The part of the page that is fetched anew, by its id; None: the whole page."""
        if "hx-request" not in self.request.headers:
            return None
        return self.request.headers.get("hx-target", "").partition("#")[2] or None

    @property
    def here(self) -> str:
        """The page's own address."""
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")

    @property
    def theme(self) -> str | None:
        chosen = self.request.cookies.get("corral_theme")
        return chosen if chosen in THEMES else None

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def asked(self, name: str) -> str | None:
        """What stands in the address, or in a field that was filled in; None when it is empty."""
        return self.request.query_params.get(name, "").strip() or None

    def given(self, name: str) -> str | None:
        """What a form says; None when the field is empty."""
        return self._form.get(name, "").strip() or None

    def must(self, name: str, what: str) -> str:
        """What a form has to say."""
        value = self.given(name)
        if value is None:
            raise Invalid(f"{what} is empty; fill it in.", field=name)
        return value

    def number(self, name: str, of: str) -> int | None:
        """A whole number that a form says; None when the field is empty."""
        value = self.given(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()) or len(value) > 15:
            raise Invalid(f"{value[:50]!r} is no number of {of}.", field=name)
        return int(value)

    def picked(self) -> list[str]:
        """The ids, or names, of what was chosen by its box."""
        return [name[len(PICK) :] for name in self._form if name.startswith(PICK)]

    @property
    def uploads(self) -> list[Attached]:
        """The files that a form brought."""
        return self._form.files

    def link(self, **changed: str | None) -> str:
        """This page with some of what was asked for changed; paging starts anew."""
        kept = {**self.request.query_params, "after": None, **changed}
        query = urlencode({name: value for name, value in kept.items() if value})
        return self.request.url.path + (f"?{query}" if query else "")

    def names(self, *ids: Iterable[str | None]) -> dict[str, str]:
        """What people call the things of these ids."""
        return self.store.insights.names([id for some in ids for id in some if id])

    def show(self, template: str, **values: Any) -> Response:
        """The page, or the part of it that was asked for."""
        now = self.store.now()
        with rendering.at(now):
            text = rendering.render(
                template,
                self.part,
                {"visit": self, "now": now, "may_act": self.may_act, **values},
            )
        return HTMLResponse(text)

    def done(self, sentence: str, *, go: str | None = None) -> Response:
        """An action is done: a sentence for whoever asked, and the page shows it by itself."""
        if "hx-request" not in self.request.headers:
            return RedirectResponse(go or self._came_from(), status_code=303)
        if go is not None:
            return Response(headers={"HX-Redirect": go})
        if self.taken:
            sentence = f"{sentence} {taken_out(self.taken)}".lstrip()
        if not sentence:  # the page itself shows it
            return Response(headers={"HX-Reswap": "none", "HX-Trigger": "corral:done"})
        with rendering.at(self.store.now()):
            text = rendering.render("done.html", None, {"sentence": sentence})
        headers = {"HX-Retarget": "#notices", "HX-Reswap": "beforeend", "HX-Trigger": "corral:done"}
        return HTMLResponse(text, headers=headers)

    def _came_from(self) -> str:
        """Back to the page of ours that the form was on; never to another site."""
        from urllib.parse import urlsplit

        parts = urlsplit(self.request.headers.get("referer", ""))
        return "/" + parts.path.lstrip("/\\") + (f"?{parts.query}" if parts.query else "")


Show = Callable[[Visit], Response]


def endpoint(show: Show) -> Callable[[Request], Any]:
    """A page's function as a handler; it runs on a thread, because the library waits."""

    async def answer(request: Request) -> Response:
        form = Form([])
        if request.method == "POST":
            form = read_form(request.headers.get("content-type", ""), await request.body())
        return await to_thread.run_sync(lambda: show(Visit(request, form)))

    return answer
