"""Telegram and Slack channels against fake servers of their APIs."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from corral.adapters.channels.contract import MessageKind
from corral.api import Corral
from corral.domain.chat.model import Message
from corral.kernel.clock import MINUTE, SECOND, ManualClock
from corral.kernel.errors import Refused
from tests.support import fake_bot_apis
from tests.support.chat_server_stub import platform
from tests.support.errors import because
from tests.support.fake_bot_apis import DOWN, LATE, RETRY_SECONDS
from tests.support.fake_channels import Runner
from tests.support.prompt_parser import quotes_in

SIGNING = "signing-key"
ANN = {"id": 5, "username": "ann"}


class Bot:
    """A channel of a store, its fake server, and an agent that may send there."""

    def __init__(self, store: Corral, kind: str, server: Any, url: str, work: Path) -> None:
        self.store = store
        self.kind = kind
        self.server = server
        self.url = url
        store.secrets.set("token", "env:BOT_TOKEN")
        store.secrets.set("signing", "env:BOT_SIGNING")
        secrets = {"token": "token"} | ({"signing_secret": "signing"} if kind == "slack" else {})
        work.mkdir()
        (work / "report.txt").write_text("the report")
        store.agents.create("ada", provider="scripted", workspace=str(work))
        self.channel = store.channels.add(
            kind, kind, config={"base_url": url}, secrets=secrets, policy="public"
        )
        store.wirings.add("ada", channel=kind)
        self.adapter = store.channels.open(kind)
        self.adapter.start()

    def close(self) -> None:
        self.adapter.stop()

    def allow(self, place: str, name: str) -> str:
        registered = self.store.places.register(self.kind, place)
        self.store.destinations.grant("ada", registered.id, name=name)
        return registered.mailbox

    def send(self) -> list[str]:
        letters = self.store.internal.chat.deliver(self.kind, self.adapter, owner="test")
        return [letter.state for letter in letters]

    def receive(self) -> list[Message]:
        return self.store.internal.chat.poll(self.kind, self.adapter)

    def call_webhook(self, payload: dict[str, Any], *, form: bool = False, retry: int = 0) -> bytes:
        """Send a signed webhook request, as Slack does; `retry` marks a repeated request."""
        text = json.dumps(payload)
        body = urlencode({"payload": text}).encode() if form else text.encode()
        seconds = str(self.store.now() // 1_000)
        base_string = b"v0:" + seconds.encode() + b":" + body
        signature = hmac.new(SIGNING.encode(), base_string, hashlib.sha256).hexdigest()
        headers = {
            "x-slack-request-timestamp": seconds,
            "x-slack-signature": f"v0={signature}",
            "content-type": "application/x-www-form-urlencoded" if form else "application/json",
        }
        if retry:
            headers |= {"x-slack-retry-num": str(retry), "x-slack-retry-reason": "http_timeout"}
        return self.store.chat.receive_webhook("slack", headers, body).answer

    def list_received(self) -> list[Message]:
        return [m for m in reversed(self.store.messages.list().items) if m.direction == "in"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BOT_SIGNING", SIGNING)


@pytest.fixture
def telegram(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Bot, fake_bot_apis.Telegram]]:
    server = fake_bot_apis.Telegram()
    monkeypatch.setenv("BOT_TOKEN", server.token)
    with platform(server) as api:
        bot = Bot(store, "telegram", server, api.url, tmp_path / "work")
        yield bot, server
        bot.close()


@pytest.fixture
def slack(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Bot, fake_bot_apis.Slack]]:
    server = fake_bot_apis.Slack()
    monkeypatch.setenv("BOT_TOKEN", server.token)
    with platform(server) as api:
        server.url = api.url
        bot = Bot(store, "slack", server, api.url, tmp_path / "work")
        yield bot, server
        bot.close()


# -- both platforms -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "place"), [("telegram", "7"), ("slack", "C7")])
def test_rate_limit_of_one_place_delays_only_that_place(
    store: Corral, clock: ManualClock, request: pytest.FixtureRequest, kind: str, place: str
) -> None:
    bot, server = request.getfixturevalue(kind)
    other_place = place + "1"
    limited_mailbox = bot.allow(place, "full")
    bot.allow(other_place, "free")
    server.full.add(place)
    for destination in ("full", "free", "full"):
        store.messages.send(f"to {destination}", agent="ada", to=destination)
    assert sorted(bot.send()) == ["done", "waiting"]
    assert (server.words(place), server.words(other_place)) == ([], ["to free"])
    letter = store.mail.list(mailbox=limited_mailbox).items[0]
    assert letter.due_at >= clock.now() + RETRY_SECONDS * SECOND
    server.full.clear()
    clock.advance(RETRY_SECONDS * SECOND - 1)
    assert bot.send() == []
    clock.advance(MINUTE)
    assert bot.send() == ["done", "done"]
    assert server.words(place) == ["to full", "to full"]


@pytest.mark.parametrize(("kind", "place"), [("telegram", "7"), ("slack", "C7")])
def test_long_text_is_split_by_the_platforms_own_length(
    store: Corral, request: pytest.FixtureRequest, kind: str, place: str
) -> None:
    bot, server = request.getfixturevalue(kind)
    bot.allow(place, "room")
    text = " ".join("🦙" * 30 for _ in range(400))
    sent = store.messages.send(text, agent="ada", to="room")
    assert bot.send() == ["done"] * len(sent)
    assert " ".join(server.words(place)) == text


@pytest.mark.parametrize("kind", ["telegram", "slack"])
def test_wrong_token_is_reported_without_showing_it(
    store: Corral,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    request.getfixturevalue(kind)
    monkeypatch.setenv("BOT_TOKEN", "1:wrong-one")
    health = store.channels.test(kind)
    assert not health.ok
    assert "401" in str(health.error) or "invalid_auth" in str(health.error)
    assert "wrong-one" not in str(health.error)


# -- Telegram -------------------------------------------------------------------------------------


def update(id: int, text: str, **more: Any) -> dict[str, Any]:
    message = {
        "message_id": id,
        "from": ANN,
        "chat": {"id": 5, "type": "private", "username": "ann"},
        "date": 1_800_000_000,
        "text": text,
    }
    return {"update_id": id, "message": message | more}


def test_repeated_telegram_update_is_routed_once(
    telegram: tuple[Bot, fake_bot_apis.Telegram], store: Corral
) -> None:
    bot, server = telegram
    server.twice = True
    server.updates = [update(1, "one"), update(2, "two"), update(2, "two")]
    server.updates.append({"update_id": 3, "edited_message": update(2, "TWO")["message"]})
    for _ in range(3):
        bot.receive()
    assert [(m.kind, m.text) for m in bot.list_received()] == [
        (MessageKind.TEXT, "one"),
        (MessageKind.TEXT, "two"),
        (MessageKind.EDIT, "TWO"),
    ]
    store.internal.chat.start_turns()
    runner = Runner(store)
    run = runner.begin()
    assert [quote.text for quote in quotes_in(runner.prompt(run))] == ["one", "two"]
    runner.end(run, "both")
    store.internal.chat.finish_turns()
    bot.send()
    assert server.words("5") == ["both"]
    bot.adapter.show_typing("5", None)
    assert server.typing == ["5"]


@pytest.mark.parametrize(
    ("fault", "rule", "expected"),
    [
        (LATE, "give_up", ["words"]),
        (LATE, "retry", ["words", "words"]),
        (DOWN, "give_up", []),
        (DOWN, "retry", ["words"]),
    ],
)
def test_unconfirmed_telegram_message_follows_the_channel_policy(
    store: Corral,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    rule: str,
    expected: list[str],
) -> None:
    server = fake_bot_apis.Telegram()
    monkeypatch.setenv("BOT_TOKEN", server.token)
    with platform(server) as api:
        bot = Bot(store, "telegram", server, api.url, tmp_path / "work")
        store.channels.remove("telegram")
        config = {"base_url": api.url}
        store.channels.add(
            "telegram",
            "telegram",
            config=config,
            secrets={"token": "token"},
            on_unconfirmed=rule,
            policy="public",
        )
        bot.allow("7", "room")
        server.faults = [fault]
        (sent,) = store.messages.send("words", agent="ada", to="room")
        assert bot.send() == ["unconfirmed"]
        for _ in range(3):
            clock.advance(5 * MINUTE)
            bot.send()
        bot.close()
    assert server.words("7") == expected
    message = store.messages.get(sent.id)
    letters = store.mail.list(mailbox="agent:ada").items
    if rule == "give_up":
        assert (message.state, len(letters)) == ("undelivered", 1)
        assert "unconfirmed" in str(message.reason)
    else:
        assert (message.state, letters) == ("sent", [])


def test_telegram_question_is_answered_once_by_its_button(
    telegram: tuple[Bot, fake_bot_apis.Telegram], store: Corral
) -> None:
    bot, server = telegram
    store.senders.approve("telegram/5", person="ann")
    server.updates = [update(1, "may we ship?")]
    bot.receive()
    store.internal.chat.start_turns()
    run = Runner(store).begin()
    options = ["ship " + "x" * 80, "wait"]
    store.questions.ask(
        "Ship?", options=options, asker="agent:ada", answerers=["user:ann"], run=run.id
    )
    store.internal.chat.run_upkeep()
    assert bot.send() == ["done"]
    (card,) = server.shown["5"]
    rows = card["reply_markup"]["inline_keyboard"]
    shown_card = card | {"chat": {"id": 5, "type": "private"}}
    callback = {"from": ANN, "message": shown_card}
    callbacks = [
        callback | {"id": f"c{n}", "data": rows[3 - n][0]["callback_data"]} for n in (2, 3)
    ]
    server.updates = [{"update_id": n, "callback_query": callbacks[n - 2]} for n in (2, 3)]
    accepted, repeated = bot.receive()
    assert (accepted.state, repeated.state) == ("routed", "refused")
    assert store.questions.list(all=True).items[0].answer == "wait"
    assert server.pressed == ["c2", "c3"]


def test_telegram_edits_reactions_replies_and_files_work(
    telegram: tuple[Bot, fake_bot_apis.Telegram], store: Corral
) -> None:
    bot, server = telegram
    server.files = {"f1": b"from ann"}
    document = {"file_id": "f1", "file_name": "../../x", "file_size": 8}
    server.updates = [update(1, "", document=document), update(2, "referenced")]
    attached, referenced = bot.receive()
    (file,) = attached.data["files"]
    assert Path(file["path"]).read_bytes() == b"from ann"
    store.destinations.grant("ada", attached.place_id, name="room")
    (draft,) = store.messages.send("draft", agent="ada", to="room")
    bot.send()
    for _ in range(2):  # the second edit changes nothing, which Telegram reports as an error
        store.messages.send("final", agent="ada", to="room", edit=draft.id)
    store.messages.send("👍", agent="ada", to="room", react=draft.id)
    store.messages.send("an answer", agent="ada", to="room", reply_to=referenced.id)
    store.messages.send_files(["report.txt"], agent="ada", to="room")
    assert bot.send() == ["done"] * 5
    assert server.words("5") == ["final", "an answer", "[report.txt]"]
    assert server.shown["5"][-1]["data"] == b"the report"
    store.messages.send("invalid", agent="ada", to="room", react=draft.id)
    assert bot.send() == ["refused"]
    (letter,) = store.mail.list(mailbox="agent:ada").items
    assert "REACTION_INVALID" in letter.body["reason"]


# -- Slack ----------------------------------------------------------------------------------------


def slack_event(type: str = "message", **event: Any) -> dict[str, Any]:
    defaults = {"type": type, "channel": "C1", "user": "U1", "ts": "1800000000.000100"}
    return {"type": "event_callback", "event": defaults | event}


def test_repeated_slack_event_is_routed_once(
    slack: tuple[Bot, fake_bot_apis.Slack], store: Corral
) -> None:
    bot, _ = slack
    assert bot.call_webhook({"type": "url_verification", "challenge": "abc"}) == b"abc"
    for retry in range(4):
        bot.call_webhook(slack_event(text="is 1 &lt; 2 &amp;&amp; 3?"), retry=retry)
    new_text = {"user": "U1", "ts": "1800000000.000100", "text": "is 1 &lt; 2?"}
    old_text = new_text | {"text": "is 1 &lt; 2 &amp;&amp; 3?"}
    edit = slack_event(
        subtype="message_changed",
        message=new_text,
        previous_message=old_text,
        event_ts="1800000001.1",
    )
    reaction = slack_event(
        "reaction_added",
        reaction="eyes",
        item={"type": "message", "channel": "C1", "ts": "1800000000.000100"},
        event_ts="1800000002.1",
    )
    for payload in (edit, edit, reaction, reaction):
        bot.call_webhook(payload)
    bot.call_webhook(
        slack_event(
            text="a preview",
            subtype="message_changed",
            message=new_text,
            previous_message=new_text,
            event_ts="1800000003.1",
        )
    )
    assert [(m.kind, m.text) for m in bot.list_received()] == [
        (MessageKind.TEXT, "is 1 < 2 && 3?"),
        (MessageKind.EDIT, "is 1 < 2?"),
        (MessageKind.REACTION, ":eyes:"),
    ]
    with pytest.raises(Refused, check=because("bad_signature")):
        store.chat.receive_webhook("slack", {"x-slack-request-timestamp": "1"}, b"{}")


@pytest.mark.parametrize("fault", [LATE, DOWN])
@pytest.mark.parametrize("thread", [None, "1800000000.000100"])
def test_unconfirmed_slack_message_is_found_in_its_history(
    slack: tuple[Bot, fake_bot_apis.Slack],
    store: Corral,
    clock: ManualClock,
    fault: str,
    thread: str | None,
) -> None:
    bot, server = slack
    bot.allow("C1", "room")
    server.page = 2
    server.faults = [fault]
    (sent,) = store.messages.send_as_system(store.places.get("slack/C1").id, "words", thread=thread)
    assert bot.send() == ["unconfirmed"]
    for n in range(7):
        server.says("C1", f"other message {n}", **({"thread_ts": thread} if thread else {}))
    clock.advance(5 * MINUTE)
    assert bot.send()[-1] == "done"
    assert server.words("C1").count("words") == 1
    message = store.messages.get(sent.id)
    posted = next(post for post in server.shown["C1"] if post["text"] == "words")
    assert (message.state, message.platform_ids) == ("sent", [posted["ts"]])


@pytest.mark.parametrize("fault", ["", LATE, DOWN])
def test_slack_files_are_sent_and_received_once(
    slack: tuple[Bot, fake_bot_apis.Slack], store: Corral, clock: ManualClock, fault: str
) -> None:
    bot, server = slack
    bot.allow("C1", "room")
    server.says("C1", "", files=[{"id": "F0", "title": "report.txt"}])
    server.faults = [fault]
    (sent,) = store.messages.send_files(["report.txt"], agent="ada", to="room")
    assert bot.send() == ["unconfirmed" if fault else "done"]
    clock.advance(5 * MINUTE)
    bot.send()
    posts = [post for post in server.shown["C1"] if post.get("user") == "UBOT"]
    assert len(posts) == 1
    (file,) = posts[0]["files"]
    assert server.uploads[file["id"]]["data"] == b"the report"
    assert store.messages.get(sent.id).platform_ids == [file["id"]]


def test_agent_text_in_slack_is_escaped(
    slack: tuple[Bot, fake_bot_apis.Slack], store: Corral
) -> None:
    bot, server = slack
    bot.allow("C1", "room")
    (message,) = store.messages.send("<!channel> & <@U1>", agent="ada", to="room")
    assert bot.send() == ["done"]
    assert server.words("C1") == ["&lt;!channel&gt; &amp; &lt;@U1&gt;"]
    store.messages.send("better", agent="ada", to="room", edit=message.id)
    for _ in range(2):
        store.messages.send(":eyes:", agent="ada", to="room", react=message.id)
    assert bot.send() == ["done"] * 3
    (post,) = server.shown["C1"]
    assert (post["text"], post["signs"]) == ("better", ["eyes"])
    bot.allow("X9", "unknown")
    store.messages.send("x", agent="ada", to="unknown")
    assert bot.send() == ["refused"]


def test_slack_question_is_answered_by_its_button_and_shows_outcome(
    slack: tuple[Bot, fake_bot_apis.Slack], store: Corral
) -> None:
    bot, server = slack
    store.senders.approve("slack/U1", person="ann")
    bot.call_webhook(slack_event(text="may we ship?"))
    store.internal.chat.start_turns()
    runner = Runner(store)
    run = runner.begin()
    store.questions.ask(
        "Ship?", options=["ship", "wait"], asker="agent:ada", answerers=["user:ann"], run=run.id
    )
    store.internal.chat.run_upkeep()
    assert bot.send() == ["done"]
    (card,) = server.shown["C1"]
    value = card["blocks"][1]["elements"][0]["value"]
    payload = {
        "type": "block_actions",
        "user": {"id": "U1"},
        "channel": {"id": "C1"},
        "actions": [{"value": value, "action_ts": "9"}],
    }
    for _ in range(2):
        bot.call_webhook(payload, form=True)
    assert store.questions.list(all=True).items[0].answer == "ship"
    runner.end(run, "shipping")
    store.internal.chat.finish_turns()
    store.internal.chat.run_upkeep()
    bot.send()
    assert server.words("C1") == ["Ship?\nann answered: ship", "shipping"]
    assert server.shown["C1"][0]["blocks"] == [], "the buttons are removed"
