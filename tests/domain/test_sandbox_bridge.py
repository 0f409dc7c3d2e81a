"""Boxed agents: the same letters and promises, by two files of which one is not believed."""

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from corral.adapters import process
from corral.adapters.channels.contract import RawAttachment
from corral.api import Corral
from corral.daemon.chat import ChatLoop
from corral.kernel.clock import MINUTE, SECOND, ManualClock
from corral.kernel.errors import Invalid, Refused
from tests.adapters.test_sandbox_bridge import leave_a_journal
from tests.support.daemon_nodes import on_machine
from tests.support.errors import because
from tests.support.fake_sandbox_agent import FakeSandboxAgent, SandboxConversation
from tests.support.invariants import check_store
from tests.support.prompt_parser import quotes_in

pytestmark = pytest.mark.usefixtures("fake_channels")


def letter_of(talk: SandboxConversation, text: str = "hello", **given: object) -> str:
    said = talk.chat.says(text, **given)
    return str(said.routes[0].letter_id)


def refusals(store: Corral) -> list[str]:
    found = store.events.after(None, limit=500).items
    return [
        event.data["reason"] for event in found if (event.kind, event.verb) == ("session", "refuse")
    ]


# -- a turn ---------------------------------------------------------------------------------------


def test_message_becomes_a_row_and_its_answer_is_sent_once(
    talk: SandboxConversation,
) -> None:
    letter = letter_of(talk, "hello", direct=True)
    ada = talk.begin()
    (row,) = ada.pending()
    assert row["id"] == f"{letter}.1"
    assert row["seq"] == 2
    assert (row["channel_type"], row["platform_id"]) == ("fake", "room")
    assert row["content"]["text"] == "hello"
    assert talk.store.runs.get_launch(ada.run.id).sandbox == "session:none"
    ada.answer("hi ann")
    assert talk.store.mail.get(letter).state == "waiting", "not before the turn ends"
    talk.end(ada)
    assert talk.store.mail.get(letter).state == "done"
    assert talk.shown() == ["hi ann"]
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    talk.chat.deliver()
    assert talk.shown() == ["hi ann"]
    check_store(talk.store)


def test_several_letters_become_ordered_rows_of_one_prompt(talk: SandboxConversation) -> None:
    for text in ("one", "two", "three"):
        talk.chat.says(text)
    ada = talk.begin()
    assert [row["seq"] for row in ada.pending()] == [2, 4, 6]
    assert [row["content"]["said"] for row in ada.pending()] == ["one", "two", "three"]
    assert ada.prompt() == talk.runner.prompt(ada.run)
    ada.answer("all")
    talk.end(ada)
    assert talk.shown() == ["all"]
    assert talk.store.mail.list().items == []


def test_context_messages_come_with_the_first_row(store: Corral) -> None:
    talk = SandboxConversation(store, trigger="mention", unmatched="keep")
    talk.chat.says("nobody is meant")
    talk.chat.says("@ada look")
    ada = talk.begin()
    assert "nobody is meant" in ada.prompt()
    assert ada.prompt() == talk.runner.prompt(ada.run)


def test_message_from_sandbox_is_sent_before_the_turn_ends(talk: SandboxConversation) -> None:
    talk.chat.says("go")
    ada = talk.begin()
    id = ada.say("working on it")
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).ingested == 1
    assert ada.outcomes() == {}, "it is queued, and nobody knows yet"
    talk.chat.deliver()
    assert talk.shown() == ["working on it"]
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert ada.outcomes() == {id: "delivered"}
    ada.answer("done")
    talk.end(ada)
    assert talk.shown() == ["working on it", "done"]


def test_unacknowledged_message_is_retried_then_reported(
    talk: SandboxConversation, clock: ManualClock
) -> None:
    talk.store.alerts.add(["undelivered"], target_kind="mailbox", target="user:operator")
    letter = letter_of(talk)
    seen = []
    for _ in range(6):
        ada = talk.begin()
        seen.append([row["id"] for row in ada.pending()])
        talk.end(ada)
        clock.advance(2 * MINUTE)
    assert len({id for (id,) in seen}) == 6, "each time under another fence"
    dead = talk.store.mail.get(letter)
    assert dead.state == "dead"
    assert "did not acknowledge" in str(dead.last_error)
    talk.chat.deliver()
    assert "could not be answered" in talk.shown()[0]
    assert len(talk.store.mail.list(mailbox="user:operator").items) == 1


