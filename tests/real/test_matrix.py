"""A real Matrix server: every message arrives exactly once, whatever crashes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.adapters.channels.contract import (
    ChannelAdapter,
    MessageKind,
    OutgoingMessage,
    SendOutcome,
)
from corral.adapters.channels.matrix import MatrixAdapter
from corral.api import Corral
from corral.daemon.chat import ChatLoop
from corral.domain.chat.model import Message
from corral.kernel.clock import HOUR, MINUTE, ManualClock
from tests.real.home import wait_until
from tests.real.homeserver import Homeserver, Person
from tests.support.fake_channels import Runner
from tests.support.store import record

ROOT = Path(__file__).parents[2]
_number = iter(range(1_000))


class MatrixChat:
    """A channel with its account on the server, and Ann, who writes to agents there."""

    def __init__(self, store: Corral, server: Homeserver) -> None:
        self.store = store
        self.server = server
        number = next(_number)
        self.ann, self.bot = server.person(f"ann{number}"), server.person(f"bot{number}")
        os.environ["DEN_TOKEN"] = self.bot.token
        store.secrets.set("den", "env:DEN_TOKEN")
        self.channel = store.channels.add(
            "den",
            "matrix",
            config={"base_url": server.url},
            secrets={"token": "den"},
            policy="public",
        )
        self.work = Path(os.environ["CORRAL_HOME"]).parent / "work"
        self.work.mkdir()
        store.agents.create("ada", provider="scripted", workspace=str(self.work))
        store.wirings.add("ada", channel="den")
        self.runner = Runner(store)
        self._opened: list[ChannelAdapter] = []
        self.adapter: ChannelAdapter = self.open()
        self.hear()

    def open(self, kind: type[MatrixAdapter] = MatrixAdapter) -> ChannelAdapter:
        adapter = kind(self.channel.config, {"token": self.bot.token})
        adapter.start()
        self._opened.append(adapter)
        return adapter

    def close(self) -> None:
        for adapter in self._opened:
            adapter.stop()
        for item in (self.ann, self.bot):
            item.close()
        del os.environ["DEN_TOKEN"]

    def hear(self) -> list[Message]:
        return self.store.internal.chat.poll("den", self.adapter)

    def room(self, *others: Person, name: str | None = "Den") -> str:
        """A room of Ann's that the account has joined."""
        room = self.ann.room(self.bot, *others, name=name)
        self.hear()
        self.hear()
        return room

    def send(self, adapter: ChannelAdapter | None = None) -> list[str]:
        result = self.store.internal.chat.deliver("den", adapter or self.adapter, owner="test")
        return [item.state for item in result]

    def answer(self, words: str) -> str | None:
        """Run one turn with this reply; return its prompt."""
        self.store.internal.chat.start_turns()
        run = self.runner.begin()
        result = self.runner.prompt(run)
        self.runner.end(run, words)
        self.store.internal.chat.finish_turns()
        self.send()
        return result

    def place(self, room: str) -> str:
        return self.store.places.register("den", room).id


@pytest.fixture
def matrix_chat(store: Corral, server: Homeserver) -> Iterator[MatrixChat]:
    result = MatrixChat(store, server)
    yield result
    result.close()


def words_in(store: Corral, place: str) -> list[str]:
    """Return the messages of a place, in the order of arrival."""
    result = store.messages.list(place=place, limit=200).items
    return [item.text for item in reversed(result) if item.direction == "in"]


def of_bot(matrix_chat: MatrixChat, room: str) -> list[dict[str, Any]]:
    return [
        event for event in matrix_chat.ann.events(room) if event["sender"] == matrix_chat.bot.id
    ]


# -- talking --------------------------------------------------------------------------------------


def test_room_is_joined_read_and_answered_and_rooms_are_separate(matrix_chat: MatrixChat) -> None:
    first, second = matrix_chat.room(name="First"), matrix_chat.room(name=None)
    matrix_chat.ann.say(first, "one")
    matrix_chat.ann.say(second, "two")
    heard = matrix_chat.hear()
    assert [(item.text, item.state) for item in heard] == [("one", "routed"), ("two", "routed")]
    assert matrix_chat.hear() == []
    place = matrix_chat.store.places.get(f"den/{first}")
    assert (place.name, place.direct) == ("First", True)
    for _ in range(2):
        result = matrix_chat.answer("an answer")
        assert result in ("one", "two")
    assert (
        matrix_chat.ann.heard(first, matrix_chat.bot)
        == matrix_chat.ann.heard(second, matrix_chat.bot)
        == ["an answer"]
    )


