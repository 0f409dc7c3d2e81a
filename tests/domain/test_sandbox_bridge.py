"""The sandbox bridge: turns, destinations, questions and hostile rows of sandboxed agents."""

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from corral.adapters.channels.contract import RawAttachment
from corral.adapters.processes import process
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


def send_letter(conversation: SandboxConversation, text: str = "hello", **fields: object) -> str:
    message = conversation.chat.says(text, **fields)
    return str(message.routes[0].letter_id)


def list_refusals(store: Corral) -> list[str]:
    events = store.events.after(None, limit=500).items
    return [
        event.data["reason"]
        for event in events
        if (event.kind, event.verb) == ("session", "refuse")
    ]


# -- a turn ---------------------------------------------------------------------------------------


def test_message_becomes_a_row_and_its_answer_is_sent_once(
    conversation: SandboxConversation,
) -> None:
    letter = send_letter(conversation, "hello", direct=True)
    ada = conversation.begin()
    (row,) = ada.pending()
    assert row["id"] == f"{letter}.1"
    assert row["seq"] == 2
    assert (row["channel_type"], row["platform_id"]) == ("fake", "room")
    assert row["content"]["text"] == "hello"
    assert conversation.store.runs.get_launch(ada.run.id).sandbox == "session:none"
    ada.answer("hi ann")
    assert conversation.store.mail.get(letter).state == "waiting", (
        "the letter is acknowledged when the turn ends"
    )
    conversation.end(ada)
    assert conversation.store.mail.get(letter).state == "done"
    assert conversation.shown() == ["hi ann"]
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    conversation.chat.deliver()
    assert conversation.shown() == ["hi ann"]
    check_store(conversation.store)


def test_several_letters_become_ordered_rows_of_one_prompt(
    conversation: SandboxConversation,
) -> None:
    for text in ("one", "two", "three"):
        conversation.chat.says(text)
    ada = conversation.begin()
    assert [row["seq"] for row in ada.pending()] == [2, 4, 6]
    assert [row["content"]["original_text"] for row in ada.pending()] == ["one", "two", "three"]
    assert ada.prompt() == conversation.runner.prompt(ada.run)
    ada.answer("all")
    conversation.end(ada)
    assert conversation.shown() == ["all"]
    assert conversation.store.mail.list().items == []


def test_context_messages_come_with_the_first_row(store: Corral) -> None:
    conversation = SandboxConversation(store, trigger="mention", unmatched="keep")
    conversation.chat.says("without a mention")
    conversation.chat.says("@ada look")
    ada = conversation.begin()
    assert "without a mention" in ada.prompt()
    assert ada.prompt() == conversation.runner.prompt(ada.run)


def test_message_from_sandbox_is_sent_before_the_turn_ends(
    conversation: SandboxConversation,
) -> None:
    conversation.chat.says("go")
    ada = conversation.begin()
    id = ada.say("working on it")
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).ingested == 1
    assert ada.outcomes() == {}, "the message is queued and not yet delivered"
    conversation.chat.deliver()
    assert conversation.shown() == ["working on it"]
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert ada.outcomes() == {id: "delivered"}
    ada.answer("done")
    conversation.end(ada)
    assert conversation.shown() == ["working on it", "done"]


def test_unacknowledged_message_is_retried_then_reported(
    conversation: SandboxConversation, clock: ManualClock
) -> None:
    conversation.store.alerts.add(["undelivered"], target_kind="mailbox", target="user:operator")
    letter = send_letter(conversation)
    row_ids = []
    for _ in range(6):
        ada = conversation.begin()
        row_ids.append([row["id"] for row in ada.pending()])
        conversation.end(ada)
        clock.advance(2 * MINUTE)
    assert len({id for (id,) in row_ids}) == 6, "each attempt has its own fence"
    dead_letter = conversation.store.mail.get(letter)
    assert dead_letter.state == "dead"
    assert "did not acknowledge" in str(dead_letter.last_error)
    conversation.chat.deliver()
    assert "could not be answered" in conversation.shown()[0]
    assert len(conversation.store.mail.list(mailbox="user:operator").items) == 1


