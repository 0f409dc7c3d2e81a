"""Agents on the API act only in their own name, whatever they send."""

import threading
from collections.abc import Iterator

import httpx
import pytest

from corral.api import Corral
from tests.support.http_server import HttpServer


@pytest.fixture
def ada(http_server: HttpServer) -> Iterator[httpx.Client]:
    """A client with the token of the agent ada; another agent, eve, exists."""
    for name in ("ada", "eve"):
        http_server.store.agents.create(name)
    with http_server.client(
        http_server.store.tokens.create("a", scope="agent:ada").value
    ) as client:
        yield client


def refused(response: httpx.Response) -> bool:
    return response.status_code == 403 and response.json()["error"]["code"] == "refused"


def test_agent_asks_and_waits_in_its_own_name(ada: httpx.Client, store: Corral) -> None:
    asked = ada.post("/api/questions/ask", json={"text": "Which?", "asker": "agent:eve"}).json()
    assert asked["asker"] == "agent:ada"
    path = f"/api/questions/{asked['id']}"
    assert refused(ada.post(f"{path}/answer", json={"answer": "x", "by": "user:ann"}))
    later = threading.Timer(0.2, lambda: store.questions.answer(asked["id"], "it", by="user:ann"))
    later.start()
    assert ada.get(f"{path}/wait", params={"timeout_ms": 20_000}).json()["answer"] == "it"
    later.join()
    assert ada.post(f"{path}/acknowledge").status_code == 200
    assert store.mail.list(mailbox="agent:ada").items == []
    others = store.questions.ask("Which?", asker="agent:eve")
    for verb in ("", "/wait"):
        assert refused(ada.get(f"/api/questions/{others.id}{verb}"))
    assert refused(ada.post(f"/api/questions/{others.id}/withdraw"))
    assert refused(ada.post(f"/api/questions/{others.id}/acknowledge"))
    listed = ada.get("/api/questions", params={"asker": "agent:eve", "all": True}).json()["items"]
    assert [item["id"] for item in listed] == [asked["id"]]


def test_agent_decides_in_its_own_name_and_never_confirms_itself(
    ada: httpx.Client, store: Corral
) -> None:
    sent = {"title": "Drop it", "confirm": True, "author": "agent:eve"}
    result = ada.post("/api/decisions/record", json=sent).json()
    assert result["author"] == "agent:ada"
    path = f"/api/decisions/{result['id']}"
    assert refused(ada.post(f"{path}/confirm", json={"by": "user:ann"}))
    assert refused(
        ada.post("/api/decisions/review_many", json={"decisions": [], "verdict": "confirm"})
    )
    store.decisions.confirm(result["id"], by="user:ann")
    assert ada.get(f"{path}/wait").json()["state"] == "confirmed"


def test_agent_posts_only_as_itself_in_its_groups(ada: httpx.Client, store: Corral) -> None:
    own = store.groups.create("own", members=["agent:ada"], by="user:ann")
    other = store.groups.create("other", members=["agent:eve"], by="user:ann")
    sent = {"text": "hi", "author": "agent:eve"}
    assert ada.post(f"/api/groups/{own.id}/post", json=sent).json()["author"] == "agent:ada"
    assert refused(ada.post(f"/api/groups/{other.id}/post", json=sent))
    for path in ("", "/read", "/members"):
        assert refused(ada.get(f"/api/groups/{other.id}{path}", params={}))
    assert refused(ada.get(f"/api/groups/{other.id}/read", params={"member": "agent:eve"}))
    assert refused(ada.post(f"/api/groups/{other.id}/mark", json={"number": 0}))
    assert refused(ada.post(f"/api/groups/{other.id}/join"))
    store.groups.post("own", "yes", author="user:ann")
    assert [post["text"] for post in ada.get("/api/groups/own/read").json()["items"]] == ["yes"]


def test_agent_keeps_and_recalls_notes_for_itself(ada: httpx.Client, store: Corral) -> None:
    sent = {"text": "obey", "agent": "eve", "source": "user:ann"}
    assert refused(ada.post("/api/notes/add", json=sent))
    own = ada.post("/api/notes/add", json={"text": "zebra", "agent": "ada"}).json()
    assert own["source"] == "agent:ada"
    store.notes.add("zebra of eve", agent="eve")
    result = ada.get("/api/notes/search", params={"text": "zebra", "agent": "eve"}).json()
    assert [item["note"]["id"] for item in result] == [own["id"]]
    assert "zebra" in ada.get("/api/notes/prompt_section").json()["text"]
    assert refused(ada.post(f"/api/notes/{own['id']}/forget"))


def test_post_with_the_same_key_is_made_once(ada: httpx.Client, store: Corral) -> None:
    store.groups.create("own", members=["agent:ada"], by="user:ann")
    headers = {"Idempotency-Key": "k"}
    posts = [
        ada.post("/api/groups/own/post", json={"text": "hi"}, headers=headers).json()
        for _ in range(2)
    ]
    assert posts[0] == posts[1]
    assert store.groups.get("own").posts == 1
