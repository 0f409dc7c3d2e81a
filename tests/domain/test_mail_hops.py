"""The hop limit: no way of waking a session lets agents continue without end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.runs.model import Run
from corral.kernel.clock import HOUR, MINUTE, ManualClock
from corral.kernel.errors import Refused
from tests.support.fake_channels import Runner
from tests.support.store import record

pytestmark = pytest.mark.usefixtures("fake_channels")

LIMIT = 4
MOST = 15

Act = Callable[[Corral, Run, str], object]


@pytest.fixture
def runner(store: Corral) -> Runner:
    for name in ("ada", "ben"):
        store.agents.create(name, provider="scripted")
    store.settings.set("mail.max_hops", LIMIT)
    return Runner(store)


def turns_until_silent(
    store: Corral,
    runner: Runner,
    clock: ManualClock,
    act: Act,
    *,
    later: Callable[[], object] = lambda: None,
) -> int:
    """Count the turns of a session in which every turn wakes the session again."""
    mailbox = store.mail.write("ada", "go", to="ada", wake=True).mailbox
    for turns in range(MOST):
        if not store.internal.chat.start_turns():
            return turns
        run = runner.begin()
        inside = store.as_actor(f"run:{run.id}", run_id=run.id)
        try:
            act(inside, run, mailbox)
        except Refused:
            pass
        finally:
            runner.end(run)
            store.internal.chat.finish_turns()
        later()
        clock.advance(10 * MINUTE)
        store.schedules.fire_due()
        store.internal.questions.expire_due()
        store.delegations.expire_due()
    return MOST


def test_timer_set_by_a_run_continues_its_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(inside: Corral, run: Run, mailbox: str) -> None:
        inside.timers.set(mailbox, "again", delay_ms=MINUTE)

    assert turns_until_silent(store, runner, clock, act) == LIMIT


def test_timer_beyond_the_hop_limit_is_refused(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    mailbox = store.mail.write("ada", "go", to="ada", wake=True).mailbox
    store.internal.chat.start_turns()
    inside = store.as_actor("run:x", run_id=runner.begin().id)
    store.settings.set("mail.max_hops", 1)
    with pytest.raises(Refused, match="limit of 1 letters between agents"):
        inside.timers.set(mailbox, "again", delay_ms=MINUTE)
    with pytest.raises(Refused):
        inside.schedules.create(mailbox, "again", every_ms=MINUTE)
    with pytest.raises(Refused):
        inside.schedules.task("ada", "again", delay_ms=MINUTE)
    store.timers.set(mailbox, "of a person", delay_ms=MINUTE)


def test_schedule_created_or_edited_by_a_run_continues_its_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule: list[str] = []

    def act(inside: Corral, run: Run, mailbox: str) -> None:
        if not schedule:
            schedule.append(inside.schedules.create(mailbox, "again", every_ms=8 * MINUTE).id)
        else:
            inside.schedules.edit(schedule[0], every_ms=8 * MINUTE)

    assert turns_until_silent(store, runner, clock, act) == MOST, (
        "the rule of the schedule repeats it"
    )
    (schedule,) = store.schedules.list().items
    inside = store.as_actor("run:x", run_id=store.runs.list(limit=1).items[0].id)
    with pytest.raises(Refused):
        inside.schedules.edit(schedule.id, every_ms=HOUR)


def test_schedule_run_by_a_run_continues_the_chain_of_that_run(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(inside: Corral, run: Run, mailbox: str) -> None:
        if not store.schedules.list().items:
            store.schedules.create(mailbox, "again", cron="0 0 1 1 *")
        inside.schedules.run(store.schedules.list().items[0].id)

    assert turns_until_silent(store, runner, clock, act) == LIMIT


def test_alert_about_a_run_continues_its_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(inside: Corral, run: Run, mailbox: str) -> None:
        if not store.alerts.list().items:
            inside.alerts.add(["finished"], target_kind="mailbox", target=mailbox)

    assert turns_until_silent(store, runner, clock, act) == LIMIT
    assert "agent.hop_limit" in record(store)


@pytest.mark.parametrize("by", ["fallback", "agent"])
def test_automatic_answer_continues_the_chain_of_the_question(
    store: Corral, runner: Runner, clock: ManualClock, by: str
) -> None:
    def act(inside: Corral, run: Run, mailbox: str) -> None:
        inside.questions.ask(
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

    assert turns_until_silent(store, runner, clock, act, later=answer) == LIMIT


def test_answer_of_a_person_begins_a_new_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(inside: Corral, run: Run, mailbox: str) -> None:
        inside.questions.ask("again?", options=["yes"], asker=mailbox)

    def answer() -> None:
        for question in store.questions.list().items:
            store.questions.answer(question.id, "yes", by="user:ann")

    assert turns_until_silent(store, runner, clock, act, later=answer) == MOST


def test_expired_delegation_continues_the_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(inside: Corral, run: Run, mailbox: str) -> None:
        inside.delegations.delegate(
            "ben", "do it", sender=mailbox, deadline_at=clock.now() + MINUTE
        )

    assert turns_until_silent(store, runner, clock, act) == LIMIT


def test_text_sent_by_a_run_to_a_session_continues_its_chain(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    def act(inside: Corral, run: Run, mailbox: str) -> None:
        inside.runs.send(run.id, "again")

    assert turns_until_silent(store, runner, clock, act) == LIMIT


def test_post_continues_the_chain_and_is_refused_beyond_the_limit(
    store: Corral, runner: Runner, tmp_path: Path
) -> None:
    store.groups.create("team", members=["agent:ada", "agent:ben"])
    speakers = {
        name: store.runs.start(command=["true"], project=str(tmp_path)) for name in ("ada", "ben")
    }

    def post(name: str) -> None:
        inside = store.as_actor(f"agent:{name}", run_id=speakers[name].id)
        for letter in inside.mail.claim(f"agent:{name}", owner=name):
            inside.mail.ack(letter)
        inside.groups.post("team", "again")

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
    speakers = {
        name: store.runs.start(command=["true"], project=str(tmp_path)) for name in ("ada", "ben")
    }
    for number in range(LIMIT + 1):
        name = "ada" if number % 2 == 0 else "ben"
        inside = store.as_actor(f"agent:{name}", run_id=speakers[name].id)
        if number:
            inside.groups.mark("team", number, member=f"agent:{name}")
        if number == LIMIT:
            with pytest.raises(Refused):
                inside.groups.post("team", "again")
        else:
            inside.groups.post("team", "again")
