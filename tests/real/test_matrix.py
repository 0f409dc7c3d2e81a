"""The Matrix channel with a real server: every message arrives exactly once after crashes."""

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
from tests.real.homeserver import Homeserver, MatrixUser
from tests.support.fake_channels import Runner
from tests.support.store import list_events

ROOT = Path(__file__).parents[2]
_number = iter(range(1_000))


class MatrixChat:
    """A channel with its account on the server, and Ann, who writes to agents there."""

    def __init__(self, store: Corral, server: Homeserver) -> None:
        self.store = store
        self.server = server
        number = next(_number)
        self.ann, self.bot = server.create_user(f"ann{number}"), server.create_user(f"bot{number}")
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
        self.poll()

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

    def poll(self) -> list[Message]:
        return self.store.internal.chat.poll("den", self.adapter)

    def room(self, *others: MatrixUser, name: str | None = "Den") -> str:
        """Create a room of Ann that the account has joined."""
        room = self.ann.create_room(self.bot, *others, name=name)
        self.poll()
        self.poll()
        return room

    def send(self, adapter: ChannelAdapter | None = None) -> list[str]:
        result = self.store.internal.chat.deliver("den", adapter or self.adapter, owner="test")
        return [item.state for item in result]

    def answer(self, text: str) -> str | None:
        """Run one turn with this reply; return its prompt."""
        self.store.internal.chat.start_turns()
        run = self.runner.begin()
        result = self.runner.prompt(run)
        self.runner.end(run, text)
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


def list_incoming(store: Corral, place: str) -> list[str]:
    """Return the messages of a place, in the order of arrival."""
    result = store.messages.list(place=place, limit=200).items
    return [item.text for item in reversed(result) if item.direction == "in"]


def list_bot_events(matrix_chat: MatrixChat, room: str) -> list[dict[str, Any]]:
    return [
        event for event in matrix_chat.ann.events(room) if event["sender"] == matrix_chat.bot.id
    ]


# -- messages -------------------------------------------------------------------------------------


def test_room_is_joined_read_and_answered_and_rooms_are_separate(matrix_chat: MatrixChat) -> None:
    first, second = matrix_chat.room(name="First"), matrix_chat.room(name=None)
    matrix_chat.ann.post(first, "one")
    matrix_chat.ann.post(second, "two")
    received = matrix_chat.poll()
    assert [(item.text, item.state) for item in received] == [("one", "routed"), ("two", "routed")]
    assert matrix_chat.poll() == []
    place = matrix_chat.store.places.get(f"den/{first}")
    assert (place.name, place.direct) == ("First", True)
    for _ in range(2):
        result = matrix_chat.answer("an answer")
        assert result in ("one", "two")
    assert (
        matrix_chat.ann.list_texts(first, matrix_chat.bot)
        == matrix_chat.ann.list_texts(second, matrix_chat.bot)
        == ["an answer"]
    )


