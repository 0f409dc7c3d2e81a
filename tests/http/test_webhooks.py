"""Webhooks of chat platforms: signatures, storage before the response, and replies."""

import json

import pytest

from corral.adapters import notifications
from corral.api import Corral
from tests.support.http_receiver import run_receiver
from tests.support.http_server import run_http_server


@pytest.fixture
def store_with_hook(store: Corral, monkeypatch: pytest.MonkeyPatch) -> Corral:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOOK_SECRET", "hush-hush")
    store.secrets.set("hook", "env:HOOK_SECRET")
    store.agents.create("ada", provider="scripted")
    return store


def event(number: int, **fields: object) -> bytes:
    return json.dumps(
        {"event_id": f"e{number}", "place": "p", "sender": "s", "text": "hello"} | fields
    ).encode()


def signed_headers(store: Corral, body: bytes, key: str = "hush-hush") -> dict[str, str]:
    return {notifications.SIGNATURE_HEADER: notifications.sign_body(key, body, store.now())}


def test_signed_request_is_stored_once_before_the_response(store_with_hook: Corral) -> None:
    store = store_with_hook
    store.channels.add("ci", "webhook", secrets={"secret": "hook"}, policy="public")
    store.wirings.add("ada", channel="ci")
    with run_http_server(store) as http_server, http_server.anonymous_client() as caller:
        body = event(1)
        for _ in range(2):
            response = caller.post(
                "/channels/ci", content=body, headers=signed_headers(store, body)
            )
            assert (response.status_code, response.content) == (200, b"{}")
        (message,) = store.messages.list().items
        assert (message.text, message.state) == ("hello", "routed")
        forged = caller.post(
            "/channels/ci", content=body, headers=signed_headers(store, body, "guess")
        )
        assert forged.status_code == 403
        assert caller.post("/channels/ci", content=body).status_code == 403
        assert caller.get("/channels/ci").status_code == 401
        unknown = caller.post(
            "/channels/nowhere", content=body, headers=signed_headers(store, body)
        )
        assert unknown.status_code == 404
        broken = event(2, surprise=1)
        response = caller.post(
            "/channels/ci", content=broken, headers=signed_headers(store, broken)
        )
        assert response.status_code == 403
        assert "surprise" in response.json()["error"]["message"]
    assert len(store.messages.list().items) == 1


def test_channel_without_webhooks_rejects_requests(store_with_hook: Corral) -> None:
    store_with_hook.channels.add("here", "terminal")
    with run_http_server(store_with_hook) as http_server, http_server.anonymous_client() as caller:
        response = caller.post("/channels/here", content=b"{}")
        assert response.status_code == 400


def test_reply_is_posted_to_the_webhook_url_with_a_signature(store_with_hook: Corral) -> None:
    store = store_with_hook
    with run_receiver() as receiver:
        channel = store.channels.add(
            "ci",
            "webhook",
            config={"url": receiver.url},
            secrets={"secret": "hook"},
            policy="public",
        )
        place = store.places.register("ci", "p")
        store.messages.send_as_system(place.id, "the build is green")
        adapter = store.channels.open(channel.id)
        (item,) = store.internal.chat.deliver(channel.id, adapter, owner="me")
        assert item.state == "done"
    (posted,) = receiver.posted
    assert json.loads(posted.body)["text"] == "the build is green"
    assert notifications.SIGNATURE_HEADER in posted.headers


def test_agent_token_sends_only_in_its_own_name(store_with_hook: Corral) -> None:
    store = store_with_hook
    store.agents.create("ben", provider="scripted")
    store.channels.add("ci", "webhook", secrets={"secret": "hook"})
    place = store.places.register("ci", "p")
    store.destinations.grant("ben", place.id, name="room")
    token = store.tokens.create("of-ada", scope="agent:ada").value
    with run_http_server(store) as http_server, http_server.client(token) as ada:
        payload = {"text": "as ben", "agent": "ben", "to": "room"}
        response = ada.post("/api/messages/send", json=payload)
        assert response.status_code == 403, "ada has no such destination"
        store.destinations.grant("ada", place.id, name="room")
        response = ada.post("/api/messages/send", json=payload)
        assert response.status_code == 200
        assert response.json()[0]["agent_id"] == store.agents.get("ada").id
        assert ada.post("/api/messages/say", json={"place": place.id, "text": "x"}).is_error
        assert ada.post("/api/channels/add", json={"name": "x", "kind": "terminal"}).is_error