def test_acknowledged_letters_are_done_despite_a_crash(
    talk: SandboxConversation, clock: ManualClock
) -> None:
    first = letter_of(talk, "one")
    second = letter_of(talk, "two")
    ada = talk.begin()
    ada.write("INSERT INTO processing_ack VALUES (?, 'completed', 't')", f"{first}.1")
    ada.write("INSERT INTO processing_ack VALUES (?, 'processing', 't')", f"{second}.1")
    talk.end(ada, "die")
    assert talk.store.mail.get(first).state == "done"
    assert talk.store.mail.get(second).state == "waiting"
    clock.advance(6 * SECOND)
    again = talk.begin()
    (row,) = again.pending()
    assert row["id"].startswith(f"{second}.")
    assert row["id"] != f"{second}.1"
    again.answer("both")
    talk.end(again)
    assert talk.shown() == ["both"]
    check_store(talk.store)


def test_stopped_sandboxed_turn_is_not_retried(talk: SandboxConversation) -> None:
    letter = letter_of(talk)
    ada = talk.begin()
    talk.store.runs.stop(ada.run.id, reason="enough")
    talk.end(ada, "die")
    assert talk.store.mail.get(letter).state == "refused"


def test_machine_with_the_session_file_ends_the_turn(
    talk: SandboxConversation,
) -> None:
    letter = letter_of(talk)
    ada = talk.begin()
    ada.answer("hi ann")
    talk.runner.end(ada.run)
    with on_machine("a-third-machine"):
        assert talk.store.internal.chat.finish_turns() == []
        assert ChatLoop().run_as_follower(talk.store) == 0
    assert ChatLoop().run_as_follower(talk.store) == 1
    talk.chat.deliver()
    assert talk.store.mail.get(letter).state == "done"
    assert talk.shown() == ["hi ann"]


def test_sandboxed_turn_without_an_answer_sends_a_notice(talk: SandboxConversation) -> None:
    talk.chat.says("hello")
    ada = talk.begin()
    ada.answer(None)
    talk.end(ada)
    assert talk.shown() == ["ada ended its turn without an answer."]


def test_attachments_are_readable_inside_the_sandbox(talk: SandboxConversation) -> None:
    file = RawAttachment("../../etc/passwd", b"data", 4, "text/plain")
    talk.chat.says("look", attached=[file], direct=True)
    ada = talk.begin()
    ((path,),) = (quote.files for quote in quotes_in(ada.prompt()))
    assert path.startswith(ada.folder.inside)
    assert Path(path).read_bytes() == b"data"


def test_clear_command_reaches_the_sandbox(talk: SandboxConversation) -> None:
    talk.chat.says("one", direct=True)
    ada = talk.begin()
    ada.write("INSERT INTO session_state VALUES ('mood', 'good', 't')")
    ada.answer("1")
    talk.end(ada)
    assert talk.store.sessions.state(ada.session) == {"sandbox:mood": "good"}
    talk.store.sessions.clear(ada.session)
    assert talk.store.sessions.state(ada.session) == {}
    talk.chat.says("two", direct=True)
    ada = talk.begin()
    orders = [row["content"] for row in ada.files.pending()]
    assert {"action": "clear"} in orders


def test_sandbox_setting_applies_from_the_next_turn(talk: SandboxConversation) -> None:
    talk.chat.says("one")
    ada = talk.begin()
    ada.answer("1")
    talk.end(ada)
    talk.store.settings.set("chat.sandbox", "off", scope="agent:ada")
    talk.chat.says("two")
    talk.store.internal.chat.start_turns()
    run = talk.runner.begin()
    assert not talk.store.runs.get_launch(run.id).has_session_sandbox
    with pytest.raises(Invalid, check=because("bad_value", name="chat.sandbox")):
        talk.store.settings.set("chat.sandbox", "perhaps")


