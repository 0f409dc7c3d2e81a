"""A real Matrix server: what people and agents say there arrives once, whatever dies in between."""

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
from corral.daemon.delivery import ChatDelivery
from corral.domain.chat.model import Message
from corral.kernel.clock import HOUR, MINUTE, ManualClock
from tests.real.home import until
from tests.real.homeserver import Homeserver, Person
from tests.support.fake_channels import Runner
from tests.support.store import record

ROOT = Path(__file__).parents[2]
_number = iter(range(1_000))


class Den:
    """A channel of a store, its account on the server, and Ann, who talks to agents there."""

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
        for each in (self.ann, self.bot):
            each.close()
        del os.environ["DEN_TOKEN"]

    def hear(self) -> list[Message]:
        return self.store.chat.poll("den", self.adapter)

    def room(self, *others: Person, name: str | None = "Den") -> str:
        """A room of Ann's to which the account has come."""
        room = self.ann.room(self.bot, *others, name=name)
        self.hear()
        self.hear()
        return room

    def send(self, adapter: ChannelAdapter | None = None) -> list[str]:
        told = self.store.chat.deliver("den", adapter or self.adapter, owner="test")
        return [each.state for each in told]

    def answer(self, words: str) -> str | None:
        """One turn: what the agent was told, and it answers with these words."""
        self.store.chat.start_turns()
        run = self.runner.begin()
        told = self.runner.prompt(run)
        self.runner.end(run, words)
        self.store.chat.finish_turns()
        self.send()
        return told

    def place(self, room: str) -> str:
        return self.store.places.register("den", room).id


@pytest.fixture
def den(store: Corral, server: Homeserver) -> Iterator[Den]:
    made = Den(store, server)
    yield made
    made.close()


def words_in(store: Corral, place: str) -> list[str]:
    """What came from a place, in the order of arrival."""
    found = store.messages.list(place=place, limit=200).items
    return [each.text for each in reversed(found) if each.direction == "in"]


def of_bot(den: Den, room: str) -> list[dict[str, Any]]:
    return [event for event in den.ann.events(room) if event["sender"] == den.bot.id]


# -- talking --------------------------------------------------------------------------------------


def test_a_room_is_joined_heard_and_answered_and_two_rooms_stay_apart(den: Den) -> None:
    first, second = den.room(name="First"), den.room(name=None)
    den.ann.say(first, "one")
    den.ann.say(second, "two")
    heard = den.hear()
    assert [(each.text, each.state) for each in heard] == [("one", "routed"), ("two", "routed")]
    assert den.hear() == []
    place = den.store.places.get(f"den/{first}")
    assert (place.name, place.direct) == ("First", True)
    for _ in range(2):
        told = den.answer("an answer")
        assert told in ("one", "two")
    assert den.ann.heard(first, den.bot) == den.ann.heard(second, den.bot) == ["an answer"]


def test_what_was_said_before_the_invitation_is_not_ours_to_hear(den: Den) -> None:
    room = den.ann.room(name="Old")
    for n in range(70):
        den.ann.say(room, f"old {n}")
    den.ann.ask("POST", f"/_matrix/client/v3/rooms/{room}/invite", json={"user_id": den.bot.id})
    den.ann.say(room, "welcome")
    den.hear()
    den.ann.say(room, "new")
    assert [each.text for each in den.hear()] == ["welcome", "new"]


def test_a_thread_is_answered_in_the_thread(den: Den) -> None:
    room = den.room()
    root = den.ann.say(room, "root")
    (heard,) = den.hear()
    assert heard.thread is None
    den.answer("to the room")
    den.ann.say(room, "inside", thread=root)
    (heard,) = den.hear()
    assert heard.thread == root
    den.answer("to the thread")
    relations = [event["content"].get("m.relates_to", {}) for event in of_bot(den, room)[1:]]
    assert [each.get("rel_type") for each in relations] == [None, "m.thread"]
    assert relations[1]["event_id"] == root


def test_words_are_changed_and_signed_in_both_directions(den: Den) -> None:
    room = den.room()
    event = den.ann.say(room, "helo")
    den.hear()
    den.ann.edit(room, event, "hello")
    den.ann.react(room, event, "+1")
    edit, sign = den.hear()
    assert (edit.kind, edit.text, edit.reply_to) == (MessageKind.EDIT, "hello", event)
    assert (sign.kind, sign.text, sign.reply_to) == (MessageKind.REACTION, "+1", event)
    store = den.store
    store.destinations.grant("ada", den.place(room), name="den")
    (said,) = store.messages.send("draft", agent="ada", to="den")
    assert den.send() == ["done"]
    asked = next(each for each in store.messages.list().items if each.kind is MessageKind.TEXT)
    heard = next(each for each in store.messages.list().items if each.text == "helo")
    assert asked.id == said.id
    store.messages.send("final", agent="ada", to="den", edit=said.id)
    for _ in range(2):  # a sign that is there already is no failure
        store.messages.send("👍", agent="ada", to="den", react=heard.id)
    assert den.send() == ["done"] * 3
    _, words, change, mark = of_bot(den, room)
    assert words["content"]["body"] == "draft"
    assert den.ann.shown(room, words["event_id"]) == "final"
    assert change["content"]["m.new_content"]["body"] == "final"
    assert mark["content"]["m.relates_to"]["key"] == "👍"


