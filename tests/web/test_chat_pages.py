"""Chat and the pages of the gateway, as a program sees them."""

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
from tests.support.http_server import HttpServer, serving
from tests.support.page_objects import PageClient, as_part, iter_pages
from tests.support.sample_store import HOSTILE


class Desk(PageClient):
    """An agent to talk to, and a platform with a stranger."""

    def __init__(self, served: HttpServer, client: httpx.Client) -> None:
        super().__init__(served, client)
        self.runner = Runner(self.store)
        self.store.agents.create("ada", provider="scripted")
        self.channel = self.store.channels.add("quay", "fake", policy="ask")
        self._events = 0

    def begin(self, **given: str) -> str:
        """Begin a talk with ada; the id of its place."""
        went = self.act("chat/begin", agent=self.store.agents.get("ada").id, **given)
        return went.headers["HX-Redirect"].rpartition("/")[2]

    def says(self, text: str, sender: str = "mallory", place: str = "room") -> Message:
        """Somebody speaks on the platform."""
        self._events += 1
        said = IncomingEvent(event_id=f"e{self._events}", place=place, sender=sender, text=text)
        return self.store.messages.receive(self.channel.id, said)

    def answers(self, text: str) -> None:
        """The agent hears what waits, and says this; it is delivered."""
        self.store.gateway.wake()
        self.runner.end(self.runner.begin(), text)
        self.store.gateway.settle()
        self.deliver()

    def deliver(self) -> None:
        self.store.gateway.look_after()
        for channel in self.store.channels.list().items:
            adapter = self.store.channels.open(channel.id)
            self.store.gateway.deliver(channel.id, adapter, owner="d")


@pytest.fixture
def desk(served: HttpServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    register_adapters(monkeypatch)
    with served.client() as client:
        yield Desk(served, client)


def test_every_action_of_the_gateway_does_what_its_button_says(
    desk: Desk, clock: ManualClock
) -> None:
    act, store = desk.act, desk.store
    talk = desk.begin()
    act("chat/say", id=talk, text="hello", after="")
    assert [each.state for each in store.messages.list(place=talk).items] == ["heard"]

    store.gateway.wake()
    run = desk.runner.begin()
    asked = store.questions.ask("Which?", options=["this", "that"], asker="agent:ada", run=run.id)
    desk.deliver()
    act("chat/answer", id=talk, question=asked.id, answer="that")
    assert store.questions.get(asked.id).answer == "that"

    wish = {"name": "key", "reason": "to open"}
    wanted = store.requests.ask("ada", "secret", wish)
    act("secrets/give", question=str(wanted.question_id), value="s3cret-stop_after")
    assert store.requests.get(wanted.id).state == "done"

    held, other = desk.says("let me in"), desk.says("and me", sender="eve")
    act("senders/approve", id=str(held.sender_id), person="mal", role="admin")
    assert store.senders.get("quay/mallory").person == "mal"
    act("senders/block", id=str(other.sender_id))
    assert store.messages.get(other.id).state == "refused"

    room = store.places.get("quay/room")
    act("wirings/add", agent="ada", where=f"place:{room.id}", trigger="mention", priority="2")
    (wiring,) = [each for each in store.wirings.list().items if each.place_id == room.id]
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
        in_doubt="retry",
    )
    home = store.channels.get("home")
    assert (home.config["base_url"], home.secrets, home.policy, home.in_doubt) == (
        "http://127.0.0.1:1",
        {"token": "token"},
        "strict",
        "retry",
    )
    assert "NOT_SET_ANYWHERE" in act("channels/test", id=home.id).text
    assert "NOT_SET_ANYWHERE" in desk.shown("/gateway/channels")
    act("channels/remove", id=home.id)
    assert store.channels.get(home.id).state == "removed"
    assert desk.done == {*CHANNEL_ACTIONS}


