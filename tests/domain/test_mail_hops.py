"""The hop limit: every way in which agents can wake a session counts as a hop."""

from collections.abc import Callable
from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.runs.model import Run
from corral.kernel.clock import HOUR, MINUTE, ManualClock
from corral.kernel.errors import Refused
from tests.support.fake_channels import Runner
from tests.support.store import list_events

pytestmark = pytest.mark.usefixtures("fake_channels")

LIMIT = 4
MAX_TURNS = 15

Act = Callable[[Corral, Run, str], object]


@pytest.fixture
def runner(store: Corral) -> Runner:
    for name in ("ada", "ben"):
        store.agents.create(name, provider="scripted")
    store.settings.set("mail.max_hops", LIMIT)
    return Runner(store)


def count_turns_until_idle(
    store: Corral,
    runner: Runner,
    clock: ManualClock,
    act: Act,
    *,
    after_turn: Callable[[], object] = lambda: None,
) -> int:
    """Count the turns of a session in which every turn wakes the session again."""
    mailbox = store.mail.write("ada", "go", to="ada", wake=True).mailbox
    for turns in range(MAX_TURNS):
        if not store.internal.chat.start_turns():
            return turns
        run = runner.begin()
        run_store = store.as_actor(f"run:{run.id}", run_id=run.id)
        try:
            act(run_store, run, mailbox)
        except Refused:
            pass
        finally:
            runner.end(run)
            store.internal.chat.finish_turns()
        after_turn()
        clock.advance(10 * MINUTE)
        store.schedules.fire_due()
        store.internal.questions.expire_due()
        store.delegations.expire_due()
    return MAX_TURNS


def test_timer_set_by_a_run_continues_its_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(run_store: Corral, run: Run, mailbox: str) -> None:
        run_store.timers.set(mailbox, "again", delay_ms=MINUTE)

    assert count_turns_until_idle(store, runner, clock, act) == LIMIT


def test_timer_beyond_the_hop_limit_is_refused(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    mailbox = store.mail.write("ada", "go", to="ada", wake=True).mailbox
    store.internal.chat.start_turns()
    run_store = store.as_actor("run:x", run_id=runner.begin().id)
    store.settings.set("mail.max_hops", 1)
    with pytest.raises(Refused, match="limit of 1 letters between agents"):
        run_store.timers.set(mailbox, "again", delay_ms=MINUTE)
    with pytest.raises(Refused):
        run_store.schedules.create(mailbox, "again", every_ms=MINUTE)
    with pytest.raises(Refused):
        run_store.schedules.prompt("ada", "again", delay_ms=MINUTE)
    store.timers.set(mailbox, "of a person", delay_ms=MINUTE)


def test_schedule_created_or_edited_by_a_run_continues_its_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule: list[str] = []

    def act(run_store: Corral, run: Run, mailbox: str) -> None:
        if not schedule:
            schedule.append(run_store.schedules.create(mailbox, "again", every_ms=8 * MINUTE).id)
        else:
            run_store.schedules.edit(schedule[0], every_ms=8 * MINUTE)

    assert count_turns_until_idle(store, runner, clock, act) == MAX_TURNS, (
        "the rule of the schedule repeats it"
    )
    (schedule,) = store.schedules.list().items
    run_store = store.as_actor("run:x", run_id=store.runs.list(limit=1).items[0].id)
    with pytest.raises(Refused):
        run_store.schedules.edit(schedule.id, every_ms=HOUR)


def test_schedule_run_by_a_run_continues_the_chain_of_that_run(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(run_store: Corral, run: Run, mailbox: str) -> None:
        if not store.schedules.list().items:
            store.schedules.create(mailbox, "again", cron="0 0 1 1 *")
        run_store.schedules.run(store.schedules.list().items[0].id)

    assert count_turns_until_idle(store, runner, clock, act) == LIMIT


def test_alert_about_a_run_continues_its_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(run_store: Corral, run: Run, mailbox: str) -> None:
        if not store.alerts.list().items:
            run_store.alerts.add(["finished"], target_kind="mailbox", target=mailbox)

    assert count_turns_until_idle(store, runner, clock, act) == LIMIT
    assert "agent.hop_limit" in list_events(store)


@pytest.mark.parametrize("by", ["fallback", "agent"])
def test_automatic_answer_continues_the_chain_of_the_question(
    store: Corral, runner: Runner, clock: ManualClock, by: str
) -> None:
    def act(run_store: Corral, run: Run, mailbox: str) -> None:
        run_store.questions.ask(
            "again?",
            options=["yes"],
            asker=mailbox,
            answerers=["agent:ben"],
            deadline_ms=MINUTE,
            fallback="yes",
        )

    def answer() -> None:
        if by == "agent":
            for question in store.questions.list().items:
                store.questions.answer(question.id, "yes", by="agent:ben")

    assert count_turns_until_idle(store, runner, clock, act, after_turn=answer) == LIMIT


def test_answer_of_a_person_begins_a_new_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(run_store: Corral, run: Run, mailbox: str) -> None:
        run_store.questions.ask("again?", options=["yes"], asker=mailbox)

    def answer() -> None:
        for question in store.questions.list().items:
            store.questions.answer(question.id, "yes", by="user:ann")

    assert count_turns_until_idle(store, runner, clock, act, after_turn=answer) == MAX_TURNS


def test_expired_delegation_continues_the_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(run_store: Corral, run: Run, mailbox: str) -> None:
        run_store.delegations.delegate(
            "ben", "do it", sender=mailbox, deadline_at=clock.now() + MINUTE
        )

    assert count_turns_until_idle(store, runner, clock, act) == LIMIT


def test_text_sent_by_a_run_to_a_session_continues_its_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(run_store: Corral, run: Run, mailbox: str) -> None:
        run_store.runs.send(run.id, "again")

    assert count_turns_until_idle(store, runner, clock, act) == LIMIT


def test_post_continues_the_chain_and_is_refused_beyond_the_limit(
    store: Corral, runner: Runner, tmp_path: Path
) -> None:
    store.groups.create("team", members=["agent:ada", "agent:ben"])
    runs = {
        name: store.runs.start(command=["true"], project=str(tmp_path)) for name in ("ada", "ben")
    }

    def post(name: str) -> None:
        run_store = store.as_actor(f"agent:{name}", run_id=runs[name].id)
        for letter in run_store.mail.claim(f"agent:{name}", owner=name):
            run_store.mail.ack(letter)
        run_store.groups.post("team", "again")

    for number in range(LIMIT):
        post("ada" if number % 2 == 0 else "ben")
    with pytest.raises(Refused, match=f"limit of {LIMIT} letters between agents"):
        post("ada")
    assert len(store.groups.read("team").items) == LIMIT
    store.groups.join("team", member="user:ann")
    store.groups.post("team", "a person", author="user:ann")


def test_posts_that_a_run_reads_count_as_hops(
    store: Corral, runner: Runner, tmp_path: Path
) -> None:
    store.groups.create("team", members=["agent:ada", "agent:ben"])
    runs = {
        name: store.runs.start(command=["true"], project=str(tmp_path)) for name in ("ada", "ben")
    }
    for number in range(LIMIT + 1):
        name = "ada" if number % 2 == 0 else "ben"
        run_store = store.as_actor(f"agent:{name}", run_id=runs[name].id)
        if number:
            run_store.groups.mark("team", number, member=f"agent:{name}")
        if number == LIMIT:
            with pytest.raises(Refused):
                run_store.groups.post("team", "again")
        else:
            run_store.groups.post("team", "again")