def test_acknowledged_letters_are_done_despite_a_crash(
    conversation: SandboxConversation, clock: ManualClock
) -> None:
    acknowledged = send_letter(conversation, "one")
    unacknowledged = send_letter(conversation, "two")
    ada = conversation.begin()
    ada.write("INSERT INTO processing_ack VALUES (?, 'completed', 't')", f"{acknowledged}.1")
    ada.write("INSERT INTO processing_ack VALUES (?, 'processing', 't')", f"{unacknowledged}.1")
    conversation.end(ada, "die")
    assert conversation.store.mail.get(acknowledged).state == "done"
    assert conversation.store.mail.get(unacknowledged).state == "waiting"
    clock.advance(6 * SECOND)
    retry = conversation.begin()
    (row,) = retry.pending()
    assert row["id"].startswith(f"{unacknowledged}.")
    assert row["id"] != f"{unacknowledged}.1"
    retry.answer("both")
    conversation.end(retry)
    assert conversation.shown() == ["both"]
    check_store(conversation.store)


def test_stopped_sandboxed_turn_is_not_retried(conversation: SandboxConversation) -> None:
    letter = send_letter(conversation)
    ada = conversation.begin()
    conversation.store.runs.stop(ada.run.id, reason="enough")
    conversation.end(ada, "die")
    assert conversation.store.mail.get(letter).state == "refused"


def test_machine_with_the_session_file_ends_the_turn(
    conversation: SandboxConversation,
) -> None:
    letter = send_letter(conversation)
    ada = conversation.begin()
    ada.answer("hi ann")
    conversation.runner.end(ada.run)
    with on_machine("a-third-machine"):
        assert conversation.store.internal.chat.finish_turns() == []
        assert ChatLoop().run_as_follower(conversation.store) == 0
    assert ChatLoop().run_as_follower(conversation.store) == 1
    conversation.chat.deliver()
    assert conversation.store.mail.get(letter).state == "done"
    assert conversation.shown() == ["hi ann"]


def test_sandboxed_turn_without_an_answer_sends_a_notice(conversation: SandboxConversation) -> None:
    conversation.chat.says("hello")
    ada = conversation.begin()
    ada.answer(None)
    conversation.end(ada)
    assert conversation.shown() == ["ada ended its turn without an answer."]


def test_attachments_are_readable_inside_the_sandbox(conversation: SandboxConversation) -> None:
    file = RawAttachment("../../etc/passwd", b"data", 4, "text/plain")
    conversation.chat.says("look", attached=[file], direct=True)
    ada = conversation.begin()
    ((path,),) = (quote.files for quote in quotes_in(ada.prompt()))
    assert path.startswith(ada.folder.inside)
    assert Path(path).read_bytes() == b"data"


def test_clear_command_reaches_the_sandbox(conversation: SandboxConversation) -> None:
    conversation.chat.says("one", direct=True)
    ada = conversation.begin()
    ada.write("INSERT INTO session_state VALUES ('mood', 'good', 't')")
    ada.answer("1")
    conversation.end(ada)
    assert conversation.store.sessions.state(ada.session) == {"sandbox:mood": "good"}
    conversation.store.sessions.clear(ada.session)
    assert conversation.store.sessions.state(ada.session) == {}
    conversation.chat.says("two", direct=True)
    ada = conversation.begin()
    orders = [row["content"] for row in ada.files.pending()]
    assert {"action": "clear"} in orders


def test_sandbox_setting_applies_from_the_next_turn(conversation: SandboxConversation) -> None:
    conversation.chat.says("one")
    ada = conversation.begin()
    ada.answer("1")
    conversation.end(ada)
    conversation.store.settings.set("chat.sandbox", "off", scope="agent:ada")
    conversation.chat.says("two")
    conversation.store.internal.chat.start_turns()
    run = conversation.runner.begin()
    assert not conversation.store.runs.get_launch(run.id).has_session_sandbox
    with pytest.raises(Invalid, check=because("bad_value", name="chat.sandbox")):
        conversation.store.settings.set("chat.sandbox", "perhaps")


def test_sandboxed_session_is_not_resumed_outside(conversation: SandboxConversation) -> None:
    conversation.chat.says("one")
    ada = conversation.begin()
    ada.answer("1")
    conversation.end(ada)
    for target in (ada.run.id, ada.session):
        with pytest.raises(Refused, match="sandboxed"):
            conversation.store.runs.resume(target, prompt="and now?")