def test_an_error_of_the_gateway_is_a_sentence_beside_its_form(desk: Desk) -> None:
    talk = desk.begin()
    desk.says("x")
    room = desk.store.places.get("quay/room").id
    desk.refused("chat/begin", "'nobody'", agent="nobody")
    desk.refused("chat/say", "is required", id=talk, text="  ")
    desk.refused("chat/say", "belongs to channel", id=room, text="as if I were there")
    desk.refused("chat/say", "plc_zzz", id="plc_zzz", text="x")
    desk.refused("wirings/add", "Choose a chat", agent="ada", where="moon", trigger="always")
    desk.refused(
        "wirings/add", "needs a pattern", agent="ada", where=f"place:{room}", trigger="pattern"
    )
    desk.refused("wirings/change", "Invalid number", id="wir_x", trigger="always", priority="x")
    desk.refused("senders/approve", "snd_zzz", id="snd_zzz")
    desk.refused("channels/add", "NAME=VALUE", name="a", kind="web", config="nothing")
    desk.refused("channels/add", "Unknown channel kind", name="a", kind="pigeon")
    desk.refused("channels/add", "base_url", name="a", kind="matrix")
    assert [each.name for each in desk.store.channels.list().items] == ["dashboard", "quay"]


# -- talking --------------------------------------------------------------------------------------


def test_a_talk_is_begun_once_and_what_is_sent_twice_is_said_once(desk: Desk) -> None:
    talk = desk.begin()
    assert desk.begin() == talk
    for _ in range(2):  # somebody who is impatient, or a browser that tries again
        desk.act("chat/say", id=talk, text="hello", after="")
    (said,) = desk.store.messages.list(place=talk).items
    desk.act("chat/say", id=talk, text="hello", after=said.id)
    desk.act("chat/say", id=talk, text="hello?", after=said.id)
    assert [each.text for each in desk.store.messages.list(place=talk).items] == [
        "hello?",
        "hello",
        "hello",
    ]
    assert {each.mode for each in desk.store.wirings.list().items} == {"shared"}
    page = desk.shown(f"/chat/{talk}")
    assert "waiting for ada" in page
    desk.store.gateway.wake()
    run = desk.runner.begin()
    page = desk.shown(f"/chat/{talk}")
    assert "ada is working on it" in page
    assert f"/runs/{run.id}" in page


def test_a_talk_shows_answers_later_words_signs_and_how_far_each_message_is(desk: Desk) -> None:
    store, talk = desk.store, desk.begin()
    desk.act("chat/say", id=talk, text="how are you?", after="")
    desk.answers("quite fine")
    (answer, _) = store.messages.list(place=talk).items
    assert answer.state == "sent"
    page = desk.shown(f"/chat/{talk}")
    assert "quite fine" in page
    assert "handled by ada" in page
    store.messages.send("very fine", agent="ada", to=talk, edit=answer.id)
    store.messages.send("+1", agent="ada", to=talk, react=answer.id)
    desk.deliver()
    page = desk.shown(f"/chat/{talk}")
    assert "quite fine" not in page
    assert ("very fine" in page, "edited" in page, "+1" in page) == (True, True, True)
    store.places.block(talk)
    (late,) = store.messages.say(talk, "too late")
    desk.deliver()
    page = desk.shown(f"/chat/{talk}")
    assert "This chat is blocked" in page
    assert "undelivered" in desk.shown(f"/gateway/messages/{late.id}")


def test_files_are_shown_by_their_names_both_ways(desk: Desk, tmp_path: Path) -> None:
    store, talk = desk.store, desk.begin()
    place = store.places.get(talk)
    said = IncomingEvent(
        event_id="1",
        place=place.platform_id,
        sender="me",
        text="look",
        attached=[
            RawAttachment("<b>plan</b>.pdf", b"x" * 2_048),
            RawAttachment("big.iso", reason="too big"),
        ],
    )
    store.messages.receive(place.channel_id, said)
    store.gateway.wake()
    run = desk.runner.begin()
    own = Path(str(store.runs.get(run.id).cwd)) / "report.txt"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("all is well")
    (sent,) = store.messages.send_files([str(own)], agent="ada", to=talk, run=run.id)
    desk.deliver()
    assert store.messages.get(sent.id).state == "sent"
    page = desk.shown(f"/chat/{talk}")
    for part in ("2.0 KiB", "big.iso", "not stored: too big", "report.txt", "ada</b> sent a file"):
        assert part in page, part
    assert "<b>plan" not in desk.client.get(f"/chat/{talk}").text
    assert "report.txt" in desk.shown(f"/gateway/messages/{sent.id}")


