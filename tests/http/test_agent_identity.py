"""The API replaces or rejects an identity that an agent's request claims."""

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


def is_forbidden(response: httpx.Response) -> bool:
    return response.status_code == 403 and response.json()["error"]["code"] == "refused"


def test_agent_asks_and_waits_in_its_own_name(ada: httpx.Client, store: Corral) -> None:
    question = ada.post("/api/questions/ask", json={"text": "Which?", "asker": "agent:eve"}).json()
    assert question["asker"] == "agent:ada"
    path = f"/api/questions/{question['id']}"
    assert is_forbidden(ada.post(f"{path}/answer", json={"answer": "x", "by": "user:ann"}))
    later = threading.Timer(
        0.2, lambda: store.questions.answer(question["id"], "it", by="user:ann")
    )
    later.start()
    assert ada.get(f"{path}/wait", params={"timeout_ms": 20_000}).json()["answer"] == "it"
    later.join()
    assert ada.post(f"{path}/acknowledge").status_code == 200
    assert store.mail.list(mailbox="agent:ada").items == []
    foreign_question = store.questions.ask("Which?", asker="agent:eve")
    for verb in ("", "/wait"):
        assert is_forbidden(ada.get(f"/api/questions/{foreign_question.id}{verb}"))
    assert is_forbidden(ada.post(f"/api/questions/{foreign_question.id}/withdraw"))
    assert is_forbidden(ada.post(f"/api/questions/{foreign_question.id}/acknowledge"))
    items = ada.get("/api/questions", params={"asker": "agent:eve", "all": True}).json()["items"]
    assert [item["id"] for item in items] == [question["id"]]


def test_agent_decides_in_its_own_name_and_never_confirms_itself(
    ada: httpx.Client, store: Corral
) -> None:
    payload = {"title": "Drop it", "confirm": True, "author": "agent:eve"}
    result = ada.post("/api/decisions/record", json=payload).json()
    assert result["author"] == "agent:ada"
    path = f"/api/decisions/{result['id']}"
    assert is_forbidden(ada.post(f"{path}/confirm", json={"by": "user:ann"}))
    assert is_forbidden(
        ada.post("/api/decisions/review_many", json={"decisions": [], "verdict": "confirm"})
    )
    store.decisions.confirm(result["id"], by="user:ann")
    assert ada.get(f"{path}/wait").json()["state"] == "confirmed"


def test_agent_posts_only_as_itself_in_its_groups(ada: httpx.Client, store: Corral) -> None:
    own_group = store.groups.create("own", members=["agent:ada"], by="user:ann")
    foreign_group = store.groups.create("other", members=["agent:eve"], by="user:ann")
    payload = {"text": "hi", "author": "agent:eve"}
    assert (
        ada.post(f"/api/groups/{own_group.id}/post", json=payload).json()["author"] == "agent:ada"
    )
    assert is_forbidden(ada.post(f"/api/groups/{foreign_group.id}/post", json=payload))
    for path in ("", "/read", "/members"):
        assert is_forbidden(ada.get(f"/api/groups/{foreign_group.id}{path}", params={}))
    assert is_forbidden(
        ada.get(f"/api/groups/{foreign_group.id}/read", params={"member": "agent:eve"})
    )
    assert is_forbidden(ada.post(f"/api/groups/{foreign_group.id}/mark", json={"number": 0}))
    assert is_forbidden(ada.post(f"/api/groups/{foreign_group.id}/join"))
    store.groups.post("own", "yes", author="user:ann")
    assert [post["text"] for post in ada.get("/api/groups/own/read").json()["items"]] == ["yes"]


def test_agent_keeps_and_recalls_notes_for_itself(ada: httpx.Client, store: Corral) -> None:
    payload = {"text": "obey", "agent": "eve", "source": "user:ann"}
    assert is_forbidden(ada.post("/api/notes/add", json=payload))
    note = ada.post("/api/notes/add", json={"text": "zebra", "agent": "ada"}).json()
    assert note["source"] == "agent:ada"
    store.notes.add("zebra of eve", agent="eve")
    result = ada.get("/api/notes/search", params={"text": "zebra", "agent": "eve"}).json()
    assert [item["note"]["id"] for item in result] == [note["id"]]
    assert "zebra" in ada.get("/api/notes/prompt_section").json()["text"]
    assert is_forbidden(ada.post(f"/api/notes/{note['id']}/forget"))


def test_post_with_the_same_key_is_made_once(ada: httpx.Client, store: Corral) -> None:
    store.groups.create("own", members=["agent:ada"], by="user:ann")
    headers = {"Idempotency-Key": "k"}
    posts = [
        ada.post("/api/groups/own/post", json={"text": "hi"}, headers=headers).json()
        for _ in range(2)
    ]
    assert posts[0] == posts[1]
    assert store.groups.get("own").posts == 1
