"""The chat pages over HTTP: conversations, senders, wirings, channels and errors."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corral.adapters.channels.contract import IncomingEvent, RawAttachment
from corral.domain.chat.model import Message
from corral.kernel.clock import DAY, ManualClock
from corral.web.channel_actions import CHANNEL_ACTIONS
from corral.web.chat import CHAT_ACTIONS
from corral.web.pages import error_page, routes
from tests.support.fake_channels import Runner, register_adapters
from tests.support.http_server import HttpServer, run_http_server
from tests.support.page_objects import PageClient, htmx_headers, iter_pages
from tests.support.sample_store import HOSTILE


class ChatPages(PageClient):
    """Chat pages with an agent and a platform with a stranger."""

    def __init__(self, http_server: HttpServer, client: httpx.Client) -> None:
        super().__init__(http_server, client)
        self.runner = Runner(self.store)
        self.store.agents.create("ada", provider="scripted")
        self.channel = self.store.channels.add("quay", "fake", policy="ask")
        self._events = 0

    def start_conversation(self, **fields: str) -> str:
        """Start a conversation with ada; return the id of its place."""
        response = self.submit("chat/start", agent=self.store.agents.get("ada").id, **fields)
        return response.headers["HX-Redirect"].rpartition("/")[2]

    def receive(self, text: str, sender: str = "mallory", place: str = "room") -> Message:
        """Receive a message on the platform."""
        self._events += 1
        result = IncomingEvent(event_id=f"e{self._events}", place=place, sender=sender, text=text)
        return self.store.messages.receive(self.channel.id, result)

    def reply(self, text: str) -> None:
        """Run the pending turn with this reply and deliver it."""
        self.store.internal.chat.start_turns()
        self.runner.end(self.runner.begin(), text)
        self.store.internal.chat.finish_turns()
        self.deliver()

    def deliver(self) -> None:
        self.store.internal.chat.run_upkeep()
        for channel in self.store.channels.list().items:
            adapter = self.store.channels.open(channel.id)
            self.store.internal.chat.deliver(channel.id, adapter, owner="d")


@pytest.fixture
def chat_pages(http_server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatPages]:
    register_adapters(monkeypatch)
    with http_server.client() as client:
        yield ChatPages(http_server, client)


def test_every_chat_action_does_what_its_button_says(
    chat_pages: ChatPages, clock: ManualClock
) -> None:
    submit, store = chat_pages.submit, chat_pages.store
    place_id = chat_pages.start_conversation()
    submit("chat/send", id=place_id, text="hello", after="")
    assert [item.state for item in store.messages.list(place=place_id).items] == ["routed"]

    store.internal.chat.start_turns()
    run = chat_pages.runner.begin()
    question = store.questions.ask(
        "Which?", options=["this", "that"], asker="agent:ada", run=run.id
    )
    chat_pages.deliver()
    submit("chat/answer", id=place_id, question=question.id, answer="that")
    assert store.questions.get(question.id).answer == "that"

    arguments = {"name": "key", "reason": "to open"}
    request = store.host_requests.ask("ada", "secret", arguments)
    submit("secrets/give", question=str(request.question_id), value="s3cret-stop_after")
    assert store.host_requests.get(request.id).state == "done"

    held_message, other_message = (
        chat_pages.receive("let me in"),
        chat_pages.receive("and me", sender="eve"),
    )
    submit("senders/approve", id=str(held_message.sender_id), person="mal", role="admin")
    assert store.senders.get("quay/mallory").person == "mal"
    submit("senders/block", id=str(other_message.sender_id))
    assert store.messages.get(other_message.id).state == "refused"

    room = store.places.get("quay/room")
    submit("wirings/add", agent="ada", where=f"place:{room.id}", trigger="mention", priority="2")
    (wiring,) = [item for item in store.wirings.list().items if item.place_id == room.id]
    assert (wiring.trigger, wiring.priority) == ("mention", 2)
    submit("wirings/change", id=wiring.id, trigger="pattern", pattern="deploy", mode="thread")
    edited = store.wirings.get(wiring.id)
    assert (edited.trigger, edited.pattern, edited.mode) == ("pattern", "deploy", "thread")
    submit("wirings/remove", id=wiring.id)
    assert store.wirings.get(wiring.id).state == "removed"

    submit("places/policy", id=room.id, policy="public")
    assert store.places.get(room.id).policy == "public"
    submit("places/policy", id=room.id, policy="")
    assert store.places.get(room.id).policy is None
    submit("places/block", id=room.id)
    submit("places/unblock", id=room.id)
    assert store.places.get(room.id).state == "open"

    store.secrets.set("token", "env:NOT_SET_ANYWHERE")
    submit(
        "channels/add",
        name="home",
        kind="matrix",
        config="base_url=http://127.0.0.1:1\n",
        secrets=" token = token ",
        policy="strict",
        on_unconfirmed="retry",
    )
    home = store.channels.get("home")
    assert (home.config["base_url"], home.secrets, home.policy, home.on_unconfirmed) == (
        "http://127.0.0.1:1",
        {"token": "token"},
        "strict",
        "retry",
    )
    assert "NOT_SET_ANYWHERE" in submit("channels/test", id=home.id).text
    assert "NOT_SET_ANYWHERE" in chat_pages.decoded_html("/messaging/channels")
    submit("channels/remove", id=home.id)
    assert store.channels.get(home.id).state == "removed"
    assert chat_pages.done == {*CHANNEL_ACTIONS, *CHAT_ACTIONS}


def test_chat_error_is_shown_beside_its_form(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.receive("x")
    room_id = chat_pages.store.places.get("quay/room").id
    chat_pages.submit_rejected("chat/start", "not_found:unknown_agent", agent="unknown")
    chat_pages.submit_rejected("chat/send", "invalid", "is required", id=place_id, text="  ")
    chat_pages.submit_rejected(
        "chat/send", "invalid", "belongs to channel", id=room_id, text="to another channel"
    )
    chat_pages.submit_rejected("chat/send", "not_found", "plc_zzz", id="plc_zzz", text="x")
    chat_pages.submit_rejected(
        "wirings/add", "invalid", "No chat or channel", agent="ada", where="moon", trigger="always"
    )
    chat_pages.submit_rejected(
        "wirings/add",
        "invalid",
        "needs a pattern",
        agent="ada",
        where=f"place:{room_id}",
        trigger="pattern",
    )
    chat_pages.submit_rejected(
        "wirings/change", "invalid", "Invalid number", id="wir_x", trigger="always", priority="x"
    )
    chat_pages.submit_rejected("senders/approve", "not_found", "snd_zzz", id="snd_zzz")
    chat_pages.submit_rejected(
        "channels/add", "invalid", "NAME=VALUE", name="a", kind="web", config="nothing"
    )
    chat_pages.submit_rejected(
        "channels/add", "invalid", "Unknown channel kind", name="a", kind="pigeon"
    )
    chat_pages.submit_rejected("channels/add", "invalid:missing_option", name="a", kind="matrix")
    assert [channel.name for channel in chat_pages.store.channels.list().items] == [
        "dashboard",
        "quay",
    ]


# -- conversations --------------------------------------------------------------------------------


def test_conversation_starts_once_and_a_repeated_message_is_sent_once(
    chat_pages: ChatPages,
) -> None:
    place_id = chat_pages.start_conversation()
    assert chat_pages.start_conversation() == place_id
    for _ in range(2):  # a double click, or a retry of the browser
        chat_pages.submit("chat/send", id=place_id, text="hello", after="")
    (message,) = chat_pages.store.messages.list(place=place_id).items
    chat_pages.submit("chat/send", id=place_id, text="hello", after=message.id)
    chat_pages.submit("chat/send", id=place_id, text="hello?", after=message.id)
    assert [item.text for item in chat_pages.store.messages.list(place=place_id).items] == [
        "hello?",
        "hello",
        "hello",
    ]
    assert {item.mode for item in chat_pages.store.wirings.list().items} == {"shared"}
    page = chat_pages.decoded_html(f"/chat/{place_id}")
    assert "waiting for ada" in page
    chat_pages.store.internal.chat.start_turns()
    run = chat_pages.runner.begin()
    page = chat_pages.decoded_html(f"/chat/{place_id}")
    assert "ada is working on it" in page
    assert f"/runs/{run.id}" in page


def test_conversation_shows_replies_edits_reactions_and_states(chat_pages: ChatPages) -> None:
    store, place_id = chat_pages.store, chat_pages.start_conversation()
    chat_pages.submit("chat/send", id=place_id, text="how are you?", after="")
    chat_pages.reply("quite fine")
    (answer, _) = store.messages.list(place=place_id).items
    assert answer.state == "sent"
    page = chat_pages.decoded_html(f"/chat/{place_id}")
    assert "quite fine" in page
    assert "handled by ada" in page
    store.messages.send("very fine", agent="ada", to=place_id, edit=answer.id)
    store.messages.send("+1", agent="ada", to=place_id, react=answer.id)
    chat_pages.deliver()
    page = chat_pages.decoded_html(f"/chat/{place_id}")
    assert "quite fine" not in page
    assert ("very fine" in page, "edited" in page, "+1" in page) == (True, True, True)
    store.places.block(place_id)
    (undelivered,) = store.messages.send_as_system(place_id, "too late")
    chat_pages.deliver()
    page = chat_pages.decoded_html(f"/chat/{place_id}")
    assert "This chat is blocked" in page
    assert "undelivered" in chat_pages.decoded_html(f"/messaging/messages/{undelivered.id}")


def test_files_are_shown_by_name_in_both_directions(chat_pages: ChatPages, tmp_path: Path) -> None:
    store, place_id = chat_pages.store, chat_pages.start_conversation()
    place = store.places.get(place_id)
    result = IncomingEvent(
        event_id="1",
        place=place.platform_id,
        sender="me",
        text="look",
        attached=[
            RawAttachment("<b>plan</b>.pdf", b"x" * 2_048),
            RawAttachment("big.iso", reason="too big"),
        ],
    )
    store.messages.receive(place.channel_id, result)
    store.internal.chat.start_turns()
    run = chat_pages.runner.begin()
    report = Path(str(store.runs.get(run.id).cwd)) / "report.txt"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text("all is well")
    (message,) = store.messages.send_files([str(report)], agent="ada", to=place_id, run=run.id)
    chat_pages.deliver()
    assert store.messages.get(message.id).state == "sent"
    page = chat_pages.decoded_html(f"/chat/{place_id}")
    for part in ("2.0 KiB", "big.iso", "not stored: too big", "report.txt", "ada</b> sent a file"):
        assert part in page, part
    assert "<b>plan" not in chat_pages.client.get(f"/chat/{place_id}").text
    assert "report.txt" in chat_pages.decoded_html(f"/messaging/messages/{message.id}")


def test_conversation_is_unchanged_under_another_daemon(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.submit("chat/send", id=place_id, text="are you still there?", after="")
    chat_pages.store.tokens.revoke("tests")  # the new daemon creates its own
    with (
        run_http_server(chat_pages.store, pages=routes(), error_page=error_page) as second_server,
        second_server.client() as client,
    ):
        assert "are you still there?" in client.get(f"/chat/{place_id}").text
        chat_pages.reply("I am")
        assert "I am" in client.get(f"/chat/{place_id}").text


def test_command_and_scrolled_back_reader_are_served(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.submit("chat/send", id=place_id, text="/help", after="")
    chat_pages.deliver()
    assert "/status" in chat_pages.decoded_html(f"/chat/{place_id}")
    for n in range(60):
        chat_pages.store.messages.send_as_system(place_id, f"line {n}")
    page = chat_pages.decoded_html(f"/chat/{place_id}")
    assert "line 59" in page
    assert "line 2<" not in page
    (older_path,) = re.findall(r'href="(/chat/[^"]+before=[^"]+)"', page)
    older_page = chat_pages.decoded_html(older_path)
    assert "line 2<" in older_page
    assert 'data-kinds=""' in older_page, "older pages are not updated"


def test_question_card_is_answered_once_and_shows_its_outcome(
    chat_pages: ChatPages, clock: ManualClock
) -> None:
    store, place_id = chat_pages.store, chat_pages.start_conversation()
    chat_pages.submit("chat/send", id=place_id, text="go", after="")
    store.internal.chat.start_turns()
    run = chat_pages.runner.begin()
    question = store.questions.ask(
        "Delete <b>it</b>?", options=["yes", HOSTILE[:50]], asker="agent:ada", run=run.id
    )
    chat_pages.deliver()
    page = chat_pages.client.get(f"/chat/{place_id}").text
    assert "Delete &lt;b&gt;it&lt;/b&gt;?" in page
    assert "<script>document" not in page
    assert page.count('action="/do/chat/answer"') == 2
    chat_pages.submit("chat/answer", id=place_id, question=question.id, answer="yes")
    chat_pages.submit("chat/answer", id=place_id, question=question.id, answer="no, wait")
    assert store.questions.get(question.id).answer == "yes"
    chat_pages.deliver()
    page = chat_pages.decoded_html(f"/chat/{place_id}")
    assert 'action="/do/chat/answer"' not in page
    assert "user:" in page
    assert "refused" in page, "the second answer is rejected with a message"


def test_read_only_token_sees_the_conversation_without_a_form(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.submit("chat/send", id=place_id, text="hello", after="")
    chat_pages.receive("let me in")
    read_token = chat_pages.store.tokens.create("reader", scope="read").value
    with chat_pages.http_server.client(read_token) as client:
        page = client.get(f"/chat/{place_id}").text
        assert "hello" in page
        assert "is read-only" in page
        for path in (f"/chat/{place_id}", "/chat", "/messaging/approvals", "/messaging/wirings"):
            assert "/do/" not in client.get(path).text, path
        for action in (*CHANNEL_ACTIONS, *CHAT_ACTIONS):
            response = client.post(
                f"/do/{action}", data={"id": place_id, "text": "x"}, headers=htmx_headers("x")
            )
            assert response.status_code == 403, action
    agent_token = chat_pages.store.tokens.create("ada", scope="agent:ada").value
    with chat_pages.http_server.client(agent_token) as client:
        for path in ("/chat", f"/chat/{place_id}", "/messaging", "/messaging/approvals"):
            assert client.get(path).status_code == 403, path
        response = client.post("/do/chat/send", data={"id": place_id, "text": "as a person"})
        assert response.status_code == 403
    assert len(chat_pages.store.messages.list(place=place_id).items) == 1


# -- results --------------------------------------------------------------------------------------


def test_stranger_is_admitted_and_held_messages_are_routed(chat_pages: ChatPages) -> None:
    chat_pages.store.wirings.add("ada", channel="quay")
    message = chat_pages.receive("<b>let me in</b>")
    page = chat_pages.client.get("/messaging/approvals").text
    assert "&lt;b&gt;let me in&lt;/b&gt;" in page
    assert "<b>let me in" not in page
    assert "held" in chat_pages.decoded_html("/messaging")
    assert "No senders are waiting for approval." not in chat_pages.decoded_html(
        "/messaging/approvals"
    )
    chat_pages.submit("senders/approve", id=str(message.sender_id), person="mal", role="member")
    assert "No senders are waiting for approval." in chat_pages.decoded_html("/messaging/approvals")
    page = chat_pages.decoded_html(f"/messaging/messages/{message.id}")
    (route,) = chat_pages.store.messages.get(message.id).routes
    assert route.wakes
    assert route.reason in page
    assert "waiting for ada" in chat_pages.decoded_html("/messaging")


def test_message_links_to_its_session_and_its_letter(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.submit("chat/send", id=place_id, text="how are you?", after="")
    chat_pages.reply("fine")
    (answer, result) = chat_pages.store.messages.list(place=place_id).items
    (route,) = result.routes
    page = chat_pages.decoded_html(f"/messaging/messages/{result.id}")
    for part in (f"/sessions/{route.session_id}", f"/mail/{route.letter_id}", "letter ack"):
        assert part in page, part
    page = chat_pages.decoded_html(f"/messaging/messages/{answer.id}")
    assert f"/mail/{answer.letter_id}" in page
    assert f"/runs/{answer.run_id}" in page
    chat_pages.receive("somewhere else")
    page = chat_pages.decoded_html(f"/messaging?session={route.session_id}")
    assert ("how are you?" in page, "fine" in page, "somewhere else" in page) == (True, True, False)
    page = chat_pages.decoded_html(f"/messaging?place={place_id}")
    assert f"/messaging?session={route.session_id}" in page


def test_dead_letters_are_retried_or_dropped_with_their_text(
    chat_pages: ChatPages, clock: ManualClock
) -> None:
    store = chat_pages.store
    chat_pages.receive("x")
    room = store.places.get("quay/room")
    (message,) = store.messages.send_as_system(room.id, "The report is ready.")
    assert "sending" in chat_pages.decoded_html(f"/messaging?place={room.id}")
    while store.mail.get(str(message.letter_id)).state == "waiting":
        (letter,) = store.mail.claim(room.mailbox, owner="d")
        store.mail.fail(letter, "connection refused")
        clock.advance(DAY)
    store.internal.chat.run_upkeep()
    page = chat_pages.decoded_html("/messaging/dead")
    assert "The report is ready." in page
    assert "connection refused" in page
    assert "undelivered" in chat_pages.decoded_html("/messaging")
    store.mail.put("agent:ada", "no message of a channel")
    chat_pages.submit("mail/resend", id=str(message.letter_id))
    assert "No dead letters" in chat_pages.decoded_html("/messaging/dead")
    assert "queued" in chat_pages.decoded_html(f"/messaging/messages/{message.id}")
    chat_pages.submit("mail/drop", id=str(message.letter_id), reason="no longer needed")
    assert "no longer needed" in chat_pages.decoded_html("/messaging/dead?state=refused")


def test_preview_shows_what_wirings_would_do_and_stores_nothing(chat_pages: ChatPages) -> None:
    store = chat_pages.store
    chat_pages.receive("x")
    room = store.places.get("quay/room").id
    store.wirings.add("ada", place=room, trigger="mention", scope="known")
    before = len(store.messages.list().items)
    for query, reason in (
        ("text=hello", "the agent was not addressed"),
        ("text=@ada+hello", "the agent was addressed"),
        ("text=hello&mentioned=1", "the agent was addressed"),
        ("text=@ada+hello&stranger=1", "the wiring is for known people only"),
    ):
        assert reason in chat_pages.decoded_html(f"/messaging/wirings?place={room}&{query}"), query
    assert len(store.messages.list().items) == before
    other_room = store.places.register("quay", "other").id
    assert "No agent is wired" in chat_pages.decoded_html(
        f"/messaging/wirings?place={other_room}&text=x"
    )


def test_long_chat_lists_are_paginated_to_their_end(chat_pages: ChatPages) -> None:
    for n in range(120):
        chat_pages.receive(f"line {n}", sender=f"s{n % 3}")
    for path in ("/messaging", "/messaging/approvals"):
        result = re.findall(r'id="(msg_\d+)"', "".join(iter_pages(chat_pages.client, path)))
        assert len(result) == len({*result}) == 120, path