def test_sandboxed_session_is_not_resumed_outside(talk: SandboxConversation) -> None:
    talk.chat.says("one")
    ada = talk.begin()
    ada.answer("1")
    talk.end(ada)
    for what in (ada.run.id, ada.session):
        with pytest.raises(Refused, match="sandboxed"):
            talk.store.runs.resume(what, prompt="and now?")


def test_committed_rows_before_an_agent_crash_count(
    talk: SandboxConversation,
) -> None:
    letter = letter_of(talk, "hello")
    ada = talk.begin()
    ada.answer("hi ann")
    died = multiprocessing.get_context("fork").Process(target=leave_a_journal, args=(ada.folder,))
    died.start()
    died.join()
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).busy, "half of a change is in it"
    talk.end(ada, "die")
    assert talk.store.mail.get(letter).state == "done"
    assert talk.shown() == ["hi ann"]


# -- where to -------------------------------------------------------------------------------------


def test_message_to_unknown_destination_is_rejected(talk: SandboxConversation) -> None:
    talk.chat.says("hello", place="other")
    talk.chat.says("hello")
    store = talk.store
    for wiring in store.wirings.list().items:
        store.wirings.remove(wiring.id)
    for each in store.destinations.list(agent="ada").items:
        store.destinations.revoke("ada", each.name)
    store.destinations.grant("ada", talk.chat.place(), name="here")
    ada = talk.begin()
    with ada.files.reading() as connection:
        known = connection.execute("SELECT name, channel_type, platform_id FROM destinations")
        assert known.fetchall() == [("here", "fake", "room")]
    forged = ada.say("let me in", address=("fake", "other", None))
    ada.say("no such chat", address=("fake", "nowhere", None))
    ada.say("no such channel", address=("moon", "room", None))
    good = ada.say("fine", address=("fake", "room", None))
    looked = store.internal.chat.sync_sandbox(ada.run.id)
    assert (looked.ingested, looked.refused) == (1, 3)
    talk.chat.deliver()
    assert talk.chat.platform.words("other") == []
    assert talk.shown() == ["fine"]
    store.internal.chat.sync_sandbox(ada.run.id)
    outcomes = ada.outcomes()
    assert outcomes[forged] == "failed"
    assert outcomes[good] == "delivered"
    assert len(refusals(store)) == 3
    told = store.mail.list(mailbox=f"session:{ada.session}").items
    assert [each.body["reason"] for each in told if "undelivered" in each.body], "it is told so"


def test_destination_changes_reach_the_sandbox_at_once(talk: SandboxConversation) -> None:
    talk.chat.says("hello", place="other")
    talk.chat.says("hello", thread="t")
    ada = talk.begin()

    def names() -> list[str]:
        with ada.files.reading() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM destinations")]

    assert {*names()} == {"room", "other"}
    talk.store.destinations.revoke("ada", "other")
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert names() == ["room"]


def test_default_reply_address_is_that_of_the_message(talk: SandboxConversation) -> None:
    talk.chat.says("hello", thread="t7")
    ada = talk.begin()
    with ada.files.reading() as connection:
        found = connection.execute("SELECT * FROM session_routing").fetchall()
    assert found == [(1, "fake", "room", "t7")]
    ada.answer("in the thread")
    talk.end(ada)
    assert talk.chat.platform.shown == [("room", "t7", "in the thread")]


def test_edit_and_reaction_are_limited_to_own_conversation(talk: SandboxConversation) -> None:
    said = talk.chat.says("hello")
    ada = talk.begin()
    first = ada.say("teh answer")
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    talk.chat.deliver()
    ada.say("the answer", operation="edit", message=first)
    ada.say("+1", operation="react", message=ada.pending()[0]["id"])
    ada.say("x", operation="edit", message="out-unknown")
    ada.say("x", operation="explode", message=first)
    looked = talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert (looked.ingested, looked.refused) == (2, 2)
    sent = [each for each in talk.store.messages.list(limit=20).items if each.direction == "out"]
    assert {(each.kind, each.text) for each in sent} >= {("edit", "the answer"), ("reaction", "+1")}
    sign = next(each for each in sent if each.kind == "reaction")
    assert sign.reply_to == said.platform_ids[0]


