"""Chat pages, by requests."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corral.adapters.channels.contract import IncomingEvent, RawAttachment
from corral.domain.chat.model import Message
from corral.kernel.clock import DAY, ManualClock
from corral.web.channel_actions import CHANNEL_ACTIONS
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

    def begin(self, **given: str) -> str:
        """Start a conversation with ada; return the id of its place."""
        went = self.act("chat/begin", agent=self.store.agents.get("ada").id, **given)
        return went.headers["HX-Redirect"].rpartition("/")[2]

    def says(self, text: str, sender: str = "mallory", place: str = "room") -> Message:
        """Receive a message on the platform."""
        self._events += 1
        result = IncomingEvent(event_id=f"e{self._events}", place=place, sender=sender, text=text)
        return self.store.messages.receive(self.channel.id, result)

    def answers(self, text: str) -> None:
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
    act, store = chat_pages.act, chat_pages.store
    talk = chat_pages.begin()
    act("chat/say", id=talk, text="hello", after="")
    assert [item.state for item in store.messages.list(place=talk).items] == ["routed"]

    store.internal.chat.start_turns()
    run = chat_pages.runner.begin()
    asked = store.questions.ask("Which?", options=["this", "that"], asker="agent:ada", run=run.id)
    chat_pages.deliver()
    act("chat/answer", id=talk, question=asked.id, answer="that")
    assert store.questions.get(asked.id).answer == "that"

    wish = {"name": "key", "reason": "to open"}
    wanted = store.host_requests.ask("ada", "secret", wish)
    act("secrets/give", question=str(wanted.question_id), value="s3cret-stop_after")
    assert store.host_requests.get(wanted.id).state == "done"

    held, other = chat_pages.says("let me in"), chat_pages.says("and me", sender="eve")
    act("senders/approve", id=str(held.sender_id), person="mal", role="admin")
    assert store.senders.get("quay/mallory").person == "mal"
    act("senders/block", id=str(other.sender_id))
    assert store.messages.get(other.id).state == "refused"

    room = store.places.get("quay/room")
    act("wirings/add", agent="ada", where=f"place:{room.id}", trigger="mention", priority="2")
    (wiring,) = [item for item in store.wirings.list().items if item.place_id == room.id]
    assert (wiring.trigger, wiring.priority) == ("mention", 2)
    act("wirings/change", id=wiring.id, trigger="pattern", pattern="deploy", mode="thread")
    changed = store.wirings.get(wiring.id)
    assert (changed.trigger, changed.pattern, changed.mode) == ("pattern", "deploy", "thread")
    act("wirings/remove", id=wiring.id)
    assert store.wirings.get(wiring.id).state == "removed"

    act("places/policy", id=room.id, policy="public")
    assert store.places.get(room.id).policy == "public"
    act("places/policy", id=room.id, policy="")
    assert store.places.get(room.id).policy is None
    act("places/block", id=room.id)
    act("places/unblock", id=room.id)
    assert store.places.get(room.id).state == "open"

    store.secrets.set("token", "env:NOT_SET_ANYWHERE")
    act(
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
    assert "NOT_SET_ANYWHERE" in act("channels/test", id=home.id).text
    assert "NOT_SET_ANYWHERE" in chat_pages.shown("/messaging/channels")
    act("channels/remove", id=home.id)
    assert store.channels.get(home.id).state == "removed"
    assert chat_pages.done == {*CHANNEL_ACTIONS}


def test_chat_error_is_shown_beside_its_form(chat_pages: ChatPages) -> None:
    talk = chat_pages.begin()
    chat_pages.says("x")
    room = chat_pages.store.places.get("quay/room").id
    chat_pages.refused("chat/begin", "not_found:unknown_agent", agent="nobody")
    chat_pages.refused("chat/say", "invalid", "is required", id=talk, text="  ")
    chat_pages.refused(
        "chat/say", "invalid", "belongs to channel", id=room, text="as if I were there"
    )
    chat_pages.refused("chat/say", "not_found", "plc_zzz", id="plc_zzz", text="x")
    chat_pages.refused(
        "wirings/add", "invalid", "Choose a chat", agent="ada", where="moon", trigger="always"
    )
    chat_pages.refused(
        "wirings/add",
        "invalid",
        "needs a pattern",
        agent="ada",
        where=f"place:{room}",
        trigger="pattern",
    )
    chat_pages.refused(
        "wirings/change", "invalid", "Invalid number", id="wir_x", trigger="always", priority="x"
    )
    chat_pages.refused("senders/approve", "not_found", "snd_zzz", id="snd_zzz")
    chat_pages.refused(
        "channels/add", "invalid", "NAME=VALUE", name="a", kind="web", config="nothing"
    )
    chat_pages.refused("channels/add", "invalid", "Unknown channel kind", name="a", kind="pigeon")
    chat_pages.refused("channels/add", "invalid:missing_option", name="a", kind="matrix")
    assert [channel.name for channel in chat_pages.store.channels.list().items] == [
        "dashboard",
        "quay",
    ]


# -- conversations --------------------------------------------------------------------------------


def test_conversation_starts_once_and_a_repeated_message_is_sent_once(
    chat_pages: ChatPages,
) -> None:
    talk = chat_pages.begin()
    assert chat_pages.begin() == talk
    for _ in range(2):  # an impatient person, or a retry of the browser
        chat_pages.act("chat/say", id=talk, text="hello", after="")
    (message,) = chat_pages.store.messages.list(place=talk).items
    chat_pages.act("chat/say", id=talk, text="hello", after=message.id)
    chat_pages.act("chat/say", id=talk, text="hello?", after=message.id)
    assert [item.text for item in chat_pages.store.messages.list(place=talk).items] == [
        "hello?",
        "hello",
        "hello",
    ]
    assert {item.mode for item in chat_pages.store.wirings.list().items} == {"shared"}
    page = chat_pages.shown(f"/chat/{talk}")
    assert "waiting for ada" in page
    chat_pages.store.internal.chat.start_turns()
    run = chat_pages.runner.begin()
    page = chat_pages.shown(f"/chat/{talk}")
    assert "ada is working on it" in page
    assert f"/runs/{run.id}" in page


def test_conversation_shows_replies_edits_reactions_and_states(chat_pages: ChatPages) -> None:
    store, talk = chat_pages.store, chat_pages.begin()
    chat_pages.act("chat/say", id=talk, text="how are you?", after="")
    chat_pages.answers("quite fine")
    (answer, _) = store.messages.list(place=talk).items
    assert answer.state == "sent"
    page = chat_pages.shown(f"/chat/{talk}")
    assert "quite fine" in page
    assert "handled by ada" in page
    store.messages.send("very fine", agent="ada", to=talk, edit=answer.id)
    store.messages.send("+1", agent="ada", to=talk, react=answer.id)
    chat_pages.deliver()
    page = chat_pages.shown(f"/chat/{talk}")
    assert "quite fine" not in page
    assert ("very fine" in page, "edited" in page, "+1" in page) == (True, True, True)
    store.places.block(talk)
    (late,) = store.messages.send_as_system(talk, "too late")
    chat_pages.deliver()
    page = chat_pages.shown(f"/chat/{talk}")
    assert "This chat is blocked" in page
    assert "undelivered" in chat_pages.shown(f"/messaging/messages/{late.id}")


def test_files_are_shown_by_name_in_both_directions(chat_pages: ChatPages, tmp_path: Path) -> None:
    store, talk = chat_pages.store, chat_pages.begin()
    place = store.places.get(talk)
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
    own = Path(str(store.runs.get(run.id).cwd)) / "report.txt"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("all is well")
    (sent,) = store.messages.send_files([str(own)], agent="ada", to=talk, run=run.id)
    chat_pages.deliver()
    assert store.messages.get(sent.id).state == "sent"
    page = chat_pages.shown(f"/chat/{talk}")
    for part in ("2.0 KiB", "big.iso", "not stored: too big", "report.txt", "ada</b> sent a file"):
        assert part in page, part
    assert "<b>plan" not in chat_pages.client.get(f"/chat/{talk}").text
    assert "report.txt" in chat_pages.shown(f"/messaging/messages/{sent.id}")


def test_conversation_is_unchanged_under_another_daemon(chat_pages: ChatPages) -> None:
    talk = chat_pages.begin()
    chat_pages.act("chat/say", id=talk, text="are you still there?", after="")
    chat_pages.store.tokens.revoke("tests")  # the new daemon creates its own
    with (
        run_http_server(chat_pages.store, pages=routes(), error_page=error_page) as again,
        again.client() as client,
    ):
        assert "are you still there?" in client.get(f"/chat/{talk}").text
        chat_pages.answers("I am")
        assert "I am" in client.get(f"/chat/{talk}").text


def test_command_and_scrolled_back_reader_are_served(chat_pages: ChatPages) -> None:
    talk = chat_pages.begin()
    chat_pages.act("chat/say", id=talk, text="/help", after="")
    chat_pages.deliver()
    assert "/status" in chat_pages.shown(f"/chat/{talk}")
    for n in range(60):
        chat_pages.store.messages.send_as_system(talk, f"line {n}")
    page = chat_pages.shown(f"/chat/{talk}")
    assert "line 59" in page
    assert "line 2<" not in page
    (earlier,) = re.findall(r'href="(/chat/[^"]+before=[^"]+)"', page)
    back = chat_pages.shown(earlier)
    assert "line 2<" in back
    assert 'data-kinds=""' in back, "older pages are not updated"


def test_question_card_is_answered_once_and_shows_its_outcome(
    chat_pages: ChatPages, clock: ManualClock
) -> None:
    store, talk = chat_pages.store, chat_pages.begin()
    chat_pages.act("chat/say", id=talk, text="go", after="")
    store.internal.chat.start_turns()
    run = chat_pages.runner.begin()
    asked = store.questions.ask(
        "Delete <b>it</b>?", options=["yes", HOSTILE[:50]], asker="agent:ada", run=run.id
    )
    chat_pages.deliver()
    page = chat_pages.client.get(f"/chat/{talk}").text
    assert "Delete &lt;b&gt;it&lt;/b&gt;?" in page
    assert "<script>document" not in page
    assert page.count('action="/do/chat/answer"') == 2
    chat_pages.act("chat/answer", id=talk, question=asked.id, answer="yes")
    chat_pages.act("chat/answer", id=talk, question=asked.id, answer="no, wait")
    assert store.questions.get(asked.id).answer == "yes"
    chat_pages.deliver()
    page = chat_pages.shown(f"/chat/{talk}")
    assert 'action="/do/chat/answer"' not in page
    assert "user:" in page
    assert "refused" in page, "the second answer is rejected with a message"


def test_read_only_token_sees_the_conversation_without_a_form(chat_pages: ChatPages) -> None:
    talk = chat_pages.begin()
    chat_pages.act("chat/say", id=talk, text="hello", after="")
    chat_pages.says("let me in")
    reader = chat_pages.store.tokens.create("reader", scope="read").value
    with chat_pages.http_server.client(reader) as client:
        page = client.get(f"/chat/{talk}").text
        assert "hello" in page
        assert "is read-only" in page
        for path in (f"/chat/{talk}", "/chat", "/messaging/held", "/messaging/wirings"):
            assert "/do/" not in client.get(path).text, path
        for action in CHANNEL_ACTIONS:
            response = client.post(
                f"/do/{action}", data={"id": talk, "text": "x"}, headers=htmx_headers("x")
            )
            assert response.status_code == 403, action
    own = chat_pages.store.tokens.create("ada", scope="agent:ada").value
    with chat_pages.http_server.client(own) as client:
        for path in ("/chat", f"/chat/{talk}", "/messaging", "/messaging/held"):
            assert client.get(path).status_code == 403, path
        response = client.post("/do/chat/say", data={"id": talk, "text": "as a person"})
        assert response.status_code == 403
    assert len(chat_pages.store.messages.list(place=talk).items) == 1


# -- results --------------------------------------------------------------------------------------


def test_stranger_is_admitted_and_held_messages_are_routed(chat_pages: ChatPages) -> None:
    chat_pages.store.wirings.add("ada", channel="quay")
    held = chat_pages.says("<b>let me in</b>")
    page = chat_pages.client.get("/messaging/held").text
    assert "&lt;b&gt;let me in&lt;/b&gt;" in page
    assert "<b>let me in" not in page
    assert "held" in chat_pages.shown("/messaging")
    assert "Nobody waits" not in chat_pages.shown("/messaging/held")
    chat_pages.act("senders/approve", id=str(held.sender_id), person="mal", role="member")
    assert "No senders are waiting for approval." in chat_pages.shown("/messaging/held")
    page = chat_pages.shown(f"/messaging/messages/{held.id}")
    (route,) = chat_pages.store.messages.get(held.id).routes
    assert route.wakes
    assert route.reason in page
    assert "waiting for ada" in chat_pages.shown("/messaging")


def test_message_links_to_its_session_and_its_letter(chat_pages: ChatPages) -> None:
    talk = chat_pages.begin()
    chat_pages.act("chat/say", id=talk, text="how are you?", after="")
    chat_pages.answers("fine")
    (answer, result) = chat_pages.store.messages.list(place=talk).items
    (route,) = result.routes
    page = chat_pages.shown(f"/messaging/messages/{result.id}")
    for part in (f"/sessions/{route.session_id}", f"/mail/{route.letter_id}", "letter ack"):
        assert part in page, part
    page = chat_pages.shown(f"/messaging/messages/{answer.id}")
    assert f"/mail/{answer.letter_id}" in page
    assert f"/runs/{answer.run_id}" in page
    chat_pages.says("somewhere else")
    page = chat_pages.shown(f"/messaging?session={route.session_id}")
    assert ("how are you?" in page, "fine" in page, "somewhere else" in page) == (True, True, False)
    page = chat_pages.shown(f"/messaging?place={talk}")
    assert f"/messaging?session={route.session_id}" in page


def test_dead_letters_are_retried_or_dropped_with_their_text(
    chat_pages: ChatPages, clock: ManualClock
) -> None:
    store = chat_pages.store
    chat_pages.says("x")
    room = store.places.get("quay/room")
    (lost,) = store.messages.send_as_system(room.id, "Tide tables are out.")
    assert "sending" in chat_pages.shown(f"/messaging?place={room.id}")
    while store.mail.get(str(lost.letter_id)).state == "waiting":
        (letter,) = store.mail.claim(room.mailbox, owner="d")
        store.mail.fail(letter, "the quay is closed")
        clock.advance(DAY)
    store.internal.chat.run_upkeep()
    page = chat_pages.shown("/messaging/dead")
    assert "Tide tables are out." in page
    assert "the quay is closed" in page
    assert "undelivered" in chat_pages.shown("/messaging")
    store.mail.put("agent:ada", "no message of a channel")
    chat_pages.act("mail/resend", id=str(lost.letter_id))
    assert "No dead letters" in chat_pages.shown("/messaging/dead")
    assert "queued" in chat_pages.shown(f"/messaging/messages/{lost.id}")
    chat_pages.act("mail/drop", id=str(lost.letter_id), reason="nobody cares")
    assert "nobody cares" in chat_pages.shown("/messaging/dead?state=refused")


def test_preview_shows_what_wirings_would_do_and_stores_nothing(chat_pages: ChatPages) -> None:
    store = chat_pages.store
    chat_pages.says("x")
    room = store.places.get("quay/room").id
    store.wirings.add("ada", place=room, trigger="mention", scope="known")
    before = len(store.messages.list().items)
    for asked, because in (
        ("text=hello", "the agent was not addressed"),
        ("text=@ada+hello", "the agent was addressed"),
        ("text=hello&mentioned=1", "the agent was addressed"),
        ("text=@ada+hello&stranger=1", "the wiring is for known people only"),
    ):
        assert because in chat_pages.shown(f"/messaging/wirings?place={room}&{asked}"), asked
    assert len(store.messages.list().items) == before
    elsewhere = store.places.register("quay", "other").id
    assert "No agent is wired" in chat_pages.shown(f"/messaging/wirings?place={elsewhere}&text=x")


def test_long_chat_lists_are_paginated_to_their_end(chat_pages: ChatPages) -> None:
    for n in range(120):
        chat_pages.says(f"line {n}", sender=f"s{n % 3}")
    for path in ("/messaging", "/messaging/held"):
        result = re.findall(r'id="(msg_\d+)"', "".join(iter_pages(chat_pages.client, path)))
        assert len(result) == len({*result}) == 120, path