def test_a_long_text_is_cut_as_the_server_counts(den: Den) -> None:
    room = den.room()
    den.ann.say(room, "how long?")
    den.hear()
    text = "\n".join("🦙" * 60 + f' {n} "quoted"' for n in range(300))
    assert len(text.encode()) > 65_536
    den.answer(text)
    pieces = den.ann.heard(room, den.bot)
    assert len(pieces) > 3
    assert "\n".join(pieces).split() == text.split()
    (first, *_) = [each for each in den.store.messages.list().items if each.state == "sent"]
    den.store.messages.send("🦙" * 5_000, agent="ada", to=den.place(room), edit=first.id)
    assert den.send() == ["done"]


def test_an_attached_file_is_fetched_and_its_name_does_no_harm(den: Den, tmp_path: Path) -> None:
    room = den.room()
    den.ann.attach(room, "../../x", b"the file")
    (heard,) = den.hear()
    (file,) = heard.data["files"]
    kept = Path(file["path"])
    assert kept.read_bytes() == b"the file"
    assert kept.is_relative_to(tmp_path / "home" / "channels")
    assert (kept.name, kept.stat().st_mode & 0o777) == ("1-x", 0o600)
    den.ann.send(
        room, {"msgtype": "m.file", "body": "gone", "url": "mxc://chat.test/never", "info": {}}
    )
    (heard,) = den.hear()
    (file,) = heard.data["files"]
    assert file["path"] is None
    assert "404" in file["reason"]


def test_an_agent_sends_a_file_and_ann_reads_it(den: Den) -> None:
    room = den.room()
    den.ann.say(room, "send me the picture")
    den.hear()
    work = den.work
    (work / "dot.png").write_bytes(b"\x89PNG of a dot")
    (work / "notes").write_bytes(b"\xff\x00 notes")
    session = den.store.messages.list().items[0].routes[0].session_id
    den.store.messages.send_files(
        ["dot.png", "notes"], agent="ada", session=session, text="Here it is."
    )
    (work / "notes").write_text("changed since")
    assert den.send() == ["done"] * 3
    _, words, picture, notes = of_bot(den, room)
    assert words["content"]["body"] == "Here it is."
    assert picture["content"]["msgtype"] == "m.image"
    assert picture["content"]["info"] == {"size": 13, "mimetype": "image/png"}
    assert den.ann.fetch(picture["content"]["url"]) == b"\x89PNG of a dot"
    assert (notes["content"]["msgtype"], notes["content"]["filename"]) == ("m.file", "notes")
    assert den.ann.fetch(notes["content"]["url"]) == b"\xff\x00 notes"


def test_a_question_is_a_card_and_a_number_answers_it_once(den: Den) -> None:
    room = den.room()
    store = den.store
    store.senders.approve(f"den/{den.ann.id}", person="ann")
    den.ann.say(room, "may we ship?")
    den.hear()
    store.chat.start_turns()
    run = den.runner.begin()
    store.questions.ask(
        "Ship it?",
        options=["ship", "wait"],
        asker="agent:ada",
        answerers=["user:ann"],
        run=run.id,
    )
    store.chat.run_upkeep()
    assert den.send() == ["done"]
    assert den.ann.heard(room, den.bot) == ["Ship it?\n1. ship\n2. wait\n\nAnswer with a number."]
    den.ann.say(room, "2")
    (answer,) = den.hear()
    assert answer.state == "routed"
    (question,) = store.questions.list(all=True).items
    assert (question.answer, question.answered_by) == ("wait", "user:ann")
    den.runner.end(run, "so we wait")
    store.chat.finish_turns()
    store.chat.run_upkeep()
    den.send()
    card = of_bot(den, room)[1]
    assert "ann answered: wait" in den.ann.shown(room, card["event_id"])
    assert den.ann.heard(room, den.bot)[-1] == "so we wait"


def test_an_encrypted_room_is_not_read_and_that_is_said(den: Den) -> None:
    room = den.room()
    sealed = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x", "session_id": "s"}
    den.ann.send(room, sealed, "m.room.encrypted")
    den.ann.say(room, "plain")
    assert [each.text for each in den.hear()] == ["plain"]
    assert "channel.skip_event" in record(den.store, den.channel.id)


# -- what goes wrong ------------------------------------------------------------------------------


def test_a_wrong_token_is_said_clearly_and_without_the_token(
    store: Corral, server: Homeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "syt_nobody_knows_this")
    store.secrets.set("wrong", "env:WRONG")
    store.channels.add("den", "matrix", config={"base_url": server.url}, secrets={"token": "wrong"})
    health = store.channels.test("den")
    assert not health.ok
    assert health.error == "the platform returned 401: M_UNKNOWN_TOKEN; the token is invalid"
    assert store.channels.get("den").last_error == health.error