# -- questions and the host -----------------------------------------------------------------------


def test_question_from_sandbox_gets_its_answer_as_a_row(talk: SandboxConversation) -> None:
    talk.chat.says("deploy?", direct=True)
    ada = talk.begin()
    with ada.files.writing() as connection:
        content = {"type": "ask_question", "question": "Really?", "options": ["yes", "no"]}
        id, _ = ada.files.put(connection, "chat", content)
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    (question,) = talk.store.questions.list(all=True).items
    assert (question.text, question.options, question.asker) == (
        "Really?",
        ["yes", "no"],
        "agent:ada",
    )
    talk.store.questions.answer(question.id, "yes", by="user:olga")
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    (row,) = [row for row in ada.files.pending() if row["kind"] == "system"]
    assert row["content"]["questionId"] == id
    assert row["content"]["answer"] == "yes"
    ada.write("INSERT INTO processing_ack VALUES (?, 'completed', 't')", question.id)
    ada.answer("deployed")
    talk.end(ada)
    talk.store.internal.chat.run_upkeep()
    left = talk.store.mail.list(mailbox=f"session:{ada.session}").items
    assert left == [], "it has heard the answer"


def test_answer_after_a_crash_is_given_to_the_next_run(
    talk: SandboxConversation, clock: ManualClock
) -> None:
    talk.chat.says("deploy?", direct=True)
    ada = talk.begin()
    with ada.files.writing() as connection:
        ada.files.put(connection, "chat", {"type": "ask_question", "question": "Really?"})
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    talk.store.internal.chat.run_upkeep()
    (question,) = talk.store.questions.list(all=True).items
    talk.store.questions.answer(question.id, "yes", by="user:olga")
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    ada.answer("later")
    talk.end(ada)
    talk.store.internal.chat.run_upkeep()
    again = talk.begin()
    assert "Really?" in again.prompt()
    assert "yes" in again.prompt()


def test_host_sets_timers_and_rejects_unknown_actions(
    talk: SandboxConversation,
) -> None:
    talk.chat.says("hello")
    ada = talk.begin()
    ada.say("look again", kind="system", action="timer_set", in_seconds=60)
    for action in ("create_agent", "install_packages", "rm -rf"):  # the first without arguments
        ada.say("x", kind="system", action=action)
    ada.say("x", kind="webhook")
    looked = talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert (looked.ingested, looked.refused) == (1, 4)
    (timer,) = talk.store.timers.list().items
    assert timer.mailbox == f"session:{ada.session}"


def test_letter_from_sandbox_has_the_agent_as_sender(talk: SandboxConversation) -> None:
    ben = talk.store.agents.create("ben", provider="scripted")
    talk.chat.says("hello")
    ada = talk.begin()
    ada.say("help me", address=("agent", ben.id, None))
    ada.say("who?", address=("agent", "agt_nobody", None))
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).refused == 1
    (letter,) = talk.store.mail.list(mailbox="agent:ben").items
    assert (letter.body, letter.sender) == ("help me", "agent:ada")


def test_letter_to_a_sandboxed_agent_is_answered(talk: SandboxConversation) -> None:
    talk.store.agents.create("ben", provider="scripted")
    asked = talk.store.mail.write("ben", "how many?", to="ada", wake=True)
    ada = talk.begin()
    assert "how many?" in ada.prompt()
    ada.answer("seven")
    talk.end(ada)
    assert talk.store.mail.get(asked.id).state == "done"
    (answer,) = talk.store.mail.list(mailbox="agent:ben").items
    assert (answer.body, answer.sender) == ("seven", "agent:ada")
    assert talk.shown() == []
    assert refusals(talk.store) == []


# -- a hostile inside -----------------------------------------------------------------------------


def hostile(talk: SandboxConversation) -> FakeSandboxAgent:
    talk.chat.says("hello")
    return talk.begin()


