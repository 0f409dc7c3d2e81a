"""Create, fire, pause, resume and cancel schedules and timers."""

from typing import Any

from msgspec.structs import replace

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import (
    Letter,
    agent_name_of,
    check_mailbox,
    check_priority,
)
from corral.domain.schedules import occurrences, sql
from corral.domain.schedules.model import Misfire, Overlap, Schedule, ScheduleKind, ScheduleState
from corral.domain.schedules.recurrence import (
    MAX_INTERVAL_MS,
    MIN_INTERVAL_MS,
    RecurrenceRule,
    check_cron,
    check_every,
    load_zone,
)
from corral.domain.settings import ops as settings
from corral.kernel.clock import format_duration
from corral.kernel.errors import IllegalMove, Invalid, Refused
from corral.kernel.ids import parse_number
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import (
    MAX_NAME,
    check_choice,
    check_int,
    check_optional_text,
    encode_json,
)

RETENTION = sql.RETENTION
MAX_CATCH_UP = 100
"""How many missed times are fired in one transaction."""


def create_schedule(
    tx: Tx,
    mailbox: str,
    body: Any,
    *,
    every_ms: int | None = None,
    cron: str | None = None,
    at: int | None = None,
    time_zone: str = "UTC",
    misfire: str = "latest",
    overlap: str = "allow",
    priority: int = 0,
    name: str | None = None,
    project: str | None = None,
    script: str | None = None,
    script_timeout_ms: int | None = None,
    sender: str | None = None,
) -> Schedule:
    """Create a schedule: at an interval, by a cron rule, or once at a time.

    `misfire` (all, latest, skip) applies to times that were missed, `overlap` (allow, skip,
    replace) while the previous letter is not done. A `script` runs first, for at most
    `script_timeout_ms`, and decides whether the letter is put; its output is added. The mailbox
    `sender` gets a notice if a letter is never delivered.
    """
    if sum(rule is not None for rule in (every_ms, cron, at)) != 1:
        raise Invalid("Exactly one of `every`, `cron` and `at` is required.")
    columns = {
        "time_zone": time_zone,
        "misfire": check_choice(misfire, Misfire, "The misfire policy"),
        "overlap": check_choice(overlap, Overlap, "The overlap policy"),
        "priority": check_priority(priority),
        "name": check_optional_text(name, "The name", max_bytes=MAX_NAME),
        "project_id": check_optional_text(project, "The project", max_bytes=MAX_NAME),
        "sender": check_mailbox(sender) if sender else None,
        **occurrences.check_script(script, script_timeout_ms),
    }
    load_zone(time_zone)
    if every_ms is not None:
        anchor = tx.now + every_ms
        return _create(
            tx, ScheduleKind.EVERY, check_every(every_ms), anchor, mailbox, body, **columns
        )
    if at is not None:
        return _create_once(tx, at, mailbox, body, **columns)
    rule = check_cron(cron or "", time_zone, tx.now)
    return _create(tx, ScheduleKind.CRON, rule, tx.now, mailbox, body, **columns)


def set_timer(
    tx: Tx,
    mailbox: str,
    body: Any,
    *,
    delay_ms: int | None = None,
    at: int | None = None,
    priority: int = 0,
    project: str | None = None,
    sender: str | None = None,
) -> Schedule:
    """Put a letter once, after a delay or at a time, 5 seconds to a year from now.

    A mailbox may have `schedules.max_timers` pending timers. The mailbox `sender` gets a notice if
    the letter is never delivered.
    """
    if (delay_ms is None) == (at is None):
        raise Invalid("Give either a delay (--in 10m) or a time (--at TIME).")
    if delay_ms is not None:
        at = tx.now + check_int(delay_ms, "The delay")
    assert at is not None, "exactly one of delay_ms and at is given"
    return _create_once(
        tx,
        at,
        mailbox,
        body,
        time_zone="UTC",
        misfire=Misfire.ALL,
        overlap=Overlap.ALLOW,
        priority=check_priority(priority),
        name=None,
        project_id=check_optional_text(project, "The project", max_bytes=MAX_NAME),
        sender=check_mailbox(sender) if sender else None,
    )


def fire_due(tx: Tx, *, limit: int = 20) -> list[Letter]:
    """Fire all due schedules; returns the letters that were put.

    The letters and the schedule's next time are written in one transaction, and the key of each
    letter names schedule and time. So a schedule fires exactly once for each time, whichever
    process calls this and wherever it crashes.
    """
    letters: list[Letter] = []
    for schedule in tx.all(sql.DUE, now=tx.now, limit=check_limit(limit)):
        try:
            times, upcoming = _list_due_times(tx, schedule, _build_rule(schedule))
        except Invalid as error:
            # For example, this machine does not know the time zone. Others must still fire.
            transition(
                tx,
                sql.SCHEDULES,
                "pause",
                schedule.id,
                next_at=None,
                last_error=error.message,
                event_data={"reason": error.message},
            )
            continue
        letters += _fire(tx, schedule, times, upcoming)
    return letters


