"""A client that reads dashboard pages and submits their forms."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx

from corral.api import Corral
from tests.support.http_server import HttpServer

NEXT = r'rel="next" href="([^"]+)"'
PROBLEM = re.compile(r'class="problem" data-code="([^"]+)"(?: data-reason="([^"]+)")?')


def htmx_headers(target: str) -> dict[str, str]:
    """Return the headers that htmx sends when it fetches a part of a page."""
    return {"HX-Request": "true", "HX-Target": f"div#{target}"}


def collapse_spaces(html: str) -> str:
    """Return HTML with runs of white space as one space, as a browser shows it."""
    return re.sub(r"\s+", " ", html)


def iter_pages(client: httpx.Client, path: str, link: str = NEXT) -> Iterator[str]:
    """Yield the text of each page of a list, following the next links."""
    while path:
        text = client.get(path).text
        yield text
        more = re.search(link, text)
        path = unescape(more[1]) if more else ""


class PageClient:
    """Reads pages and submits their actions; `done` collects the actions that succeeded."""

    prefix = ""
    """The common prefix of all actions."""

    def __init__(self, http_server: HttpServer, client: httpx.Client) -> None:
        self.http_server = http_server
        self.store: Corral = http_server.store
        self.client = client
        self.done: set[str] = set()

    def post(self, action: str, uploads: Any = None, /, **fields: str) -> httpx.Response:
        return self.client.post(
            f"/do/{self.prefix}{action}", data=fields, files=uploads, headers=htmx_headers("x")
        )

    def submit(self, action: str, uploads: Any = None, /, **fields: str) -> httpx.Response:
        """Submit an action that succeeds."""
        answer = self.post(action, uploads, **fields)
        assert answer.status_code == 200, f"{action}: {answer.text}"
        assert "HX-Redirect" in answer.headers or answer.headers["HX-Trigger"] == "corral:done"
        self.done.add(f"{self.prefix}{action}")
        return answer

    def submit_rejected(
        self, action: str, error: str, fragment: str = "", uploads: Any = None, /, **fields: str
    ) -> None:
        """Submit an action that fails with an error, given as `code` or `code:reason`."""
        answer = self.post(action, uploads, **fields)
        assert 400 <= answer.status_code < 500, f"{action}: {answer.status_code}"
        problem = PROBLEM.search(answer.text)
        assert problem is not None, f"{action}: {answer.text}"
        assert error == ":".join(filter(None, problem.groups())), f"{action}: {answer.text}"
        assert fragment in unescape(answer.text), f"{action}: {answer.text}"

    def html(self, path: str) -> str:
        """Return the HTML of a page."""
        page = self.client.get(path)
        assert page.status_code == 200, f"{path}: {page.text[:400]}"
        return page.text

    def decoded_html(self, path: str) -> str:
        """Return the HTML of a page with entities decoded and spaces collapsed."""
        return unescape(collapse_spaces(self.html(path)))