FORGED = [
    ("even", 8, {"text": "x"}, {}),
    ("nothing", None, {"text": "x"}, {}),
    ("far", 1 << 62, {"text": "x"}, {}),
    ("words", "seven", {"text": "x"}, {}),
    ("json", 9, "{not json", {}),
    ("list", 9, "[1, 2]", {}),
    ("deep", 9, "[" * 100_000, {}),
    ("types", 9, {"text": 7}, {}),
    ("zero", 9, '{"text": "a\\u0000b"}', {}),
    ("half", 9, '{"text": "\\ud800"}', {}),
    ("empty", 9, {"text": ""}, {}),
    ("long", 9, {"text": "x" * 1_000_000}, {"platform_id": "p" * 500, "channel_type": "fake"}),
    ("later", 9, {"question": "q", "type": "ask_question", "options": ["x"] * 5_000}, {}),
    ("agent", 9, {"text": "x"}, {"channel_type": "agent", "platform_id": "' OR 1=1 --"}),
    ("names", 9, {"text": "x", "operation": "edit", "message": "let_99999999999999999999.1"}, {}),
    ("blob", 9, b"\x00\xff", {}),
]


@pytest.mark.parametrize(("id", "seq", "content", "more"), FORGED, ids=[row[0] for row in FORGED])
def test_forged_row_is_rejected_and_valid_rows_are_ingested(
    talk: SandboxConversation, id: str, seq: object, content: object, more: dict[str, str]
) -> None:
    ada = hostile(talk)
    ada.say("honest")
    if isinstance(content, bytes):
        ada.forge(id, seq)
        ada.write("UPDATE messages_out SET content = ? WHERE id = ?", content, id)
    else:
        ada.forge(id, seq, content, **more)
    for _ in range(2):
        talk.store.internal.chat.sync_sandbox(ada.run.id)
    harmful = seq in (1 << 62, "seven")
    if not harmful:  # it has no next number of its own any more
        ada.answer("the end")
    talk.end(ada)
    assert talk.shown() == ["honest"] if harmful else ["honest", "the end"]
    assert len(refusals(talk.store)) == 1
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert ada.outcomes()[id] == "failed"
    check_store(talk.store)


def test_repeated_outbound_id_is_the_same_message(talk: SandboxConversation) -> None:
    ada = hostile(talk)
    id = ada.say("once")
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    ada.write("DELETE FROM messages_out")
    ada.forge(id, 9, {"text": "twice"})
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    talk.chat.deliver()
    assert talk.shown() == ["once"]


def test_row_with_a_used_number_is_rejected_with_reason(talk: SandboxConversation) -> None:
    ada = hostile(talk)
    ada.forge("a", 9)
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    ada.forge("b", 5, {"text": "behind your back"})
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    talk.chat.deliver()
    assert talk.shown() == ["forged"]
    assert refusals(talk.store) == ["its number was used before"]
    assert ada.outcomes()["b"] == "failed"


def test_acknowledgement_of_a_foreign_letter_is_ignored(talk: SandboxConversation) -> None:
    other = letter_of(talk, "for tom", place="other")
    mine = letter_of(talk, "hello")
    ada = talk.begin()
    wrong = [f"{other}.1", f"{mine}.9", mine, "let_1", "qst_x", "' OR 1"]
    for id in {*wrong} - {row["id"] for row in ada.pending()}:
        ada.write("INSERT INTO processing_ack VALUES (?, 'completed', 't')", id)
    states = {talk.store.mail.get(id).state for id in (other, mine)}
    talk.end(ada)
    assert {talk.store.mail.get(id).state for id in (other, mine)} == states == {"waiting"}


@pytest.mark.parametrize("how", ["rubbish", "pipe", "link", "trigger", "folder"])
def test_invalid_file_is_quarantined_and_letter_retried(
    talk: SandboxConversation, clock: ManualClock, tmp_path: Path, how: str
) -> None:
    talk.store.alerts.add(["undelivered"], target_kind="mailbox", target="user:operator")
    letter = letter_of(talk, "hello")
    ada = talk.begin()
    ada.answer("never to be seen")
    path = ada.folder.outbound
    if how == "trigger":
        ada.write("CREATE TRIGGER t AFTER INSERT ON processing_ack BEGIN SELECT 1; END")
    else:
        os.unlink(path)
        {
            "rubbish": lambda: Path(path).write_bytes(b"x" * 9_000),
            "pipe": lambda: os.mkfifo(path),
            "link": lambda: os.symlink(tmp_path / "elsewhere", path),
            "folder": lambda: os.mkdir(path),
        }[how]()
    talk.end(ada)
    waiting = talk.store.mail.get(letter)
    assert waiting.state == "waiting"
    assert "rejected" in str(waiting.last_error)
    assert len(refusals(talk.store)) == 1
    assert len(talk.store.mail.list(mailbox="user:operator").items) == 1
    clock.advance(6 * SECOND)
    again = talk.begin()
    again.answer("honest now")
    talk.end(again)
    assert talk.shown() == ["honest now"]
    check_store(talk.store)