def test_committed_rows_before_an_agent_crash_count(
    conversation: SandboxConversation,
) -> None:
    letter = send_letter(conversation, "hello")
    ada = conversation.begin()
    ada.answer("hi ann")
    crashed = multiprocessing.get_context("fork").Process(
        target=leave_a_journal, args=(ada.folder,)
    )
    crashed.start()
    crashed.join()
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).busy, (
        "the file has a hot journal"
    )
    conversation.end(ada, "die")
    assert conversation.store.mail.get(letter).state == "done"
    assert conversation.shown() == ["hi ann"]


# -- destinations ---------------------------------------------------------------------------------


def test_message_to_unknown_destination_is_rejected(conversation: SandboxConversation) -> None:
    conversation.chat.says("hello", place="other")
    conversation.chat.says("hello")
    store = conversation.store
    for wiring in store.wirings.list().items:
        store.wirings.remove(wiring.id)
    for destination in store.destinations.list(agent="ada").items:
        store.destinations.revoke("ada", destination.name)
    store.destinations.grant("ada", conversation.chat.place(), name="home")
    ada = conversation.begin()
    with ada.files.reading() as connection:
        destinations = connection.execute(
            "SELECT name, channel_type, platform_id FROM destinations"
        )
        assert destinations.fetchall() == [("home", "fake", "room")]
    forged = ada.say("let me in", address=("fake", "other", None))
    ada.say("no such chat", address=("fake", "unknown", None))
    ada.say("no such channel", address=("moon", "room", None))
    delivered = ada.say("fine", address=("fake", "room", None))
    result = store.internal.chat.sync_sandbox(ada.run.id)
    assert (result.ingested, result.refused) == (1, 3)
    conversation.chat.deliver()
    assert conversation.chat.platform.words("other") == []
    assert conversation.shown() == ["fine"]
    store.internal.chat.sync_sandbox(ada.run.id)
    outcomes = ada.outcomes()
    assert outcomes[forged] == "failed"
    assert outcomes[delivered] == "delivered"
    assert len(list_refusals(store)) == 3
    letters = store.mail.list(mailbox=f"session:{ada.session}").items
    assert [letter.body["reason"] for letter in letters if "undelivered" in letter.body], (
        "the agent is notified"
    )


def test_destination_changes_reach_the_sandbox_at_once(conversation: SandboxConversation) -> None:
    conversation.chat.says("hello", place="other")
    conversation.chat.says("hello", thread="t")
    ada = conversation.begin()

    def list_names() -> list[str]:
        with ada.files.reading() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM destinations")]

    assert {*list_names()} == {"room", "other"}
    conversation.store.destinations.revoke("ada", "other")
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert list_names() == ["room"]


def test_default_reply_address_is_that_of_the_message(conversation: SandboxConversation) -> None:
    conversation.chat.says("hello", thread="t7")
    ada = conversation.begin()
    with ada.files.reading() as connection:
        routing = connection.execute("SELECT * FROM session_routing").fetchall()
    assert routing == [(1, "fake", "room", "t7")]
    ada.answer("in the thread")
    conversation.end(ada)
    assert conversation.chat.platform.shown == [("room", "t7", "in the thread")]


def test_edit_and_reaction_are_limited_to_own_conversation(
    conversation: SandboxConversation,
) -> None:
    message = conversation.chat.says("hello")
    ada = conversation.begin()
    answer_id = ada.say("teh answer")
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    conversation.chat.deliver()
    ada.say("the answer", operation="edit", message=answer_id)
    ada.say("+1", operation="react", message=ada.pending()[0]["id"])
    ada.say("x", operation="edit", message="out-unknown")
    ada.say("x", operation="explode", message=answer_id)
    result = conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert (result.ingested, result.refused) == (2, 2)
    sent = [
        sent_message
        for sent_message in conversation.store.messages.list(limit=20).items
        if sent_message.direction == "out"
    ]
    assert {(sent_message.kind, sent_message.text) for sent_message in sent} >= {
        ("edit", "the answer"),
        ("reaction", "+1"),
    }
    reaction = next(sent_message for sent_message in sent if sent_message.kind == "reaction")
    assert reaction.reply_to == message.platform_ids[0]


# -- questions and the host -----------------------------------------------------------------------