def test_a_talk_is_as_it_was_when_another_daemon_serves_the_store(desk: Desk) -> None:
    talk = desk.begin()
    desk.act("chat/say", id=talk, text="are you still there?", after="")
    desk.store.tokens.revoke("tests")  # the new one makes its own
    with (
        serving(desk.store, pages=routes(), error_page=error_page) as again,
        again.client() as client,
    ):
        assert "are you still there?" in client.get(f"/chat/{talk}").text
        desk.answers("I am")
        assert "I am" in client.get(f"/chat/{talk}").text


def test_a_command_and_a_reader_further_back_are_served(desk: Desk) -> None:
    talk = desk.begin()
    desk.act("chat/say", id=talk, text="/help", after="")
    desk.deliver()
    assert "/status" in desk.shown(f"/chat/{talk}")
    for n in range(60):
        desk.store.messages.say(talk, f"line {n}")
    page = desk.shown(f"/chat/{talk}")
    assert "line 59" in page
    assert "line 2<" not in page
    (earlier,) = re.findall(r'href="(/chat/[^"]+before=[^"]+)"', page)
    back = desk.shown(earlier)
    assert "line 2<" in back
    assert 'data-kinds=""' in back, "who reads further back is not disturbed"


def test_a_card_is_answered_once_and_says_how_it_ended(desk: Desk, clock: ManualClock) -> None:
    store, talk = desk.store, desk.begin()
    desk.act("chat/say", id=talk, text="go", after="")
    store.gateway.wake()
    run = desk.runner.begin()
    asked = store.questions.ask(
        "Delete <b>it</b>?", options=["yes", HOSTILE[:50]], asker="agent:ada", run=run.id
    )
    desk.deliver()
    page = desk.client.get(f"/chat/{talk}").text
    assert "Delete &lt;b&gt;it&lt;/b&gt;?" in page
    assert "<script>document" not in page
    assert page.count('action="/do/chat/answer"') == 2
    desk.act("chat/answer", id=talk, question=asked.id, answer="yes")
    desk.act("chat/answer", id=talk, question=asked.id, answer="no, wait")
    assert store.questions.get(asked.id).answer == "yes"
    desk.deliver()
    page = desk.shown(f"/chat/{talk}")
    assert 'action="/do/chat/answer"' not in page
    assert "user:" in page
    assert "refused" in page, "the second answer did not count, and that is said"


def test_who_may_only_look_sees_the_talk_and_no_way_to_speak(desk: Desk) -> None:
    talk = desk.begin()
    desk.act("chat/say", id=talk, text="hello", after="")
    desk.says("let me in")
    reader = desk.store.tokens.create("reader", scope="read").value
    with desk.served.client(reader) as client:
        page = client.get(f"/chat/{talk}").text
        assert "hello" in page
        assert "is read-only" in page
        for path in (f"/chat/{talk}", "/chat", "/gateway/held", "/gateway/wirings"):
            assert "/do/" not in client.get(path).text, path
        for action in CHANNEL_ACTIONS:
            said = client.post(
                f"/do/{action}", data={"id": talk, "text": "x"}, headers=as_part("x")
            )
            assert said.status_code == 403, action
    own = desk.store.tokens.create("ada", scope="agent:ada").value
    with desk.served.client(own) as client:
        for path in ("/chat", f"/chat/{talk}", "/gateway", "/gateway/held"):
            assert client.get(path).status_code == 403, path
        said = client.post("/do/chat/say", data={"id": talk, "text": "as a person"})
        assert said.status_code == 403
    assert len(desk.store.messages.list(place=talk).items) == 1


# -- what became of it ----------------------------------------------------------------------------