def test_messages_before_the_invitation_are_ignored(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.ann.room(name="Old")
    for n in range(70):
        matrix_chat.ann.say(room, f"old {n}")
    matrix_chat.ann.ask(
        "POST", f"/_matrix/client/v3/rooms/{room}/invite", json={"user_id": matrix_chat.bot.id}
    )
    matrix_chat.ann.say(room, "welcome")
    matrix_chat.hear()
    matrix_chat.ann.say(room, "new")
    assert [item.text for item in matrix_chat.hear()] == ["welcome", "new"]


def test_thread_is_answered_in_the_thread(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    root = matrix_chat.ann.say(room, "root")
    (heard,) = matrix_chat.hear()
    assert heard.thread is None
    matrix_chat.answer("to the room")
    matrix_chat.ann.say(room, "inside", thread=root)
    (heard,) = matrix_chat.hear()
    assert heard.thread == root
    matrix_chat.answer("to the thread")
    relations = [
        event["content"].get("m.relates_to", {}) for event in of_bot(matrix_chat, room)[1:]
    ]
    assert [relation.get("rel_type") for relation in relations] == [None, "m.thread"]
    assert relations[1]["event_id"] == root


def test_edits_and_reactions_work_in_both_directions(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    event = matrix_chat.ann.say(room, "helo")
    matrix_chat.hear()
    matrix_chat.ann.edit(room, event, "hello")
    matrix_chat.ann.react(room, event, "+1")
    edit, sign = matrix_chat.hear()
    assert (edit.kind, edit.text, edit.reply_to) == (MessageKind.EDIT, "hello", event)
    assert (sign.kind, sign.text, sign.reply_to) == (MessageKind.REACTION, "+1", event)
    store = matrix_chat.store
    store.destinations.grant("ada", matrix_chat.place(room), name="den")
    (item,) = store.messages.send("draft", agent="ada", to="den")
    assert matrix_chat.send() == ["done"]
    asked = next(
        message for message in store.messages.list().items if message.kind is MessageKind.TEXT
    )
    heard = next(message for message in store.messages.list().items if message.text == "helo")
    assert asked.id == item.id
    store.messages.send("final", agent="ada", to="den", edit=item.id)
    for _ in range(2):  # a reaction that exists already is no error
        store.messages.send("👍", agent="ada", to="den", react=heard.id)
    assert matrix_chat.send() == ["done"] * 3
    _, words, change, mark = of_bot(matrix_chat, room)
    assert words["content"]["body"] == "draft"
    assert matrix_chat.ann.shown(room, words["event_id"]) == "final"
    assert change["content"]["m.new_content"]["body"] == "final"
    assert mark["content"]["m.relates_to"]["key"] == "👍"


def test_long_text_is_split_as_the_server_counts(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    matrix_chat.ann.say(room, "how long?")
    matrix_chat.hear()
    text = "\n".join("🦙" * 60 + f' {n} "quoted"' for n in range(300))
    assert len(text.encode()) > 65_536
    matrix_chat.answer(text)
    pieces = matrix_chat.ann.heard(room, matrix_chat.bot)
    assert len(pieces) > 3
    assert "\n".join(pieces).split() == text.split()
    (first, *_) = [
        message for message in matrix_chat.store.messages.list().items if message.state == "sent"
    ]
    matrix_chat.store.messages.send(
        "🦙" * 5_000, agent="ada", to=matrix_chat.place(room), edit=first.id
    )
    assert matrix_chat.send() == ["done"]


def test_attachment_is_downloaded_under_a_safe_name(
    matrix_chat: MatrixChat, tmp_path: Path
) -> None:
    room = matrix_chat.room()
    matrix_chat.ann.attach(room, "../../x", b"the file")
    (heard,) = matrix_chat.hear()
    (file,) = heard.data["files"]
    kept = Path(file["path"])
    assert kept.read_bytes() == b"the file"
    assert kept.is_relative_to(tmp_path / "home" / "channels")
    assert (kept.name, kept.stat().st_mode & 0o777) == ("1-x", 0o600)
    matrix_chat.ann.send(
        room, {"msgtype": "m.file", "body": "gone", "url": "mxc://chat.test/never", "info": {}}
    )
    (heard,) = matrix_chat.hear()
    (file,) = heard.data["files"]
    assert file["path"] is None
    assert "404" in file["reason"]


def test_agent_sends_a_file_that_a_person_reads(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    matrix_chat.ann.say(room, "send me the picture")
    matrix_chat.hear()
    work = matrix_chat.work
    (work / "dot.png").write_bytes(b"\x89PNG of a dot")
    (work / "notes").write_bytes(b"\xff\x00 notes")
    session = matrix_chat.store.messages.list().items[0].routes[0].session_id
    matrix_chat.store.messages.send_files(
        ["dot.png", "notes"], agent="ada", session=session, text="Here it is."
    )
    (work / "notes").write_text("changed since")
    assert matrix_chat.send() == ["done"] * 3
    _, words, picture, notes = of_bot(matrix_chat, room)
    assert words["content"]["body"] == "Here it is."
    assert picture["content"]["msgtype"] == "m.image"
    assert picture["content"]["info"] == {"size": 13, "mimetype": "image/png"}
    assert matrix_chat.ann.fetch(picture["content"]["url"]) == b"\x89PNG of a dot"
    assert (notes["content"]["msgtype"], notes["content"]["filename"]) == ("m.file", "notes")
    assert matrix_chat.ann.fetch(notes["content"]["url"]) == b"\xff\x00 notes"


def test_question_is_a_card_and_a_number_answers_it_once(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    store = matrix_chat.store
    store.senders.approve(f"den/{matrix_chat.ann.id}", person="ann")
    matrix_chat.ann.say(room, "may we ship?")
    matrix_chat.hear()
    store.internal.chat.start_turns()
    run = matrix_chat.runner.begin()
    store.questions.ask(
        "Ship it?",
        options=["ship", "wait"],
        asker="agent:ada",
        answerers=["user:ann"],
        run=run.id,
    )
    store.internal.chat.run_upkeep()
    assert matrix_chat.send() == ["done"]
    assert matrix_chat.ann.heard(room, matrix_chat.bot) == [
        "Ship it?\n1. ship\n2. wait\n\nAnswer with a number."
    ]
    matrix_chat.ann.say(room, "2")
    (answer,) = matrix_chat.hear()
    assert answer.state == "routed"
    (question,) = store.questions.list(all=True).items
    assert (question.answer, question.answered_by) == ("wait", "user:ann")
    matrix_chat.runner.end(run, "so we wait")
    store.internal.chat.finish_turns()
    store.internal.chat.run_upkeep()
    matrix_chat.send()
    card = of_bot(matrix_chat, room)[1]
    assert "ann answered: wait" in matrix_chat.ann.shown(room, card["event_id"])
    assert matrix_chat.ann.heard(room, matrix_chat.bot)[-1] == "so we wait"


def test_encrypted_room_is_reported_and_not_read(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    sealed = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x", "session_id": "s"}
    matrix_chat.ann.send(room, sealed, "m.room.encrypted")
    matrix_chat.ann.say(room, "plain")
    assert [item.text for item in matrix_chat.hear()] == ["plain"]
    assert "channel.skip_event" in record(matrix_chat.store, matrix_chat.channel.id)


# -- what goes wrong ------------------------------------------------------------------------------


def test_invalid_token_is_reported_without_the_token(
    store: Corral, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "syt_nobody_knows_this")
    store.secrets.set("wrong", "env:WRONG")
    store.channels.add("den", "matrix", config={"base_url": server.url}, secrets={"token": "wrong"})
    health = store.channels.test("den")
    assert not health.ok
    assert health.error == "the platform returned 401: M_UNKNOWN_TOKEN; the token is invalid"
    assert store.channels.get("den").last_error == health.error


def test_revoked_token_loses_nothing(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    store = matrix_chat.store
    store.messages.send_as_system(matrix_chat.place(room), "words")
    matrix_chat.bot.ask("POST", "/_matrix/client/v3/logout", json={})
    (state,) = matrix_chat.send()
    assert state == "waiting", "an operator must fix it, and the message is still pending"
    with pytest.raises(Exception, match="the token is invalid"):
        matrix_chat.hear()


def test_retry_delay_of_the_server_is_respected(
    matrix_chat: MatrixChat, server: Homeserver, clock: ManualClock
) -> None:
    room = matrix_chat.room()
    admin = server.person(f"admin{next(_number)}", admin=True)
    slow = f"/_synapse/admin/v1/users/{matrix_chat.bot.id}/override_ratelimit"
    admin.ask("POST", slow, json={"messages_per_second": 1, "burst_count": 1})
    for n in range(3):
        matrix_chat.store.messages.send_as_system(matrix_chat.place(room), f"words {n}")
    states = matrix_chat.send()
    assert "waiting" in states, states
    assert "429" in (
        matrix_chat.store.mail.list(mailbox=f"place:{matrix_chat.place(room)}").items[0].last_error
        or ""
    )
    admin.ask("DELETE", slow)
    admin.close()
    for _ in range(3):
        clock.advance(MINUTE)
        matrix_chat.send()
    assert matrix_chat.ann.heard(room, matrix_chat.bot) == [f"words {n}" for n in range(3)]


def test_gap_after_a_long_absence_is_filled_in_order(matrix_chat: MatrixChat) -> None:
    first, second = matrix_chat.room(), matrix_chat.room(name="Other")
    for n in range(230):
        matrix_chat.ann.say(first, f"{n}")
        if n % 50 == 0:
            matrix_chat.ann.say(second, f"other {n}")
    matrix_chat.adapter = matrix_chat.open()  # another process without the state of the first
    heard = matrix_chat.hear()
    place = matrix_chat.place(first)
    assert [item.text for item in heard if item.place_id == place] == [f"{n}" for n in range(230)]
    assert [item.text for item in heard if item.place_id != place] == [
        f"other {n}" for n in range(0, 230, 50)
    ]
    assert matrix_chat.hear() == []


class Unrepeated(MatrixAdapter):
    """A server that has forgotten every key: a repeated send would be a new message."""

    def send(self, message: OutgoingMessage) -> SendOutcome:
        raise AssertionError("it was sent again")


@pytest.mark.parametrize("pause", [2 * MINUTE, 2 * HOUR], ids=["soon", "late"])
def test_sender_killed_before_recording_leaves_one_copy(
    matrix_chat: MatrixChat, url: str, clock: ManualClock, pause: int
) -> None:
    room = matrix_chat.room()
    (item,) = matrix_chat.store.messages.send_as_system(matrix_chat.place(room), "only once")
    victim = [
        sys.executable,
        "-m",
        "tests.real.killed_sender",
        url,
        "den",
        matrix_chat.bot.token,
        str(clock.at),
    ]
    ended = subprocess.run(victim, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert matrix_chat.ann.heard(room, matrix_chat.bot) == ["only once"]
    assert matrix_chat.store.messages.get(item.id).state == "queued"
    matrix_chat.server.stop(signal.SIGKILL)
    matrix_chat.server.start()
    clock.advance(pause)
    # After hours a server has forgotten the key: the room's history decides then.
    assert matrix_chat.send(matrix_chat.open(Unrepeated) if pause > HOUR else None) == ["done"]
    message = matrix_chat.store.messages.get(item.id)
    (event,) = [
        result for result in of_bot(matrix_chat, room) if result["type"] == "m.room.message"
    ]
    assert (message.state, message.platform_ids) == ("sent", [event["event_id"]])


def test_messages_wait_for_an_absent_server_and_are_sent_once(
    matrix_chat: MatrixChat, clock: ManualClock
) -> None:
    room = matrix_chat.room()
    matrix_chat.ann.say(room, "before")
    matrix_chat.hear()
    matrix_chat.store.internal.chat.start_turns()
    matrix_chat.runner.end(matrix_chat.runner.begin(), "the answer")
    matrix_chat.store.internal.chat.finish_turns()
    matrix_chat.server.stop()
    with pytest.raises(Exception, match="cannot be reached"):
        matrix_chat.hear()
    assert matrix_chat.send() == ["waiting"]
    assert "cannot be reached" in (matrix_chat.store.channels.test("den").error or "")
    matrix_chat.server.start()
    clock.advance(MINUTE)
    matrix_chat.ann.say(room, "after")
    assert [item.text for item in matrix_chat.hear()] == ["after"]
    assert matrix_chat.send() == ["done"]
    assert matrix_chat.ann.heard(room, matrix_chat.bot) == ["the answer"]
    assert matrix_chat.store.channels.test("den").ok


def test_repeatedly_killed_server_loses_and_duplicates_nothing(
    url: str, server: Homeserver
) -> None:
    each_way = 40
    loop = ChatLoop()
    with corral.open(url) as store:
        store.settings.set("mail.max_attempts", 30)
        matrix_chat = MatrixChat(store, server)
        store.wirings.remove(store.wirings.list().items[0].id)
        room = matrix_chat.room()
        place = matrix_chat.place(room)

        def talk() -> None:
            for n in range(each_way):
                matrix_chat.ann.say(room, f"in {n}")

        talking = threading.Thread(target=talk)
        talking.start()
        for n in range(each_way):
            store.messages.send_as_system(place, f"out {n}")
            if n in (10, 25):
                loop.run_once(store)
                time.sleep(0.5)
                server.stop(signal.SIGKILL)
                server.start()
        talking.join()

        def finished() -> bool:
            loop.run_once(store)
            time.sleep(0.05)
            waits = store.mail.list(mailbox=f"place:{place}", limit=1).items
            return not waits and len(words_in(store, place)) == each_way

        wait_until(finished, "all has arrived")
        assert words_in(store, place) == [f"in {n}" for n in range(each_way)]
        assert matrix_chat.ann.heard(room, matrix_chat.bot) == [f"out {n}" for n in range(each_way)]
        store.channels.remove("den")
        loop.run_once(store)
        matrix_chat.close()
