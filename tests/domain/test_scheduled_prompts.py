"""Scheduled prompts of sessions: scripts, retries, manual runs and edits."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.schedules.model import OccurrenceWithLetter, Schedule, parse_script_result
from corral.domain.sessions import retention
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Held, Invalid, Refused
from tests.support.fake_channels import Chat, Runner
from tests.support.grouped_cases import each_case
from tests.support.prompt_parser import quotes_in, texts_in
from tests.support.store import list_events, raises_without_change, rows, unchanged, write

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def runner(store: Corral) -> Runner:
    store.agents.create("ada", provider="scripted")
    return Runner(store)


def create_daily_prompt(store: Corral, text: str = "report", **options: object) -> Schedule:
    fields = {"cron": "0 9 * * *", "time_zone": "Europe/Berlin", **options}
    return store.schedules.prompt("ada", text, **fields)


def list_occurrences(store: Corral, schedule: Schedule) -> list[OccurrenceWithLetter]:
    return store.schedules.history(schedule.id).items


def fire_next(store: Corral, clock: ManualClock, *, scripts: int = 1) -> None:
    """Advance to the next scheduled time, fire the schedule, and run `scripts` scripts."""
    upcoming = store.schedules.next_at()
    assert upcoming is not None
    clock.at = upcoming
    store.schedules.fire_due()
    for _ in range(scripts):
        store.schedules.run_script(owner="c")


# -- without a script -----------------------------------------------------------------------------


def test_prompt_wakes_its_own_session_and_records_the_outcome(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store)
    fire_next(store, clock)
    (run,) = store.internal.chat.start_turns()
    started = runner.begin()
    assert texts_in(runner.prompt(started)) == ["report"]
    assert f"session:{run.session_id}" == schedule.mailbox
    (occurrence,) = list_occurrences(store, schedule)
    assert (occurrence.state, occurrence.letter_state, occurrence.run_id) == (
        "put",
        "waiting",
        run.id,
    )
    runner.end(started, "all is well")
    store.internal.chat.finish_turns()
    (occurrence,) = list_occurrences(store, schedule)
    assert (occurrence.scheduled_at, occurrence.letter_state) == (clock.now(), "done")
    (turn,) = [
        turn for turn in store.sessions.turns(str(run.session_id)).items if turn.role == "assistant"
    ]
    assert turn.content == "all is well"


def test_script_of_a_deleted_session_fails_without_blocking_others(
    store: Corral, clock: ManualClock
) -> None:
    store.agents.create("ada", provider="scripted")
    schedule = create_daily_prompt(store, script="true")
    session = schedule.mailbox.removeprefix("session:")
    write(store, lambda tx: retention.delete_batch(tx, session))
    fire_next(store, clock)
    while (retry_at := store.schedules.next_script()) is not None:  # a failed script is retried
        clock.at = max(clock.at, retry_at)
        store.schedules.run_script(owner="c")
    (occurrence,) = list_occurrences(store, schedule)
    assert occurrence.state == "failed"
    assert session in (occurrence.reason or "")


def test_prompt_given_to_a_long_running_agent_records_the_run(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store)
    fire_next(store, clock)
    store.internal.chat.start_turns()
    run = runner.begin()
    assert store.messages.next(run.id) is None
    fire_next(store, clock)
    batch = store.messages.next(run.id)
    assert batch is not None
    assert texts_in(batch.text) == ["report"]
    latest, earlier = list_occurrences(store, schedule)
    assert (earlier.letter_state, earlier.run_id, latest.run_id) == ("done", run.id, run.id)
    assert store.messages.next(run.id, after=batch.letters[-1]) is None
    assert list_occurrences(store, schedule)[0].letter_state == "done"


def test_prompt_with_a_place_uses_the_session_of_that_place(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    chat = Chat(store)
    chat.says("hello")
    place = chat.place()
    with raises_without_change(store, Refused) as caught:
        create_daily_prompt(store, place=place)
    assert caught.value.details["reason"] == "destination_not_granted"
    store.wirings.add("ada", place=place)
    (session,) = [route.session_id for route in chat.says("hello again").routes]
    store.internal.chat.start_turns()
    runner.end(runner.begin(), "hi")
    store.internal.chat.finish_turns()
    schedule = create_daily_prompt(store, place=place)
    assert schedule.mailbox == f"session:{session}"
    fire_next(store, clock)
    store.internal.chat.start_turns()
    runner.end(runner.begin(), "the report")
    store.internal.chat.finish_turns()
    chat.deliver()
    assert chat.platform.words() == ["hi", "the report"]


def test_prompt_that_is_never_done_is_reported_in_its_place(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    chat = Chat(store)
    chat.says("hello")
    store.destinations.grant("ada", chat.place())
    create_daily_prompt(store, place=chat.place())
    fire_next(store, clock)
    for pause in (5, 10, 20, 40, 80, 0):
        store.internal.chat.start_turns()
        runner.fail(runner.begin())
        store.internal.chat.finish_turns()
        clock.advance(pause * SECOND * 2)
    chat.deliver()
    (text,) = chat.platform.words()
    assert text.startswith("A scheduled prompt could not be answered")


def test_prompt_continues_a_named_session_of_its_agent(store: Corral, runner: Runner) -> None:
    own_session = store.sessions.open("ada")
    assert create_daily_prompt(store, session=own_session.id).mailbox == f"session:{own_session.id}"
    assert create_daily_prompt(store, session=own_session.id).mailbox == f"session:{own_session.id}"
    store.agents.create("ben", command="cat")
    foreign_session = store.sessions.open("ben")
    with raises_without_change(store, Refused) as caught:
        create_daily_prompt(store, session=foreign_session.id)
    assert "not an open session of ada" in str(caught.value)
    with raises_without_change(store, Invalid) as caught:
        create_daily_prompt(store, session=own_session.id, place="x")
    assert "not both" in str(caught.value)


def test_letter_of_an_agent_is_not_treated_as_a_prompt(store: Corral, runner: Runner) -> None:
    chat = Chat(store)
    chat.says("hello")
    schedule = create_daily_prompt(store)
    forged = {"text": "do it", "place": chat.place()}
    store.mail.put(schedule.mailbox, forged, key="sch_1@2", sender="agent:eve")
    store.internal.chat.start_turns()
    assert 'signed "agent:eve"' in quotes_in(runner.prompt(runner.begin()))[0].source


def test_run_title_is_the_text_of_its_letter(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store)
    store.mail.put(
        schedule.mailbox, {"kind": "undelivered", "undelivered": "let_1", "reason": "a notice"}
    )
    fire_next(store, clock)
    store.internal.chat.start_turns()
    run = runner.begin()
    assert run.title == "report", "the title is the text of the task, not of the notice"
    runner.end(run)
    store.internal.chat.finish_turns()
    store.mail.put(schedule.mailbox, "Look at this.\nIt is urgent.", sender="user:ann")
    store.internal.chat.start_turns()
    assert runner.begin().title == "Look at this."


def test_history_of_a_plain_schedule_refers_to_its_letters(store: Corral) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    with raises_without_change(store, Invalid) as caught:
        store.schedules.history(schedule.id)
    assert caught.value.details["reason"] == "no_history"


# -- scripts --------------------------------------------------------------------------------------


def test_script_output_is_added_to_the_prompt(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(
        store, script="echo two new mails; echo sk-ant-api03-" + "a1B2" * 23
    )
    fire_next(store, clock)
    (occurrence,) = list_occurrences(store, schedule)
    assert (occurrence.state, occurrence.exit_code, occurrence.attempts) == ("put", 0, 1)
    store.internal.chat.start_turns()
    prompt = runner.prompt(runner.begin()) or ""
    task, output = quotes_in(prompt)
    assert (task.source, task.text) == (f"scheduled prompt {schedule.id}", "report")
    assert output.source.startswith("output of the script")
    assert output.text.startswith("two new mails\n")
    assert "a1B2" not in prompt + str(occurrence.output)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 77", "it printed nothing"),
        ("echo no mail; exit 77", "no mail"),
        ("""echo x; echo '{"wake": false, "reason": "all read"}'""", "all read"),
        ("""echo '{"wakeAgent": false}'""", "its script found nothing to do"),
    ],
)
def test_script_can_skip_an_occurrence_with_a_reason(
    store: Corral, runner: Runner, clock: ManualClock, script: str, reason: str
) -> None:
    schedule = create_daily_prompt(store, script=script)
    fire_next(store, clock)
    (occurrence,) = list_occurrences(store, schedule)
    assert (occurrence.state, occurrence.reason, occurrence.letter_id) == ("skipped", reason, None)
    assert store.internal.chat.start_turns() == []
    assert store.schedules.get(schedule.id).failures == 0
    fire_next(store, clock)
    assert [entry.state for entry in list_occurrences(store, schedule)] == ["skipped", "skipped"]


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("echo broken; exit 3", 3, "3: broken"),
        ("kill -9 $$", 137, "137"),
        ("sleep 30", 124, "124: "),
        ("""echo '{"wake": "perhaps"}'""", 0, "`wake`"),
    ],
)
def test_failed_script_wakes_no_agent_and_is_counted(
    store: Corral, runner: Runner, clock: ManualClock, script: str, code: int, reason: str
) -> None:
    store.alerts.add(["failed"], target_kind="mailbox", target="user:op")
    store.settings.set("mail.max_attempts", 2)
    times_out = script.startswith(
        "sleep"
    )  # the other scripts need a timeout that suits a busy machine
    schedule = create_daily_prompt(
        store, script=script, script_timeout_ms=SECOND if times_out else MINUTE
    )
    fire_next(store, clock)
    (occurrence,) = list_occurrences(store, schedule)
    assert (occurrence.state, occurrence.attempts, occurrence.exit_code) == ("checking", 1, code)
    assert reason in str(occurrence.reason)
    assert store.schedules.run_script(owner="c") is None, "the script is retried after a back-off"
    clock.advance(10 * SECOND)
    store.schedules.run_script(owner="c")
    (occurrence,) = list_occurrences(store, schedule)
    assert (occurrence.state, occurrence.attempts) == ("failed", 2)
    assert store.internal.chat.start_turns() == []
    updated = store.schedules.get(schedule.id)
    assert (updated.failures, updated.state) == (1, "active")
    assert reason in str(updated.last_error)
    (alert,) = store.mail.list(mailbox="user:op").items
    assert alert.body["data"]["schedule"] == schedule.id
    for pause in (0, 10 * SECOND):
        clock.advance(pause)
        if not pause:
            fire_next(store, clock, scripts=0)
        store.schedules.run_script(owner="c")
    assert store.schedules.get(schedule.id).failures == 2


def test_successful_script_resets_the_failure_count(
    store: Corral, runner: Runner, clock: ManualClock, tmp_path: Path
) -> None:
    store.settings.set("mail.max_attempts", 1)
    schedule = create_daily_prompt(store, script=f"test -e {tmp_path}/repaired")
    fire_next(store, clock)
    assert store.schedules.get(schedule.id).failures == 1
    (tmp_path / "repaired").touch()
    fire_next(store, clock)
    updated = store.schedules.get(schedule.id)
    assert (updated.failures, updated.last_error) == (0, None)
    assert [entry.state for entry in list_occurrences(store, schedule)] == ["put", "failed"]


def test_script_of_a_crashed_process_runs_again_and_puts_once(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    from corral.domain.schedules import occurrences

    schedule = create_daily_prompt(store, script="true")
    fire_next(store, clock, scripts=0)
    with store.transaction() as tx:
        crashed_claim, _ = occurrences.claim_script(tx, owner="dead")
    assert crashed_claim is not None
    assert store.schedules.run_script(owner="c") is None, "another process has claimed the script"
    clock.advance(11 * MINUTE)
    assert store.schedules.run_script(owner="c") is not None
    late_result = parse_script_result(0, "late")
    with pytest.raises(Held), store.transaction() as tx:
        occurrences.record_script_result(tx, crashed_claim, late_result, exit_code=0, output="late")
    (occurrence,) = list_occurrences(store, schedule)
    assert (occurrence.state, occurrence.attempts) == ("put", 2)
    assert len(store.mail.list(mailbox=schedule.mailbox, all=True).items) == 1


def test_script_that_kills_its_runner_is_given_up(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    from corral.domain.schedules import occurrences as schedules_occurrences

    store.alerts.add(["failed"], target_kind="mailbox", target="user:op")
    store.settings.set("mail.max_attempts", 2)
    schedule = create_daily_prompt(store, script="true")
    fire_next(store, clock, scripts=0)
    for _ in range(2):
        with store.transaction() as tx:
            assert schedules_occurrences.claim_script(tx, owner="dead")[0] is not None
        clock.advance(11 * MINUTE)
    assert store.schedules.run_script(owner="c") is None
    assert list_occurrences(store, schedule)[0].state == "failed"
    assert len(store.mail.list(mailbox="user:op").items) == 1


def test_foreign_letter_in_the_script_queue_runs_nothing(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store, script="true")
    for key in (None, "x", "occ_1", schedule.id):
        store.mail.put("queue:scripts", {"occurrence": "occ_1", "schedule": schedule.id}, key=key)
    assert store.schedules.run_script(owner="c") is None
    assert list_occurrences(store, schedule) == []
    assert {letter.state for letter in store.mail.list(all=True).items} == {"refused"}


def test_manual_run_runs_the_script_and_keeps_the_next_time(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store, script="echo hi")
    for _ in range(2):
        store.schedules.run(schedule.id)
        store.schedules.run_script(owner="c")
    occurrence = list_occurrences(store, schedule)
    assert [(entry.scheduled_at, entry.state) for entry in occurrence] == [
        (None, "put"),
        (None, "put"),
    ]
    assert store.schedules.get(schedule.id).next_at == schedule.next_at
    store.internal.chat.start_turns()
    assert texts_in(runner.prompt(runner.begin())) == ["report", "hi", "report", "hi"]


def test_prompt_skips_a_time_while_its_script_or_letter_is_open(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store, script="true")
    fire_next(store, clock, scripts=0)
    fire_next(store, clock, scripts=0)
    assert len(list_occurrences(store, schedule)) == 1
    store.schedules.run_script(owner="c")
    fire_next(store, clock)
    assert len(list_occurrences(store, schedule)) == 1, (
        "the agent has not finished the first letter"
    )


def test_cancelled_prompt_puts_nothing_after_its_script(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store, script="true")
    fire_next(store, clock, scripts=0)
    store.schedules.delete(schedule.id)
    store.schedules.run_script(owner="c")
    (occurrence,) = list_occurrences(store, schedule)
    assert (occurrence.state, occurrence.reason) == ("skipped", "its schedule was cancelled")
    assert store.mail.list(mailbox=schedule.mailbox).items == []


def test_script_runs_in_its_project_with_the_scheduled_time(
    store: Corral, runner: Runner, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    script = "pwd; echo $CORRAL_SCHEDULE $CORRAL_SCHEDULED_AT $CORRAL_AGENT"
    schedule = create_daily_prompt(store, script=script, project=project.id)
    fire_next(store, clock)
    (occurrence,) = list_occurrences(store, schedule)
    assert occurrence.output == f"{tmp_path}\n{schedule.id} {clock.now()}\n"


def test_script_fails_when_its_directory_is_missing(
    store: Corral, runner: Runner, clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    project = store.projects.register(tmp_path / "gone")
    schedule = create_daily_prompt(store, script="true", project=project.id)
    (tmp_path / "gone").rmdir()
    fire_next(store, clock)
    assert "on this machine" in str(list_occurrences(store, schedule)[0].reason)


@each_case(
    "options",
    [
        {"script": ""},
        {"script": "x\0"},
        {"script_timeout_ms": SECOND},
        {"script": "x", "script_timeout_ms": 1},
    ],
)
def test_invalid_script_is_rejected(
    store: Corral, runner: Runner, options: dict[str, object]
) -> None:
    with raises_without_change(store, Invalid):
        create_daily_prompt(store, **options)
    assert rows(store, "SELECT * FROM conversations") == []


# -- pause and edit -------------------------------------------------------------------------------


def test_resumed_prompt_does_not_catch_up_paused_times(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store)
    store.schedules.pause(schedule.id)
    clock.advance(3 * DAY)
    assert store.schedules.fire_due() == []
    store.schedules.resume(schedule.id)
    fire_next(store, clock)
    assert len(list_occurrences(store, schedule)) == 1


def test_edit_of_rule_or_zone_recomputes_the_next_time(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    schedule = create_daily_prompt(store)
    earlier_time = store.schedules.edit(schedule.id, cron="0 8 * * *")
    assert earlier_time.next_at == (schedule.next_at or 0) - HOUR
    other_zone = store.schedules.edit(schedule.id, time_zone="UTC")
    assert other_zone.next_at != earlier_time.next_at
    hourly = store.schedules.edit(schedule.id, every_ms=HOUR)
    assert (hourly.kind, hourly.next_at) == ("every", clock.now() + HOUR)
    assert list_events(store)[-1] == "schedule.edit"
    with raises_without_change(store, Invalid):
        store.schedules.edit(schedule.id, cron="never")
    timer = store.timers.set("agent:ada", 1, delay_ms=HOUR)
    with raises_without_change(store, Refused) as caught:
        store.schedules.edit(timer.id, name="x")
    assert "fires only once" in str(caught.value)


def test_edit_keeps_omitted_fields(store: Corral, runner: Runner, clock: ManualClock) -> None:
    schedule = create_daily_prompt(store, script="true", script_timeout_ms=SECOND, name="daily")
    changed = store.schedules.edit(schedule.id, body={"text": "another report"})
    assert changed.body == {"text": "another report"}
    assert (changed.script, changed.script_timeout_ms) == ("true", SECOND)
    assert (changed.name, changed.next_at) == ("daily", schedule.next_at)
    without_script = store.schedules.edit(schedule.id, script=None)
    assert (without_script.script, without_script.script_timeout_ms) == (None, None)
    store.schedules.pause(schedule.id)
    paused = store.schedules.edit(schedule.id, cron="0 10 * * *")
    assert (paused.state, paused.next_at) == ("paused", None)


def test_run_script_without_pending_scripts_writes_nothing(store: Corral) -> None:
    with unchanged(store):
        assert store.schedules.next_script() is None