def test_question_from_sandbox_gets_its_answer_as_a_row(conversation: SandboxConversation) -> None:
    conversation.chat.says("deploy?", direct=True)
    ada = conversation.begin()
    with ada.files.writing() as connection:
        content = {"type": "ask_question", "question": "Really?", "options": ["yes", "no"]}
        id, _ = ada.files.put(connection, "chat", content)
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    (question,) = conversation.store.questions.list(all=True).items
    assert (question.text, question.options, question.asker) == (
        "Really?",
        ["yes", "no"],
        "agent:ada",
    )
    conversation.store.questions.answer(question.id, "yes", by="user:olga")
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    (row,) = [row for row in ada.files.pending() if row["kind"] == "system"]
    assert row["content"]["questionId"] == id
    assert row["content"]["answer"] == "yes"
    ada.write("INSERT INTO processing_ack VALUES (?, 'completed', 't')", question.id)
    ada.answer("deployed")
    conversation.end(ada)
    conversation.store.internal.chat.run_upkeep()
    letters = conversation.store.mail.list(mailbox=f"session:{ada.session}").items
    assert letters == [], "the answer was acknowledged"


def test_answer_after_a_crash_is_given_to_the_next_run(
    conversation: SandboxConversation, clock: ManualClock
) -> None:
    conversation.chat.says("deploy?", direct=True)
    ada = conversation.begin()
    with ada.files.writing() as connection:
        ada.files.put(connection, "chat", {"type": "ask_question", "question": "Really?"})
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    conversation.store.internal.chat.run_upkeep()
    (question,) = conversation.store.questions.list(all=True).items
    conversation.store.questions.answer(question.id, "yes", by="user:olga")
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    ada.answer("later")
    conversation.end(ada)
    conversation.store.internal.chat.run_upkeep()
    next_run = conversation.begin()
    assert "Really?" in next_run.prompt()
    assert "yes" in next_run.prompt()


def test_host_sets_timers_and_rejects_unknown_actions(
    conversation: SandboxConversation,
) -> None:
    conversation.chat.says("hello")
    ada = conversation.begin()
    ada.say("look again", kind="system", action="timer_set", in_seconds=60)
    for action in (
        "create_agent",
        "install_packages",
        "rm -rf",
    ):  # create_agent without its arguments
        ada.say("x", kind="system", action=action)
    ada.say("x", kind="webhook")
    result = conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert (result.ingested, result.refused) == (1, 4)
    (timer,) = conversation.store.timers.list().items
    assert timer.mailbox == f"session:{ada.session}"


def test_letter_from_sandbox_has_the_agent_as_sender(conversation: SandboxConversation) -> None:
    ben = conversation.store.agents.create("ben", provider="scripted")
    conversation.chat.says("hello")
    ada = conversation.begin()
    ada.say("help me", address=("agent", ben.id, None))
    ada.say("hello", address=("agent", "agt_unknown", None))
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).refused == 1
    (letter,) = conversation.store.mail.list(mailbox="agent:ben").items
    assert (letter.body, letter.sender) == ("help me", "agent:ada")


def test_letter_to_a_sandboxed_agent_is_answered(conversation: SandboxConversation) -> None:
    conversation.store.agents.create("ben", provider="scripted")
    letter = conversation.store.mail.write("ben", "how many?", to="ada", wake=True)
    ada = conversation.begin()
    assert "how many?" in ada.prompt()
    ada.answer("seven")
    conversation.end(ada)
    assert conversation.store.mail.get(letter.id).state == "done"
    (answer,) = conversation.store.mail.list(mailbox="agent:ben").items
    assert (answer.body, answer.sender) == ("seven", "agent:ada")
    assert conversation.shown() == []
    assert list_refusals(conversation.store) == []


# -- hostile agents -------------------------------------------------------------------------------


def begin_turn(conversation: SandboxConversation) -> FakeSandboxAgent:
    conversation.chat.says("hello")
    return conversation.begin()