@pytest.mark.parametrize("lost", ["in", "out", "all"])
def test_lost_file_loses_no_letter_and_duplicates_no_answer(
    talk: SandboxConversation, clock: ManualClock, lost: str
) -> None:
    for n in range(2):
        talk.chat.says(f"say {n}", direct=True)
        ada = talk.begin()
        ada.answer(f"answer {n}")
        talk.end(ada)
    letter = letter_of(talk, "say 2", direct=True)
    ada = talk.begin()
    shutil.rmtree({"in": ada.folder.inside, "out": ada.folder.outside}.get(lost, ada.folder.top))
    talk.end(ada, "die")
    assert talk.store.mail.get(letter).state == "waiting"
    clock.advance(6 * SECOND)
    ada = talk.begin()
    assert [row["content"]["said"] for row in ada.pending()] == ["say 2"]
    ada.answer("answer 2")
    talk.end(ada)
    assert talk.shown() == ["answer 0", "answer 1", "answer 2"]
    assert refusals(talk.store) == []


def test_concurrent_syncs_ingest_each_message_once(talk: SandboxConversation) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ada = hostile(talk)
    for n in range(20):
        ada.say(f"{n}")
    with ThreadPoolExecutor(4) as pool:
        taken = [
            *pool.map(
                lambda _: talk.store.internal.chat.sync_sandbox(ada.run.id).ingested, range(4)
            )
        ]
    assert sum(taken) == 20
    talk.chat.deliver()
    for _ in range(3):
        talk.chat.deliver()
    assert sorted(talk.shown(), key=int) == [f"{n}" for n in range(20)]


def test_session_state_of_a_sandbox_is_limited(talk: SandboxConversation) -> None:
    ada = hostile(talk)
    for n in range(200):
        ada.write("INSERT INTO session_state VALUES (?, ?, 't')", f"k{n:03}", "v" * 7_000)
    ada.answer("x")
    talk.end(ada)
    kept = talk.store.sessions.state(ada.session)
    assert len(kept) == 50
    assert max(len(json.dumps(value)) for value in kept.values()) < 5_000


# -- a machine that never comes back --------------------------------------------------------------


def gone(talk: SandboxConversation, clock: ManualClock, ada: FakeSandboxAgent) -> None:
    """Its machine ended the run, or was held to have, and was not heard of again."""
    talk.runner.end(ada.run)
    clock.advance(6 * MINUTE)


def test_turn_of_a_lost_machine_is_retried_elsewhere_once(
    talk: SandboxConversation, clock: ManualClock
) -> None:
    talk.store.settings.set("chat.max_concurrent", 1)
    letter = letter_of(talk, direct=True)
    lost = talk.begin()
    lost.answer("from the first machine")
    talk.runner.end(lost.run)
    with on_machine("another-machine"):
        assert talk.store.internal.chat.finish_turns() == [], "it may come back"
        clock.advance(6 * MINUTE)
        assert len(talk.store.internal.chat.finish_turns()) == 1
        assert "is gone" in str(talk.store.mail.get(letter).last_error)
        clock.advance(2 * MINUTE)
        aside = shutil.move(lost.folder.top, f"{lost.folder.top}-aside")
        ada = talk.begin()
        assert (ada.run.host, ada.run.session_id) == ("another-machine", lost.session)
        ada.answer("from the other")
        talk.end(ada)
    assert talk.shown() == ["from the other"]
    assert talk.store.mail.get(letter).state == "done"
    # The first one is back, with its own files, and what it never told is not told now.
    shutil.rmtree(ada.folder.top)
    shutil.move(aside, lost.folder.top)
    assert talk.store.internal.chat.finish_turns(local=True) == []
    assert talk.store.internal.chat.sync_sandbox(lost.run.id).ingested == 0
    talk.chat.says("and now?", direct=True)
    clock.advance(6 * MINUTE)
    again = talk.begin()
    again.answer("it is back")
    talk.end(again)
    assert talk.shown() == ["from the other", "it is back"]
    check_store(talk.store)