def find_next_at(tx: Tx) -> int | None:
    """Return the next time at which a schedule is due; None when there is none."""
    time: int | None = tx.value(sql.NEXT_AT)
    return time


def fire_now(tx: Tx, id: str) -> Letter:
    """Fire a schedule now, in addition to its rule; its next time does not change."""
    schedule = get(tx, id)
    if schedule.state in (ScheduleState.FINISHED, ScheduleState.CANCELLED):
        raise IllegalMove(
            f"Cannot run {schedule.id}: it is {schedule.state}. Create a new schedule.",
            id=schedule.id,
            state=schedule.state,
            verb="run",
            allowed=[],
        )
    if chains.is_read_by_agent(schedule.mailbox):
        chains.check_hop_limit(tx, chains.get_for_caller(tx))
    letter = occurrences.put_letter(tx, schedule, None)
    tx.emit(
        "schedule", "run", schedule.id, project_id=schedule.project_id, data={"letter": letter.id}
    )
    return letter


def pause(tx: Tx, id: str) -> Schedule:
    """Pause a schedule. Times that pass while it is paused are not made up for."""
    return transition(tx, sql.SCHEDULES, "pause", sql.IDS.resolve(tx, id), next_at=None)


def resume(tx: Tx, id: str) -> Schedule:
    """Resume a paused schedule from its next time after now."""
    schedule = get(tx, id)
    save_chain(tx, schedule)
    upcoming = _build_rule(schedule).find_next(tx.now)
    if upcoming is None and schedule.state is ScheduleState.PAUSED:
        # A timer whose time passed while it was paused fires now instead of being lost.
        upcoming = tx.now
    return transition(tx, sql.SCHEDULES, "resume", schedule.id, next_at=upcoming, last_error=None)


def cancel(tx: Tx, id: str) -> Schedule:
    """Cancel a schedule or timer; letters that it has put stay."""
    return _cancel(tx, sql.IDS.resolve(tx, id))


def cancel_timer(tx: Tx, id: str) -> Schedule:
    """Cancel a timer; raises Invalid for a repeating schedule."""
    timer = get(tx, id)
    if timer.kind is not ScheduleKind.ONCE:
        raise Invalid(
            f"{timer.id} is a repeating schedule, not a timer. Use `corral schedule delete "
            f"{timer.id}`.",
            id=timer.id,
            kind=timer.kind,
            reason="not_a_timer",
        )
    return _cancel(tx, timer.id)


def release_project(tx: Tx, project_id: str) -> int:
    """Cancel every schedule of a project that is being deleted; returns how many."""
    ids = [row[0] for row in tx.run(sql.OF_PROJECT, project_id=project_id)]
    for id in ids:
        _cancel(tx, id)
    return len(ids)


def _cancel(tx: Tx, id: str) -> Schedule:
    return transition(tx, sql.SCHEDULES, "cancel", id, next_at=None, ended_at=tx.now)


def get(tx: Tx, id: str) -> Schedule:
    """Return a schedule or timer by its id, which may be shortened."""
    return sql.SCHEDULES.get(tx, sql.IDS.resolve(tx, id))


def list_schedules(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Schedule]:
    """List the repeating schedules, newest first; with `all`, including ended ones."""
    listing = sql.ALL_SCHEDULES if all else sql.OPEN_SCHEDULES
    return listing.page(tx, after=after, limit=limit)


def list_timers(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Schedule]:
    """List the timers, newest first; with `all`, including fired and cancelled ones."""
    listing = sql.ALL_TIMERS if all else sql.OPEN_TIMERS
    return listing.page(tx, after=after, limit=limit)


def _create_once(tx: Tx, at: int, mailbox: str, body: Any, **columns: Any) -> Schedule:
    check_mailbox(mailbox)
    if not MIN_INTERVAL_MS <= check_int(at, "The time") - tx.now <= MAX_INTERVAL_MS:
        delay = format_duration(max(at - tx.now, 0))
        raise Invalid(f"Invalid timer delay {delay}: expected 5 s to 365 days.", at=at)
    # Serialized, so that concurrent calls cannot both count up to the limit.
    tx.serialize(f"timers:{mailbox}")
    limit = settings.get_value(
        tx, "schedules.max_timers", agent=agent_name_of(mailbox), project=columns["project_id"]
    )
    if tx.value(sql.COUNT_PENDING_TIMERS, mailbox=mailbox) >= limit:
        raise Refused(
            f"{mailbox} has reached the limit of {limit} pending timers. Cancel one first; see "
            "`corral timer list`.",
            mailbox=mailbox,
            limit=limit,
        )
    return _create(tx, ScheduleKind.ONCE, "", at, mailbox, body, **columns)


