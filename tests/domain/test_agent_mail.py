"""Letters between agents: replies, wake-ups and the hop limit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.domain.mail.model import Letter
from corral.domain.runs.model import Run
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Invalid, NotFound, Refused
from tests.support.fake_channels import Chat, Runner
from tests.support.grouped_cases import each_case
from tests.support.prompt_parser import quotes_in
from tests.support.store import list_events, raises_without_change

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def runner(store: Corral) -> Runner:
    for name in ("ada", "ben"):
        store.agents.create(name, provider="scripted")
    return Runner(store)


def read_letter(store: Corral, letter: Letter, run: str) -> str:
    (chain,) = store.mail.read_by([letter.id], run=run)
    return chain.correlation_id


def test_reply_goes_to_the_asker_with_the_same_correlation(store: Corral, runner: Runner) -> None:
    question = store.mail.write("ada", "which port?", to="ben", run="run_a")
    assert (question.mailbox, question.sender) == ("agent:ben", "agent:ada")
    correlation = read_letter(store, question, "run_b")
    answer = store.mail.write("ben", "8080", reply_to=question.id, run="run_b")
    assert answer.mailbox == "agent:ada"
    assert read_letter(store, answer, "run_a") == correlation
    unrelated = store.mail.write("ada", "unrelated", to="ben", run="run_c")
    assert read_letter(store, unrelated, "run_d") != correlation


def test_only_the_recipient_can_reply_to_a_letter(store: Corral, runner: Runner) -> None:
    question = store.mail.write("ada", "which port?", to="ben")
    store.agents.create("eve", command="cat")
    with raises_without_change(store, Refused):
        store.mail.write("eve", "666", reply_to=question.id)
    letter = store.mail.put("agent:eve", "hello", sender="user:ann")
    with raises_without_change(store, Refused):
        store.mail.write("eve", "hi", reply_to=letter.id)
    with raises_without_change(store, NotFound):
        store.mail.write("eve", "hi", to="unknown")
    with raises_without_change(store, Invalid):
        store.mail.write("eve", "hi")
    with raises_without_change(store, Refused):
        store.mail.write("eve", "hi", to="place:plc_1")


def test_endless_exchange_is_stopped_and_both_agents_are_notified(
    store: Corral, runner: Runner
) -> None:
    store.settings.set("mail.max_hops", 4)
    letter = store.mail.write("ada", "ping", to="ben", run="run_1")
    for n in range(2, 5):
        run = f"run_{n}"
        read_letter(store, letter, run)
        # Omitting reply_to does not reset the hops, because the run read the letter.
        sender, recipient = ("ben", "ada") if n % 2 == 0 else ("ada", "ben")
        letter = store.mail.write(sender, "pong", to=recipient, run=run)
    read_letter(store, letter, "run_5")
    with pytest.raises(Refused) as caught:
        store.mail.write("ada", "ping", reply_to=letter.id, run="run_5")
    assert "limit of 4 letters between agents" in str(caught.value)
    notice = [letter.body for letter in store.mail.list(mailbox="agent:ben").items][-1]
    assert notice["reason"].startswith("A further letter from agent:ada")
    assert "agent.hop_limit" in list_events(store)
    with pytest.raises(Refused):
        store.mail.write("ada", "ping", reply_to=letter.id, run="run_5")
    notices = [
        letter_to_ben
        for letter_to_ben in store.mail.list(mailbox="agent:ben").items
        if isinstance(letter_to_ben.body, dict) and letter_to_ben.body.get("kind") == "undelivered"
    ]
    assert len(notices) == 1, "the agent is notified once"
    assert store.mail.write("ada", "new chain", to="ben", run="run_6").mailbox == "agent:ben"


def test_letter_wakes_the_recipient_and_its_reply_wakes_the_asker(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    chat = Chat(store)
    store.wirings.add("ada", channel="fake")
    (route,) = chat.says("ask ben for the port").routes
    (queued,) = store.internal.chat.start_turns()
    run = runner.begin()
    store.mail.write(
        "ada", "which port?", to="ben", wake=True, run=queued.id, session=route.session_id
    )
    runner.end(run, "I asked ben.")
    store.internal.chat.finish_turns()
    store.internal.chat.start_turns()
    run = runner.begin()
    assert "which port?" in (runner.prompt(run) or "")
    assert 'signed "agent:ada"' in quotes_in(runner.prompt(run))[0].source
    runner.end(run, "It is 8080.")
    store.internal.chat.finish_turns()
    store.internal.chat.start_turns()
    run = runner.begin()
    assert run.session_id == route.session_id, "the reply wakes the session of the question"
    assert "It is 8080." in (runner.prompt(run) or "")
    runner.end(run, "The port is 8080.")
    store.internal.chat.finish_turns()
    assert store.internal.chat.start_turns() == [], "a reply is not answered automatically"
    chat.deliver()
    assert chat.platform.words() == ["I asked ben.", "The port is 8080."]


def test_hop_limit_notice_wakes_no_agent(store: Corral, runner: Runner) -> None:
    store.settings.set("mail.max_hops", 1)
    letter = store.mail.write("ada", "one", to="ben", wake=True)
    store.internal.chat.start_turns()
    run = runner.begin()
    with pytest.raises(Refused):
        store.mail.write("ben", "two", to="ada", wake=True, run=run.id)
    runner.end(run, "done")
    store.internal.chat.finish_turns()
    assert store.internal.chat.start_turns() == []
    assert store.mail.get(letter.id).state == "done"


def test_long_running_agent_gets_letters_and_its_replies_are_sent(
    store: Corral, runner: Runner
) -> None:
    store.settings.set("mail.max_hops", 3)
    store.mail.write("ada", "which port?", to="ben", wake=True, run="run_a")
    store.internal.chat.start_turns()
    run = runner.begin()
    second_question = store.mail.write("ada", "and which host?", to="ben", wake=True, run="run_a")
    batch = store.messages.next(run.id, answer="8080")
    assert batch is not None
    assert batch.letters == [second_question.id]
    assert "and which host?" in batch.text
    assert store.messages.next(run.id, after=second_question.id, answer="localhost") is None
    answers = store.mail.list(mailbox="agent:ada").items
    assert [(letter.body, letter.sender) for letter in answers] == [
        ("8080", "agent:ben"),
        ("localhost", "agent:ben"),
    ]
    runner.end(run, "good night")
    store.internal.chat.finish_turns()
    assert len(store.mail.list(mailbox="agent:ada").items) == 2, (
        "the last output of a run is not a reply"
    )


def test_hops_are_counted_in_a_long_running_agent(store: Corral, runner: Runner) -> None:
    store.settings.set("mail.max_hops", 2)
    store.mail.write("ada", "one", to="ben", wake=True, run="run_a")
    store.internal.chat.start_turns()
    run = runner.begin()
    letter = store.mail.write("ada", "go on", to="ben", run="run_a")
    read_letter(store, letter, "run_b")
    store.mail.write("ada", "second hop", to="ben", wake=True, run="run_b")
    assert store.messages.next(run.id, answer="done") is not None
    with pytest.raises(Refused, match="limit of 2 letters between agents"):
        store.mail.write("ben", "further", to="ada", run=run.id)


def test_letter_chain_is_kept_while_the_letter_waits(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    answered = store.mail.write("ada", "which host?", to="ben", run="run_a")
    store.mail.ack(store.mail.claim("agent:ben", owner="ben")[0])
    unanswered = store.mail.write("ada", "which port?", to="ben", run="run_a")
    clock.advance(40 * DAY)
    counts = {result.table: result.rows for result in store.db.prune(dry_run=True)}
    pruned = {result.table: result.rows for result in store.db.prune()}
    assert counts["letter_chains"] == pruned["letter_chains"] == 1
    with pytest.raises(NotFound):
        store.mail.get(answered.id)
    correlation = read_letter(store, unanswered, "run_b")
    answer = store.mail.write("ben", "8080", reply_to=unanswered.id, run="run_b")
    assert read_letter(store, answer, "run_a") == correlation
    clock.advance(40 * DAY)
    store.mail.ack(store.mail.claim("agent:ben", owner="ben")[0])
    store.mail.ack(store.mail.claim("agent:ada", owner="ada")[0])
    store.mail.put("queue:x", "newest")
    clock.advance(40 * DAY)
    assert {result.table: result.rows for result in store.db.prune()}["letter_chains"] == 2


# -- the hop limit of sessions ---------------------------------------------------------------------


@each_case("mailbox", ["agent:ben", "queue:work"])
def test_agent_put_with_a_key_is_retried_after_a_lost_commit(
    store: Corral, monkeypatch: pytest.MonkeyPatch, mailbox: str
) -> None:
    agent_mail = store.as_actor("agent:ada").mail
    write, repeatable_writes = agent_mail._database.write, []

    def record_write(work: Any, *, repeatable: bool = False, **options: Any) -> Any:
        repeatable_writes.append(repeatable)
        return write(work, repeatable=repeatable, **options)

    with monkeypatch.context() as patch:
        patch.setattr(agent_mail._database, "write", record_write)
        agent_mail.put(mailbox, "hello", key="k")
        agent_mail.put(mailbox, "hello")
    assert repeatable_writes == [True, False]


Put = Callable[[Run, str], object]


def count_turns_until_refused(
    store: Corral, runner: Runner, monkeypatch: pytest.MonkeyPatch, put: Put
) -> int:
    """Let two agents put letters into each other's session; return the turns until a refusal."""
    mailboxes = [
        store.mail.write(name, "go", to=name, wake=True).mailbox for name in ("ada", "ben")
    ]
    store.mail.drop(store.mail.list(mailbox=mailboxes[1]).items[0].id)
    for turns in range(1, 60):
        (queued,) = store.internal.chat.start_turns()
        run = runner.begin()
        assert run.id == queued.id
        other_mailbox = (
            mailboxes[1] if f"session:{run.session_id}" == mailboxes[0] else mailboxes[0]
        )
        monkeypatch.setenv("CORRAL_RUN", run.id)
        try:
            put(run, other_mailbox)
        except Refused as error:
            if error.details.get("reason") != "hop_limit":
                raise
            return turns
        finally:
            monkeypatch.delenv("CORRAL_RUN")
            runner.end(run)
            store.internal.chat.finish_turns()
    return 60