FORGED = [
    ("even", 8, {"text": "x"}, {}),
    ("null", None, {"text": "x"}, {}),
    ("large", 1 << 62, {"text": "x"}, {}),
    ("string", "seven", {"text": "x"}, {}),
    ("json", 9, "{not json", {}),
    ("list", 9, "[1, 2]", {}),
    ("deep", 9, "[" * 100_000, {}),
    ("types", 9, {"text": 7}, {}),
    ("nul", 9, '{"text": "a\\u0000b"}', {}),
    ("surrogate", 9, '{"text": "\\ud800"}', {}),
    ("empty", 9, {"text": ""}, {}),
    ("long", 9, {"text": "x" * 1_000_000}, {"platform_id": "p" * 500, "channel_type": "fake"}),
    ("options", 9, {"question": "q", "type": "ask_question", "options": ["x"] * 5_000}, {}),
    ("agent", 9, {"text": "x"}, {"channel_type": "agent", "platform_id": "' OR 1=1 --"}),
    ("unknown", 9, {"text": "x", "operation": "edit", "message": "let_99999999999999999999.1"}, {}),
    ("blob", 9, b"\x00\xff", {}),
]


@pytest.mark.parametrize(("id", "seq", "content", "more"), FORGED, ids=[row[0] for row in FORGED])
def test_forged_row_is_rejected_and_valid_rows_are_ingested(
    conversation: SandboxConversation, id: str, seq: object, content: object, more: dict[str, str]
) -> None:
    ada = begin_turn(conversation)
    ada.say("valid")
    if isinstance(content, bytes):
        ada.forge(id, seq)
        ada.write("UPDATE messages_out SET content = ? WHERE id = ?", content, id)
    else:
        ada.forge(id, seq, content, **more)
    for _ in range(2):
        conversation.store.internal.chat.sync_sandbox(ada.run.id)
    exhausts_numbers = seq in (1 << 62, "seven")
    if not exhausts_numbers:  # no valid number is left for the answer
        ada.answer("the end")
    conversation.end(ada)
    assert conversation.shown() == ["valid"] if exhausts_numbers else ["valid", "the end"]
    assert len(list_refusals(conversation.store)) == 1
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert ada.outcomes()[id] == "failed"
    check_store(conversation.store)


def test_repeated_outbound_id_is_the_same_message(conversation: SandboxConversation) -> None:
    ada = begin_turn(conversation)
    id = ada.say("once")
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    ada.write("DELETE FROM messages_out")
    ada.forge(id, 9, {"text": "twice"})
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    conversation.chat.deliver()
    assert conversation.shown() == ["once"]


def test_row_with_a_used_number_is_rejected_with_reason(conversation: SandboxConversation) -> None:
    ada = begin_turn(conversation)
    ada.forge("a", 9)
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    ada.forge("b", 5, {"text": "reused number"})
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    conversation.chat.deliver()
    assert conversation.shown() == ["forged"]
    assert list_refusals(conversation.store) == ["its number was used before"]
    assert ada.outcomes()["b"] == "failed"


def test_acknowledgement_of_a_foreign_letter_is_ignored(conversation: SandboxConversation) -> None:
    foreign_letter = send_letter(conversation, "for tom", place="other")
    own_letter = send_letter(conversation, "hello")
    ada = conversation.begin()
    ids = [f"{foreign_letter}.1", f"{own_letter}.9", own_letter, "let_1", "qst_x", "' OR 1"]
    for id in {*ids} - {row["id"] for row in ada.pending()}:
        ada.write("INSERT INTO processing_ack VALUES (?, 'completed', 't')", id)
    states = {conversation.store.mail.get(id).state for id in (foreign_letter, own_letter)}
    conversation.end(ada)
    assert (
        {conversation.store.mail.get(id).state for id in (foreign_letter, own_letter)}
        == states
        == {"waiting"}
    )


@pytest.mark.parametrize("fault", ["rubbish", "pipe", "link", "trigger", "folder"])
def test_invalid_file_is_quarantined_and_letter_retried(
    conversation: SandboxConversation, clock: ManualClock, tmp_path: Path, fault: str
) -> None:
    conversation.store.alerts.add(["undelivered"], target_kind="mailbox", target="user:operator")
    letter = send_letter(conversation, "hello")
    ada = conversation.begin()
    ada.answer("lost")
    path = ada.folder.outbound
    if fault == "trigger":
        ada.write("CREATE TRIGGER t AFTER INSERT ON processing_ack BEGIN SELECT 1; END")
    else:
        os.unlink(path)
        {
            "rubbish": lambda: Path(path).write_bytes(b"x" * 9_000),
            "pipe": lambda: os.mkfifo(path),
            "link": lambda: os.symlink(tmp_path / "target", path),
            "folder": lambda: os.mkdir(path),
        }[fault]()
    conversation.end(ada)
    retried = conversation.store.mail.get(letter)
    assert retried.state == "waiting"
    assert "rejected" in str(retried.last_error)
    assert len(list_refusals(conversation.store)) == 1
    assert len(conversation.store.mail.list(mailbox="user:operator").items) == 1
    clock.advance(6 * SECOND)
    next_run = conversation.begin()
    next_run.answer("valid")
    conversation.end(next_run)
    assert conversation.shown() == ["valid"]
    check_store(conversation.store)