def test_a_stranger_is_let_in_and_what_was_held_is_heard(desk: Desk) -> None:
    desk.store.wirings.add("ada", channel="quay")
    held = desk.says("<b>let me in</b>")
    page = desk.client.get("/gateway/held").text
    assert "&lt;b&gt;let me in&lt;/b&gt;" in page
    assert "<b>let me in" not in page
    assert "held" in desk.shown("/gateway")
    assert "Nobody waits" not in desk.shown("/gateway/held")
    desk.act("senders/approve", id=str(held.sender_id), person="mal", role="member")
    assert "No senders are waiting for approval." in desk.shown("/gateway/held")
    page = desk.shown(f"/gateway/messages/{held.id}")
    (route,) = desk.store.messages.get(held.id).routes
    assert route.heard
    assert route.reason in page
    assert "waiting for ada" in desk.shown("/gateway")


def test_a_message_is_followed_to_its_session_and_its_letter(desk: Desk) -> None:
    talk = desk.begin()
    desk.act("chat/say", id=talk, text="how are you?", after="")
    desk.answers("fine")
    (answer, said) = desk.store.messages.list(place=talk).items
    (route,) = said.routes
    page = desk.shown(f"/gateway/messages/{said.id}")
    for part in (f"/sessions/{route.session_id}", f"/mail/{route.letter_id}", "letter ack"):
        assert part in page, part
    page = desk.shown(f"/gateway/messages/{answer.id}")
    assert f"/mail/{answer.letter_id}" in page
    assert f"/runs/{answer.run_id}" in page
    desk.says("somewhere else")
    page = desk.shown(f"/gateway?session={route.session_id}")
    assert ("how are you?" in page, "fine" in page, "somewhere else" in page) == (True, True, False)
    page = desk.shown(f"/gateway?place={talk}")
    assert f"/gateway?session={route.session_id}" in page


def test_dead_letters_are_sent_again_or_dropped_with_what_they_say(
    desk: Desk, clock: ManualClock
) -> None:
    store = desk.store
    desk.says("x")
    room = store.places.get("quay/room")
    (lost,) = store.messages.say(room.id, "Tide tables are out.")
    assert "sending" in desk.shown(f"/gateway?place={room.id}")
    while store.mail.get(str(lost.letter_id)).state == "waiting":
        (letter,) = store.mail.claim(room.mailbox, owner="d")
        store.mail.fail(letter, "the quay is closed")
        clock.advance(DAY)
    store.gateway.look_after()
    page = desk.shown("/gateway/dead")
    assert "Tide tables are out." in page
    assert "the quay is closed" in page
    assert "undelivered" in desk.shown("/gateway")
    store.mail.put("agent:ada", "no message of a channel")
    desk.act("mail/resend", id=str(lost.letter_id))
    assert "No dead letters" in desk.shown("/gateway/dead")
    assert "queued" in desk.shown(f"/gateway/messages/{lost.id}")
    desk.act("mail/drop", id=str(lost.letter_id), reason="nobody cares")
    assert "nobody cares" in desk.shown("/gateway/dead?state=refused")


def test_the_try_out_says_what_the_wirings_would_do_and_stores_nothing(desk: Desk) -> None:
    store = desk.store
    desk.says("x")
    room = store.places.get("quay/room").id
    store.wirings.add("ada", place=room, trigger="mention", scope="known")
    before = len(store.messages.list().items)
    for asked, because in (
        ("text=hello", "the agent was not addressed"),
        ("text=@ada+hello", "the agent was addressed"),
        ("text=hello&mentioned=1", "the agent was addressed"),
        ("text=@ada+hello&stranger=1", "the wiring is for known people only"),
    ):
        assert because in desk.shown(f"/gateway/wirings?place={room}&{asked}"), asked
    assert len(store.messages.list().items) == before
    elsewhere = store.places.meet("quay", "other").id
    assert "No agent is wired" in desk.shown(f"/gateway/wirings?place={elsewhere}&text=x")


def test_long_lists_of_the_gateway_are_paged_to_their_end(desk: Desk) -> None:
    for n in range(120):
        desk.says(f"line {n}", sender=f"s{n % 3}")
    for path in ("/gateway", "/gateway/held"):
        found = re.findall(r'id="(msg_\d+)"', "".join(iter_pages(desk.client, path)))
        assert len(found) == len({*found}) == 120, path