def test_letters_put_into_a_session_by_a_run_count_as_hops(
    store: Corral, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("mail.max_hops", 5)

    def put(run: Run, mailbox: str) -> None:
        with corral.open(store.db.url, clock=store._database.clock) as run_store:
            run_store.mail.put(mailbox, "again")

    assert count_turns_until_refused(store, runner, monkeypatch, put) == 5
    assert store.internal.chat.start_turns() == [], "the notice wakes no agent"
    assert "agent.hop_limit" in list_events(store)


def test_omitting_the_run_does_not_reset_the_hops(
    store: Corral, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("mail.max_hops", 5)

    def write(run: Run, mailbox: str) -> None:
        name = store.agents.get(str(run.agent_id)).name
        store.mail.write(name, "again", to=mailbox)

    assert count_turns_until_refused(store, runner, monkeypatch, write) == 5


def test_child_run_continues_the_chain_of_its_parent(
    store: Corral, runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.settings.set("mail.max_hops", 5)

    def put(run: Run, mailbox: str) -> None:
        inside = store.as_actor("run:parent", run_id=run.id)
        child = inside.runs.start(command=["true"], project=str(tmp_path))
        assert child.parent_id == run.id
        store.runs.stop(child.id)
        store.as_actor("run:child", run_id=child.id).mail.put(mailbox, "again")

    assert count_turns_until_refused(store, runner, monkeypatch, put) == 5


def test_letters_without_a_run_count_toward_live_runs(
    store: Corral, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("mail.max_hops", 5)

    def put(run: Run, mailbox: str) -> None:
        monkeypatch.delenv("CORRAL_RUN")
        name = store.agents.get(str(run.agent_id)).name
        try:
            store.as_actor(f"agent:{name}").mail.put(mailbox, "again")
        finally:
            monkeypatch.setenv("CORRAL_RUN", run.id)

    assert count_turns_until_refused(store, runner, monkeypatch, put) == 5


def test_letters_of_people_are_not_counted(store: Corral, runner: Runner) -> None:
    store.settings.set("mail.max_hops", 1)
    mailbox = store.mail.write("ada", "go", to="ben", wake=True).mailbox
    for number in range(5):
        store.internal.chat.start_turns()
        runner.end(runner.begin())
        store.internal.chat.finish_turns()
        store.mail.put(mailbox, f"message {number}")
    assert len(store.internal.chat.start_turns()) == 1