@pytest.mark.parametrize("lost_part", ["in", "out", "all"])
def test_lost_file_loses_no_letter_and_duplicates_no_answer(
    conversation: SandboxConversation, clock: ManualClock, lost_part: str
) -> None:
    for n in range(2):
        conversation.chat.says(f"say {n}", direct=True)
        ada = conversation.begin()
        ada.answer(f"answer {n}")
        conversation.end(ada)
    letter = send_letter(conversation, "say 2", direct=True)
    ada = conversation.begin()
    shutil.rmtree(
        {"in": ada.folder.inside, "out": ada.folder.outside}.get(lost_part, ada.folder.top)
    )
    conversation.end(ada, "die")
    assert conversation.store.mail.get(letter).state == "waiting"
    clock.advance(6 * SECOND)
    ada = conversation.begin()
    assert [row["content"]["original_text"] for row in ada.pending()] == ["say 2"]
    ada.answer("answer 2")
    conversation.end(ada)
    assert conversation.shown() == ["answer 0", "answer 1", "answer 2"]
    assert list_refusals(conversation.store) == []


def test_concurrent_syncs_ingest_each_message_once(conversation: SandboxConversation) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ada = begin_turn(conversation)
    for n in range(20):
        ada.say(f"{n}")
    with ThreadPoolExecutor(4) as pool:
        counts = [
            *pool.map(
                lambda _: conversation.store.internal.chat.sync_sandbox(ada.run.id).ingested,
                range(4),
            )
        ]
    assert sum(counts) == 20
    conversation.chat.deliver()
    for _ in range(3):
        conversation.chat.deliver()
    assert sorted(conversation.shown(), key=int) == [f"{n}" for n in range(20)]


def test_session_state_of_a_sandbox_is_limited(conversation: SandboxConversation) -> None:
    ada = begin_turn(conversation)
    for n in range(200):
        ada.write("INSERT INTO session_state VALUES (?, ?, 't')", f"k{n:03}", "v" * 7_000)
    ada.answer("x")
    conversation.end(ada)
    state = conversation.store.sessions.state(ada.session)
    assert len(state) == 50
    assert max(len(json.dumps(value)) for value in state.values()) < 5_000


# -- lost machines --------------------------------------------------------------------------------


def lose_machine(
    conversation: SandboxConversation, clock: ManualClock, ada: FakeSandboxAgent
) -> None:
    """End the run and let the lease of its machine expire."""
    conversation.runner.end(ada.run)
    clock.advance(6 * MINUTE)


def test_turn_of_a_lost_machine_is_retried_once_on_another_one(
    conversation: SandboxConversation, clock: ManualClock
) -> None:
    conversation.store.settings.set("chat.max_concurrent", 1)
    letter = send_letter(conversation, direct=True)
    lost_turn = conversation.begin()
    lost_turn.answer("from the first machine")
    conversation.runner.end(lost_turn.run)
    with on_machine("another-machine"):
        assert conversation.store.internal.chat.finish_turns() == [], "the machine may return"
        clock.advance(6 * MINUTE)
        assert len(conversation.store.internal.chat.finish_turns()) == 1
        assert "is gone" in str(conversation.store.mail.get(letter).last_error)
        clock.advance(2 * MINUTE)
        backup = shutil.move(lost_turn.folder.top, f"{lost_turn.folder.top}-aside")
        ada = conversation.begin()
        assert (ada.run.host, ada.run.session_id) == ("another-machine", lost_turn.session)
        ada.answer("from the other")
        conversation.end(ada)
    assert conversation.shown() == ["from the other"]
    assert conversation.store.mail.get(letter).state == "done"
    # The first machine returns with its own files: its unsent answer is not sent.
    shutil.rmtree(ada.folder.top)
    shutil.move(backup, lost_turn.folder.top)
    assert conversation.store.internal.chat.finish_turns(local=True) == []
    assert conversation.store.internal.chat.sync_sandbox(lost_turn.run.id).ingested == 0
    conversation.chat.says("and now?", direct=True)
    clock.advance(6 * MINUTE)
    next_run = conversation.begin()
    next_run.answer("after the return")
    conversation.end(next_run)
    assert conversation.shown() == ["from the other", "after the return"]
    check_store(conversation.store)