def test_a_token_that_is_taken_away_loses_nothing(den: Den) -> None:
    room = den.room()
    store = den.store
    store.messages.send_as_system(den.place(room), "words")
    den.bot.ask("POST", "/_matrix/client/v3/logout", json={})
    (state,) = den.send()
    assert state == "waiting", "it is ours to mend, and the message is as good as it was"
    with pytest.raises(Exception, match="the token is invalid"):
        den.hear()


def test_a_pause_that_the_server_asks_for_is_kept(
    den: Den, server: Homeserver, clock: ManualClock
) -> None:
    room = den.room()
    admin = server.person(f"admin{next(_number)}", admin=True)
    slow = f"/_synapse/admin/v1/users/{den.bot.id}/override_ratelimit"
    admin.ask("POST", slow, json={"messages_per_second": 1, "burst_count": 1})
    for n in range(3):
        den.store.messages.send_as_system(den.place(room), f"words {n}")
    states = den.send()
    assert "waiting" in states, states
    assert "429" in (
        den.store.mail.list(mailbox=f"place:{den.place(room)}").items[0].last_error or ""
    )
    admin.ask("DELETE", slow)
    admin.close()
    for _ in range(3):
        clock.advance(MINUTE)
        den.send()
    assert den.ann.heard(room, den.bot) == [f"words {n}" for n in range(3)]


def test_after_a_long_absence_the_gap_is_filled_in_order(den: Den) -> None:
    first, second = den.room(), den.room(name="Other")
    for n in range(230):
        den.ann.say(first, f"{n}")
        if n % 50 == 0:
            den.ann.say(second, f"other {n}")
    den.adapter = den.open()  # another process, which knows nothing of the one before
    heard = den.hear()
    place = den.place(first)
    assert [each.text for each in heard if each.place_id == place] == [f"{n}" for n in range(230)]
    assert [each.text for each in heard if each.place_id != place] == [
        f"other {n}" for n in range(0, 230, 50)
    ]
    assert den.hear() == []


class Unrepeated(MatrixAdapter):
    """A server that has forgotten every key: what is sent to it would be another message."""

    def send(self, message: OutgoingMessage) -> SendOutcome:
        raise AssertionError("it was sent again")


@pytest.mark.parametrize("pause", [2 * MINUTE, 2 * HOUR], ids=["soon", "late"])
def test_killed_between_send_and_record_the_room_shows_one_copy(
    den: Den, url: str, clock: ManualClock, pause: int
) -> None:
    room = den.room()
    (said,) = den.store.messages.send_as_system(den.place(room), "only once")
    victim = [
        sys.executable,
        "-m",
        "tests.real.killed_sender",
        url,
        "den",
        den.bot.token,
        str(clock.at),
    ]
    ended = subprocess.run(victim, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert den.ann.heard(room, den.bot) == ["only once"]
    assert den.store.messages.get(said.id).state == "queued"
    den.server.stop(signal.SIGKILL)
    den.server.start()
    clock.advance(pause)
    # After hours a server has forgotten the key: what counts then is what the room shows.
    assert den.send(den.open(Unrepeated) if pause > HOUR else None) == ["done"]
    found = den.store.messages.get(said.id)
    (event,) = [each for each in of_bot(den, room) if each["type"] == "m.room.message"]
    assert (found.state, found.platform_ids) == ("sent", [event["event_id"]])


def test_while_the_server_is_away_everything_waits_and_then_comes_once(
    den: Den, clock: ManualClock
) -> None:
    room = den.room()
    den.ann.say(room, "before")
    den.hear()
    den.store.chat.start_turns()
    den.runner.end(den.runner.begin(), "the answer")
    den.store.chat.finish_turns()
    den.server.stop()
    with pytest.raises(Exception, match="cannot be reached"):
        den.hear()
    assert den.send() == ["waiting"]
    assert "cannot be reached" in (den.store.channels.test("den").error or "")
    den.server.start()
    clock.advance(MINUTE)
    den.ann.say(room, "after")
    assert [each.text for each in den.hear()] == ["after"]
    assert den.send() == ["done"]
    assert den.ann.heard(room, den.bot) == ["the answer"]
    assert den.store.channels.test("den").ok


def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(
    url: str, server: Homeserver
) -> None:
    each_way = 40
    loop = ChatDelivery()
    with corral.open(url) as store:
        store.settings.set("mail.max_attempts", 30)
        den = Den(store, server)
        store.wirings.remove(store.wirings.list().items[0].id)
        room = den.room()
        place = den.place(room)

        def talk() -> None:
            for n in range(each_way):
                den.ann.say(room, f"in {n}")

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

        until(finished, "all has arrived")
        assert words_in(store, place) == [f"in {n}" for n in range(each_way)]
        assert den.ann.heard(room, den.bot) == [f"out {n}" for n in range(each_way)]
        store.channels.remove("den")
        loop.run_once(store)
        den.close()