def _create(
    tx: Tx, kind: ScheduleKind, rule: str, anchor_at: int, mailbox: str, body: Any, **columns: Any
) -> Schedule:
    first = RecurrenceRule(kind, rule, columns["time_zone"], anchor_at).find_next(tx.now)
    assert first is not None, "callers have checked that the rule fires"
    schedule = create(
        tx,
        sql.SCHEDULES,
        {
            "id": tx.new_id("sch"),
            "mailbox": mail.resolve_mailbox(tx, check_mailbox(mailbox)),
            "body": encode_json(body, "The body"),
            "kind": kind,
            "rule": rule,
            "anchor_at": anchor_at,
            "next_at": first,
            "created_at": tx.now,
            **columns,
        },
    )
    save_chain(tx, schedule)
    return schedule


def save_chain(tx: Tx, schedule: Schedule) -> None:
    """Let the letters of a schedule continue the caller's chain; raises Refused at the limit."""
    cause = chains.get_for_caller(tx) if chains.is_read_by_agent(schedule.mailbox) else None
    chains.check_hop_limit(tx, cause)
    chains.save(tx, "schedules", schedule.id, cause)


def _fire(tx: Tx, schedule: Schedule, times: list[int], upcoming: int | None) -> list[Letter]:
    letters: list[Letter] = []
    current = schedule
    for scheduled_at in times:
        letter = _put_unless_overlapping(tx, current, scheduled_at)
        if letter is not None:
            letters.append(letter)
            current = replace(current, last_at=scheduled_at, last_letter_id=letter.id)
    last_letter_id = current.last_letter_id
    verb = "fire" if upcoming is not None else "finish"
    transition(
        tx,
        sql.SCHEDULES,
        verb,
        schedule.id,
        next_at=upcoming,
        ended_at=tx.now if upcoming is None else None,
        last_at=current.last_at,
        last_letter_id=parse_number("let", last_letter_id) if last_letter_id else None,
        event_data={"scheduled_times": times, "letters": [letter.id for letter in letters]},
    )
    return letters


def _list_due_times(
    tx: Tx, schedule: Schedule, rule: RecurrenceRule
) -> tuple[list[int], int | None]:
    """Return the times to fire for now, by the misfire policy, and the next time after them."""
    assert schedule.next_at is not None
    first, latest = schedule.next_at, rule.find_latest(tx.now)
    if latest is None or latest < first:
        latest = first
    if schedule.misfire is Misfire.ALL:
        times = [first]
        while (
            len(times) < MAX_CATCH_UP
            and (more := rule.find_next(times[-1])) is not None
            and more <= tx.now
        ):
            times.append(more)
        return times, rule.find_next(times[-1])
    grace = settings.get_value(
        tx,
        "schedules.misfire_grace_ms",
        agent=agent_name_of(schedule.mailbox),
        project=schedule.project_id,
    )
    on_time = schedule.misfire is Misfire.LATEST or tx.now - latest <= grace
    return ([latest] if on_time else []), rule.find_next(max(tx.now, latest))


def _put_unless_overlapping(tx: Tx, schedule: Schedule, scheduled_at: int) -> Letter | None:
    """Put the letter of a scheduled time by the overlap policy; None: it is skipped."""
    if schedule.overlap is not Overlap.ALLOW and schedule.last_letter_id is not None:
        previous = mail.find_for_update(tx, parse_number("let", schedule.last_letter_id))
        if previous is not None and previous.ended_at is None:
            if schedule.overlap is Overlap.SKIP:
                tx.emit(
                    "schedule",
                    "skip",
                    schedule.id,
                    project_id=schedule.project_id,
                    data={"scheduled_at": scheduled_at, "open": previous.id},
                )
                return None
            mail.drop(tx, previous.id, reason=f"replaced by the next letter of {schedule.id}")
    return occurrences.put_letter(tx, schedule, scheduled_at)


def _build_rule(schedule: Schedule) -> RecurrenceRule:
    return RecurrenceRule(schedule.kind, schedule.rule, schedule.time_zone, schedule.anchor_at)