def test_live_machine_keeps_its_turn(conversation: SandboxConversation, clock: ManualClock) -> None:
    conversation.chat.says("hello")
    ada = conversation.begin()
    ada.answer("hi ann")
    lose_machine(conversation, clock, ada)
    conversation.store.internal.nodes.join(process.host(), "boot", owner="d")
    with on_machine("another-machine"):
        assert conversation.store.internal.chat.finish_turns() == []
    conversation.store.internal.chat.finish_turns(local=True)
    conversation.chat.deliver()
    assert conversation.shown() == ["hi ann"]


def test_message_sent_before_machine_loss_counts_as_the_answer(
    conversation: SandboxConversation, clock: ManualClock
) -> None:
    letter = send_letter(conversation)
    ada = conversation.begin()
    ada.answer("hi ann")
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    lose_machine(conversation, clock, ada)
    with on_machine("another-machine"):
        conversation.store.internal.chat.finish_turns()
        conversation.chat.deliver()
        assert conversation.store.internal.chat.start_turns() == []
    assert conversation.store.mail.get(letter).state == "done"
    answer, notice = conversation.shown()
    assert (answer, "may be incomplete" in notice) == ("hi ann", True)


def test_run_queued_for_a_lost_machine_returns_its_turn(
    conversation: SandboxConversation, clock: ManualClock
) -> None:
    letter = send_letter(conversation)
    (queued,) = conversation.store.internal.chat.start_turns()
    with on_machine("another-machine"):
        assert conversation.store.internal.chat.finish_turns() == []
        clock.advance(6 * MINUTE)
        assert len(conversation.store.internal.chat.finish_turns()) == 1
        assert conversation.store.runs.get(queued.id).state == "cancelled"
        clock.advance(2 * MINUTE)
        ada = conversation.begin()
        ada.answer("hi ann")
        conversation.end(ada)
    assert conversation.store.mail.get(letter).state == "done"
    assert conversation.shown() == ["hi ann"]


# -- threads and answers ---------------------------------------------------------------------------


def test_sandboxed_agent_sends_to_a_named_thread(
    conversation: SandboxConversation,
) -> None:
    conversation.chat.says("hello", thread="t1")
    ada = conversation.begin()
    ada.say("in another thread", address=("fake", "room", "t2"))
    ada.say("in this thread")
    ada.answer("done")
    conversation.end(ada)
    assert conversation.chat.platform.shown == [
        ("room", "t2", "in another thread"),
        ("room", "t1", "in this thread"),
        ("room", "t1", "done"),
    ]


def test_sandboxed_agent_answers_each_message_at_its_origin(
    conversation: SandboxConversation,
) -> None:
    conversation.chat.says("one", thread="t1")
    ada = conversation.begin()
    (first_row,) = ada.pending()
    ada.answer("first")
    conversation.end(ada)
    conversation.chat.says("two", thread="t2")
    ada = conversation.begin()
    ada.say("one more thing", in_reply_to=first_row["id"])
    ada.answer("second")
    conversation.end(ada)
    assert ("room", "t1", "one more thing") in conversation.chat.platform.shown
    (sent,) = [
        message for message in conversation.chat.platform.taken if message.text == "one more thing"
    ]
    assert sent.reply_to == "p-e1"


def test_reply_to_a_message_not_given_is_rejected(conversation: SandboxConversation) -> None:
    conversation.chat.says("hello")
    foreign = conversation.store.mail.put("agent:eve", "not for ada")
    ada = conversation.begin()
    for id in (f"{foreign.id}.1", "let_999.1", "unknown"):
        ada.say("a secret", in_reply_to=id)
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert [*ada.outcomes().values()] == ["failed"] * 3
    ada.answer("done")
    conversation.end(ada)
    assert conversation.shown() == ["done"]