def test_messages_before_the_invitation_are_ignored(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.ann.create_room(name="Old")
    for n in range(70):
        matrix_chat.ann.post(room, f"old {n}")
    matrix_chat.ann.request(
        "POST", f"/_matrix/client/v3/rooms/{room}/invite", json={"user_id": matrix_chat.bot.id}
    )
    matrix_chat.ann.post(room, "welcome")
    matrix_chat.poll()
    matrix_chat.ann.post(room, "new")
    assert [item.text for item in matrix_chat.poll()] == ["welcome", "new"]


def test_thread_is_answered_in_the_thread(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    root = matrix_chat.ann.post(room, "root")
    (received,) = matrix_chat.poll()
    assert received.thread is None
    matrix_chat.answer("to the room")
    matrix_chat.ann.post(room, "inside", thread=root)
    (received,) = matrix_chat.poll()
    assert received.thread == root
    matrix_chat.answer("to the thread")
    relations = [
        event["content"].get("m.relates_to", {}) for event in list_bot_events(matrix_chat, room)[1:]
    ]
    assert [relation.get("rel_type") for relation in relations] == [None, "m.thread"]
    assert relations[1]["event_id"] == root


def test_edits_and_reactions_work_in_both_directions(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    event = matrix_chat.ann.post(room, "helo")
    matrix_chat.poll()
    matrix_chat.ann.edit(room, event, "hello")
    matrix_chat.ann.react(room, event, "+1")
    edit, reaction = matrix_chat.poll()
    assert (edit.kind, edit.text, edit.reply_to) == (MessageKind.EDIT, "hello", event)
    assert (reaction.kind, reaction.text, reaction.reply_to) == (MessageKind.REACTION, "+1", event)
    store = matrix_chat.store
    store.destinations.grant("ada", matrix_chat.place(room), name="den")
    (item,) = store.messages.send("draft", agent="ada", to="den")
    assert matrix_chat.send() == ["done"]
    draft = next(
        message for message in store.messages.list().items if message.kind is MessageKind.TEXT
    )
    received = next(message for message in store.messages.list().items if message.text == "helo")
    assert draft.id == item.id
    store.messages.send("final", agent="ada", to="den", edit=item.id)
    for _ in range(2):  # a reaction that exists already is no error
        store.messages.send("👍", agent="ada", to="den", react=received.id)
    assert matrix_chat.send() == ["done"] * 3
    _, text_event, edit_event, reaction_event = list_bot_events(matrix_chat, room)
    assert text_event["content"]["body"] == "draft"
    assert matrix_chat.ann.displayed_text(room, text_event["event_id"]) == "final"
    assert edit_event["content"]["m.new_content"]["body"] == "final"
    assert reaction_event["content"]["m.relates_to"]["key"] == "👍"


def test_long_text_is_split_as_the_server_counts(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    matrix_chat.ann.post(room, "how long?")
    matrix_chat.poll()
    text = "\n".join("🦙" * 60 + f' {n} "quoted"' for n in range(300))
    assert len(text.encode()) > 65_536
    matrix_chat.answer(text)
    pieces = matrix_chat.ann.list_texts(room, matrix_chat.bot)
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
    (received,) = matrix_chat.poll()
    (file,) = received.data["files"]
    path = Path(file["path"])
    assert path.read_bytes() == b"the file"
    assert path.is_relative_to(tmp_path / "home" / "channels")
    assert (path.name, path.stat().st_mode & 0o777) == ("1-x", 0o600)
    matrix_chat.ann.send(
        room, {"msgtype": "m.file", "body": "gone", "url": "mxc://chat.test/never", "info": {}}
    )
    (received,) = matrix_chat.poll()
    (file,) = received.data["files"]
    assert file["path"] is None
    assert "404" in file["reason"]


def test_agent_sends_a_file_that_a_person_reads(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    matrix_chat.ann.post(room, "send me the picture")
    matrix_chat.poll()
    work = matrix_chat.work
    (work / "dot.png").write_bytes(b"\x89PNG of a dot")
    (work / "notes").write_bytes(b"\xff\x00 notes")
    session = matrix_chat.store.messages.list().items[0].routes[0].session_id
    matrix_chat.store.messages.send_files(
        ["dot.png", "notes"], agent="ada", session=session, text="Here it is."
    )
    (work / "notes").write_text("changed since")
    assert matrix_chat.send() == ["done"] * 3
    _, text_event, picture, notes = list_bot_events(matrix_chat, room)
    assert text_event["content"]["body"] == "Here it is."
    assert picture["content"]["msgtype"] == "m.image"
    assert picture["content"]["info"] == {"size": 13, "mimetype": "image/png"}
    assert matrix_chat.ann.fetch(picture["content"]["url"]) == b"\x89PNG of a dot"
    assert (notes["content"]["msgtype"], notes["content"]["filename"]) == ("m.file", "notes")
    assert matrix_chat.ann.fetch(notes["content"]["url"]) == b"\xff\x00 notes"


def test_question_is_a_card_and_a_number_answers_it_once(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    store = matrix_chat.store
    store.senders.approve(f"den/{matrix_chat.ann.id}", person="ann")
    matrix_chat.ann.post(room, "may we ship?")
    matrix_chat.poll()
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
    assert matrix_chat.ann.list_texts(room, matrix_chat.bot) == [
        "Ship it?\n1. ship\n2. wait\n\nAnswer with a number."
    ]
    matrix_chat.ann.post(room, "2")
    (answer,) = matrix_chat.poll()
    assert answer.state == "routed"
    (question,) = store.questions.list(all=True).items
    assert (question.answer, question.answered_by) == ("wait", "user:ann")
    matrix_chat.runner.end(run, "so we wait")
    store.internal.chat.finish_turns()
    store.internal.chat.run_upkeep()
    matrix_chat.send()
    card = list_bot_events(matrix_chat, room)[1]
    assert "ann answered: wait" in matrix_chat.ann.displayed_text(room, card["event_id"])
    assert matrix_chat.ann.list_texts(room, matrix_chat.bot)[-1] == "so we wait"


def test_encrypted_room_is_reported_and_not_read(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    encrypted = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x", "session_id": "s"}
    matrix_chat.ann.send(room, encrypted, "m.room.encrypted")
    matrix_chat.ann.post(room, "plain")
    assert [item.text for item in matrix_chat.poll()] == ["plain"]
    assert "channel.skip_event" in list_events(matrix_chat.store, matrix_chat.channel.id)


# -- failures -------------------------------------------------------------------------------------


def test_invalid_token_is_reported_without_the_token(
    store: Corral, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "syt_unknown_token")
    store.secrets.set("wrong", "env:WRONG")
    store.channels.add("den", "matrix", config={"base_url": server.url}, secrets={"token": "wrong"})
    health = store.channels.test("den")
    assert not health.ok
    assert health.error == "the platform returned 401: M_UNKNOWN_TOKEN; the token is invalid"
    assert store.channels.get("den").last_error == health.error


def test_revoked_token_loses_nothing(matrix_chat: MatrixChat) -> None:
    room = matrix_chat.room()
    store = matrix_chat.store
    store.messages.send_as_system(matrix_chat.place(room), "text")
    matrix_chat.bot.request("POST", "/_matrix/client/v3/logout", json={})
    (state,) = matrix_chat.send()
    assert state == "waiting", "an operator must fix it, and the message is still pending"
    with pytest.raises(Exception, match="the token is invalid"):
        matrix_chat.poll()


def test_retry_delay_of_the_server_is_respected(
    matrix_chat: MatrixChat, server: Homeserver, clock: ManualClock
) -> None:
    room = matrix_chat.room()
    admin = server.create_user(f"admin{next(_number)}", admin=True)
    rate_limit = f"/_synapse/admin/v1/users/{matrix_chat.bot.id}/override_ratelimit"
    admin.request("POST", rate_limit, json={"messages_per_second": 1, "burst_count": 1})
    for n in range(3):
        matrix_chat.store.messages.send_as_system(matrix_chat.place(room), f"text {n}")
    states = matrix_chat.send()
    assert "waiting" in states, states
    assert "429" in (
        matrix_chat.store.mail.list(mailbox=f"place:{matrix_chat.place(room)}").items[0].last_error
        or ""
    )
    admin.request("DELETE", rate_limit)
    admin.close()
    for _ in range(3):
        clock.advance(MINUTE)
        matrix_chat.send()
    assert matrix_chat.ann.list_texts(room, matrix_chat.bot) == [f"text {n}" for n in range(3)]


def test_gap_after_a_long_absence_is_filled_in_order(matrix_chat: MatrixChat) -> None:
    first, second = matrix_chat.room(), matrix_chat.room(name="Other")
    for n in range(230):
        matrix_chat.ann.post(first, f"{n}")
        if n % 50 == 0:
            matrix_chat.ann.post(second, f"other {n}")
    matrix_chat.adapter = matrix_chat.open()  # another process without the state of the first
    received = matrix_chat.poll()
    place = matrix_chat.place(first)
    assert [item.text for item in received if item.place_id == place] == [
        f"{n}" for n in range(230)
    ]
    assert [item.text for item in received if item.place_id != place] == [
        f"other {n}" for n in range(0, 230, 50)
    ]
    assert matrix_chat.poll() == []


class NoSendAdapter(MatrixAdapter):
    """Stands for a server that forgot every key, where a repeated send is a new message."""

    def send(self, message: OutgoingMessage) -> SendOutcome:
        raise AssertionError("sent twice")


@pytest.mark.parametrize("pause", [2 * MINUTE, 2 * HOUR], ids=["soon", "late"])
def test_sender_killed_before_recording_leaves_one_copy(
    matrix_chat: MatrixChat, url: str, clock: ManualClock, pause: int
) -> None:
    room = matrix_chat.room()
    (item,) = matrix_chat.store.messages.send_as_system(matrix_chat.place(room), "only once")
    command = [
        sys.executable,
        "-m",
        "tests.real.killed_sender",
        url,
        "den",
        matrix_chat.bot.token,
        str(clock.at),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert matrix_chat.ann.list_texts(room, matrix_chat.bot) == ["only once"]
    assert matrix_chat.store.messages.get(item.id).state == "queued"
    matrix_chat.server.stop(signal.SIGKILL)
    matrix_chat.server.start()
    clock.advance(pause)
    # After hours a server has forgotten the key: the room's history decides then.
    assert matrix_chat.send(matrix_chat.open(NoSendAdapter) if pause > HOUR else None) == ["done"]
    message = matrix_chat.store.messages.get(item.id)
    (event,) = [
        result
        for result in list_bot_events(matrix_chat, room)
        if result["type"] == "m.room.message"
    ]
    assert (message.state, message.platform_ids) == ("sent", [event["event_id"]])


def test_messages_wait_for_an_absent_server_and_are_sent_once(
    matrix_chat: MatrixChat, clock: ManualClock
) -> None:
    room = matrix_chat.room()
    matrix_chat.ann.post(room, "before")
    matrix_chat.poll()
    matrix_chat.store.internal.chat.start_turns()
    matrix_chat.runner.end(matrix_chat.runner.begin(), "the answer")
    matrix_chat.store.internal.chat.finish_turns()
    matrix_chat.server.stop()
    with pytest.raises(Exception, match="cannot be reached"):
        matrix_chat.poll()
    assert matrix_chat.send() == ["waiting"]
    assert "cannot be reached" in (matrix_chat.store.channels.test("den").error or "")
    matrix_chat.server.start()
    clock.advance(MINUTE)
    matrix_chat.ann.post(room, "after")
    assert [item.text for item in matrix_chat.poll()] == ["after"]
    assert matrix_chat.send() == ["done"]
    assert matrix_chat.ann.list_texts(room, matrix_chat.bot) == ["the answer"]
    assert matrix_chat.store.channels.test("den").ok


def test_repeatedly_killed_server_loses_and_duplicates_nothing(
    url: str, server: Homeserver
) -> None:
    count = 40
    loop = ChatLoop()
    with corral.open(url) as store:
        store.settings.set("mail.max_attempts", 30)
        matrix_chat = MatrixChat(store, server)
        store.wirings.remove(store.wirings.list().items[0].id)
        room = matrix_chat.room()
        place = matrix_chat.place(room)

        def post_messages() -> None:
            for n in range(count):
                matrix_chat.ann.post(room, f"in {n}")

        poster = threading.Thread(target=post_messages)
        poster.start()
        for n in range(count):
            store.messages.send_as_system(place, f"out {n}")
            if n in (10, 25):
                loop.run_once(store)
                time.sleep(0.5)
                server.stop(signal.SIGKILL)
                server.start()
        poster.join()

        def is_finished() -> bool:
            loop.run_once(store)
            time.sleep(0.05)
            pending = store.mail.list(mailbox=f"place:{place}", limit=1).items
            return not pending and len(list_incoming(store, place)) == count

        wait_until(is_finished, "all messages arrived")
        assert list_incoming(store, place) == [f"in {n}" for n in range(count)]
        assert matrix_chat.ann.list_texts(room, matrix_chat.bot) == [
            f"out {n}" for n in range(count)
        ]
        store.channels.remove("den")
        loop.run_once(store)
        matrix_chat.close()
