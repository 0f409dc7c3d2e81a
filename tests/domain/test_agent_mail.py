"""Letters between agents: answered where they were asked, and cut off when they lead nowhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.domain.mail.model import Letter
from corral.domain.runs.model import Run
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Invalid, NotFound, Refused
from tests.support.fake_channels import Chat, Runner
from tests.support.prompt_parser import quotes_in
from tests.support.store import record, refuses

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def runner(store: Corral) -> Runner:
    for name in ("ada", "ben"):
        store.agents.create(name, provider="scripted")
    return Runner(store)


def read(store: Corral, letter: Letter, run: str) -> str:
    (link,) = store.mail.read_by([letter.id], run=run)
    return link.correlation_id


def test_reply_goes_to_the_asker_with_the_same_correlation(store: Corral, runner: Runner) -> None:
    asked = store.mail.write("ada", "which port?", to="ben", run="run_a")
    assert (asked.mailbox, asked.sender) == ("agent:ben", "agent:ada")
    correlation = read(store, asked, "run_b")
    answer = store.mail.write("ben", "8080", reply_to=asked.id, run="run_b")
    assert answer.mailbox == "agent:ada"
    assert read(store, answer, "run_a") == correlation
    other = store.mail.write("ada", "something else", to="ben", run="run_c")
    assert read(store, other, "run_d") != correlation


def test_only_the_recipient_can_reply_to_a_letter(store: Corral, runner: Runner) -> None:
    asked = store.mail.write("ada", "which port?", to="ben")
    store.agents.create("eve", command="cat")
    with refuses(store, Refused):
        store.mail.write("eve", "666", reply_to=asked.id)
    plain = store.mail.put("agent:eve", "hello", sender="user:ann")
    with refuses(store, Refused):
        store.mail.write("eve", "hi", reply_to=plain.id)
    with refuses(store, NotFound):
        store.mail.write("eve", "hi", to="nobody")
    with refuses(store, Invalid):
        store.mail.write("eve", "hi")
    with refuses(store, Refused):
        store.mail.write("eve", "hi", to="place:plc_1")


def test_endless_exchange_is_stopped_and_both_agents_are_notified(
    store: Corral, runner: Runner
) -> None:
    store.settings.set("mail.max_hops", 4)
    letter = store.mail.write("ada", "ping", to="ben", run="run_1")
    for n in range(2, 5):
        run = f"run_{n}"
        read(store, letter, run)
        # Whoever leaves out what it answers gains nothing by it.
        who, other = ("ben", "ada") if n % 2 == 0 else ("ada", "ben")
        letter = store.mail.write(who, "pong", to=other, run=run)
    read(store, letter, "run_5")
    with pytest.raises(Refused) as caught:
        store.mail.write("ada", "ping", reply_to=letter.id, run="run_5")
    assert "limit of 4 letters between agents" in str(caught.value)
    told = [each.body for each in store.mail.list(mailbox="agent:ben").items][-1]
    assert told["reason"].startswith("A further letter from agent:ada")
    assert "agent.hop_limit" in record(store)
    with pytest.raises(Refused):
        store.mail.write("ada", "ping", reply_to=letter.id, run="run_5")
    notices = [
        each
        for each in store.mail.list(mailbox="agent:ben").items
        if isinstance(each.body, dict) and each.body.get("kind") == "undelivered"
    ]
    assert len(notices) == 1, "it is told once"
    assert store.mail.write("ada", "anew", to="ben", run="run_6").mailbox == "agent:ben"


def test_letter_wakes_the_recipient_and_its_reply_wakes_the_asker(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    chat = Chat(store)
    store.wirings.add("ada", channel="fake")
    (route,) = chat.says("ask ben for the port").routes
    (first,) = store.internal.chat.start_turns()
    run = runner.begin()
    store.mail.write(
        "ada", "which port?", to="ben", wake=True, run=first.id, session=route.session_id
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
    assert run.session_id == route.session_id, "in the conversation in which it was asked"
    assert "It is 8080." in (runner.prompt(run) or "")
    runner.end(run, "The port is 8080.")
    store.internal.chat.finish_turns()
    assert store.internal.chat.start_turns() == [], "an answer is not answered by itself"
    chat.deliver()
    assert chat.platform.words() == ["I asked ben.", "The port is 8080."]


def test_hop_limit_notice_wakes_no_agent(store: Corral, runner: Runner) -> None:
    store.settings.set("mail.max_hops", 1)
    first = store.mail.write("ada", "one", to="ben", wake=True)
    store.internal.chat.start_turns()
    run = runner.begin()
    with pytest.raises(Refused):
        store.mail.write("ben", "two", to="ada", wake=True, run=run.id)
    runner.end(run, "done")
    store.internal.chat.finish_turns()
    assert store.internal.chat.start_turns() == []
    assert store.mail.get(first.id).state == "done"


def test_long_running_agent_gets_letters_and_its_replies_are_sent(
    store: Corral, runner: Runner
) -> None:
    store.settings.set("mail.max_hops", 3)
    store.mail.write("ada", "which port?", to="ben", wake=True, run="run_a")
    store.internal.chat.start_turns()
    run = runner.begin()
    later = store.mail.write("ada", "and which host?", to="ben", wake=True, run="run_a")
    given = store.messages.next(run.id, answer="8080")
    assert given is not None
    assert given.letters == [later.id]
    assert "and which host?" in given.text
    assert store.messages.next(run.id, after=later.id, answer="localhost") is None
    answers = store.mail.list(mailbox="agent:ada").items
    assert [(each.body, each.sender) for each in answers] == [
        ("8080", "agent:ben"),
        ("localhost", "agent:ben"),
    ]
    runner.end(run, "good night")
    store.internal.chat.finish_turns()
    assert len(store.mail.list(mailbox="agent:ada").items) == 2, "what it ends with is no answer"


def test_hops_are_counted_in_a_long_running_agent(store: Corral, runner: Runner) -> None:
    store.settings.set("mail.max_hops", 2)
    store.mail.write("ada", "one", to="ben", wake=True, run="run_a")
    store.internal.chat.start_turns()
    run = runner.begin()
    first = store.mail.write("ada", "go on", to="ben", run="run_a")
    read(store, first, "run_b")
    store.mail.write("ada", "far along", to="ben", wake=True, run="run_b")
    assert store.messages.next(run.id, answer="done") is not None
    with pytest.raises(Refused, match="limit of 2 letters between agents"):
        store.mail.write("ben", "further", to="ada", run=run.id)


def test_letter_chain_is_kept_while_the_letter_waits(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    done = store.mail.write("ada", "which host?", to="ben", run="run_a")
    store.mail.ack(store.mail.claim("agent:ben", owner="ben")[0])
    asked = store.mail.write("ada", "which port?", to="ben", run="run_a")
    clock.advance(40 * DAY)
    counted = {each.table: each.rows for each in store.db.prune(dry_run=True)}
    pruned = {each.table: each.rows for each in store.db.prune()}
    assert counted["letter_chains"] == pruned["letter_chains"] == 1
    with pytest.raises(NotFound):
        store.mail.get(done.id)
    correlation = read(store, asked, "run_b")
    answer = store.mail.write("ben", "8080", reply_to=asked.id, run="run_b")
    assert read(store, answer, "run_a") == correlation
    clock.advance(40 * DAY)
    store.mail.ack(store.mail.claim("agent:ben", owner="ben")[0])
    store.mail.ack(store.mail.claim("agent:ada", owner="ada")[0])
    store.mail.put("queue:x", "the newest letter stays")
    clock.advance(40 * DAY)
    assert {each.table: each.rows for each in store.db.prune()}["letter_chains"] == 2


# -- every way into a session counts ---------------------------------------------------------------


Put = Callable[[Run, str], object]


def ping_pong(store: Corral, runner: Runner, monkeypatch: pytest.MonkeyPatch, put: Put) -> int:
    """Two agents whose every turn puts a letter into the other's session; how many turns it took
    until one was refused."""
    talks = [store.mail.write(who, "go", to=who, wake=True).mailbox for who in ("ada", "ben")]
    store.mail.drop(store.mail.list(mailbox=talks[1]).items[0].id)
    for turns in range(1, 60):
        (queued,) = store.internal.chat.start_turns()
        run = runner.begin()
        assert run.id == queued.id
        there = talks[1] if f"session:{run.session_id}" == talks[0] else talks[0]
        monkeypatch.setenv("CORRAL_RUN", run.id)
        try:
            put(run, there)
        except Refused:
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
        with corral.open(store.db.url, clock=store._database.clock) as inside:
            inside.mail.put(mailbox, "again")

    assert ping_pong(store, runner, monkeypatch, put) == 5
    assert store.internal.chat.start_turns() == [], "the notice wakes no agent"
    assert "agent.hop_limit" in record(store)


def test_omitting_the_run_does_not_reset_the_hops(
    store: Corral, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("mail.max_hops", 5)

    def write(run: Run, mailbox: str) -> None:
        name = store.agents.get(str(run.agent_id)).name
        store.mail.write(name, "again", to=mailbox)

    assert ping_pong(store, runner, monkeypatch, write) == 5


def test_child_run_continues_the_chain_of_its_parent(
    store: Corral, runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.settings.set("mail.max_hops", 5)

    def put(run: Run, mailbox: str) -> None:
        child = store.runs.start(command=["true"], project=str(tmp_path))
        assert child.parent_id == run.id
        store.runs.stop(child.id)
        store.as_actor("run:child", run_id=child.id).mail.put(mailbox, "again")

    assert ping_pong(store, runner, monkeypatch, put) == 5


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

    assert ping_pong(store, runner, monkeypatch, put) == 5


def test_letters_of_people_are_not_counted(store: Corral, runner: Runner) -> None:
    store.settings.set("mail.max_hops", 1)
    mailbox = store.mail.write("ada", "go", to="ben", wake=True).mailbox
    for number in range(5):
        store.internal.chat.start_turns()
        runner.end(runner.begin())
        store.internal.chat.finish_turns()
        store.mail.put(mailbox, f"message {number}")
    assert len(store.internal.chat.start_turns()) == 1