def test_live_machine_keeps_its_turn(talk: SandboxConversation, clock: ManualClock) -> None:
    talk.chat.says("hello")
    ada = talk.begin()
    ada.answer("hi ann")
    gone(talk, clock, ada)
    talk.store.internal.nodes.join(process.host(), "boot", owner="d")
    with on_machine("another-machine"):
        assert talk.store.internal.chat.finish_turns() == []
    talk.store.internal.chat.finish_turns(local=True)
    talk.chat.deliver()
    assert talk.shown() == ["hi ann"]


def test_message_sent_before_machine_loss_counts_as_the_answer(
    talk: SandboxConversation, clock: ManualClock
) -> None:
    letter = letter_of(talk)
    ada = talk.begin()
    ada.answer("hi ann")
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    gone(talk, clock, ada)
    with on_machine("another-machine"):
        talk.store.internal.chat.finish_turns()
        talk.chat.deliver()
        assert talk.store.internal.chat.start_turns() == []
    assert talk.store.mail.get(letter).state == "done"
    said, notice = talk.shown()
    assert (said, "may be incomplete" in notice) == ("hi ann", True)


def test_run_queued_for_a_lost_machine_returns_its_turn(
    talk: SandboxConversation, clock: ManualClock
) -> None:
    letter = letter_of(talk)
    (queued,) = talk.store.internal.chat.start_turns()
    with on_machine("another-machine"):
        assert talk.store.internal.chat.finish_turns() == []
        clock.advance(6 * MINUTE)
        assert len(talk.store.internal.chat.finish_turns()) == 1
        assert talk.store.runs.get(queued.id).state == "cancelled"
        clock.advance(2 * MINUTE)
        ada = talk.begin()
        ada.answer("hi ann")
        talk.end(ada)
    assert talk.store.mail.get(letter).state == "done"
    assert talk.shown() == ["hi ann"]


# -- threads and answers ---------------------------------------------------------------------------


def test_sandboxed_agent_sends_to_a_named_thread(
    talk: SandboxConversation,
) -> None:
    talk.chat.says("hello", thread="t1")
    ada = talk.begin()
    ada.say("in another thread", address=("fake", "room", "t2"))
    ada.say("here")
    ada.answer("done")
    talk.end(ada)
    assert talk.chat.platform.shown == [
        ("room", "t2", "in another thread"),
        ("room", "t1", "here"),
        ("room", "t1", "done"),
    ]


def test_sandboxed_agent_answers_each_message_at_its_origin(talk: SandboxConversation) -> None:
    talk.chat.says("one", thread="t1")
    ada = talk.begin()
    (first,) = ada.pending()
    ada.answer("first")
    talk.end(ada)
    talk.chat.says("two", thread="t2")
    ada = talk.begin()
    ada.say("one more thing", in_reply_to=first["id"])
    ada.answer("second")
    talk.end(ada)
    assert ("room", "t1", "one more thing") in talk.chat.platform.shown
    (sent,) = [each for each in talk.chat.platform.taken if each.text == "one more thing"]
    assert sent.reply_to == "p-e1"


def test_reply_to_a_message_not_given_is_rejected(talk: SandboxConversation) -> None:
    talk.chat.says("hello")
    other = talk.store.mail.put("agent:eve", "not for ada")
    ada = talk.begin()
    for named in (f"{other.id}.1", "let_999.1", "nothing"):
        ada.say("a secret", in_reply_to=named)
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert [*ada.outcomes().values()] == ["failed"] * 3
    ada.answer("done")
    talk.end(ada)
    assert talk.shown() == ["done"]
