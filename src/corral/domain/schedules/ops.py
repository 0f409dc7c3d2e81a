"""Create, fire, pause, resume and cancel schedules and timers."""

from typing import Any

import msgspec

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import (
    Letter,
    LetterState,
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
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, make_page
from corral.kernel.text import MAX_NAME, check_int, check_text, encode_json

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
    script_ms: int | None = None,
    sender: str | None = None,
) -> Schedule:
    """Create a schedule: at an interval, by a cron rule, or once at a time.

    `misfire` (all, latest, skip) applies to times that were missed, `overlap` (allow, skip,
    replace) while the previous letter is not done. A `script` with the timeout `script_ms` runs
    first and decides whether the letter is put; its output is added. The mailbox `sender` gets a
    notice if a letter is never delivered.
    """
    if sum(given is not None for given in (every_ms, cron, at)) != 1:
        raise Invalid("Give exactly one of every, cron and at.")
    columns = {
        "time_zone": time_zone,
        "misfire": check_choice(Misfire, misfire),
        "overlap": check_choice(Overlap, overlap),
        "priority": check_priority(priority),
        "name": check_text(name, "The name", max_bytes=MAX_NAME) if name else None,
        "project_id": _check_project(project),
        "sender": check_mailbox(sender) if sender else None,
        **occurrences.check_script(script, script_ms),
    }
    load_zone(time_zone)
    if every_ms is not None:
        anchor = tx.now + every_ms
        return _create(
            tx, ScheduleKind.EVERY, check_every(every_ms), anchor, mailbox, body, **columns
        )
    if cron is not None:
        rule = check_cron(cron, time_zone, tx.now)
        return _create(tx, ScheduleKind.CRON, rule, tx.now, mailbox, body, **columns)
    assert at is not None
    return _create_once(tx, at, mailbox, body, **columns)


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
    assert at is not None
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
        project_id=_check_project(project),
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
            times, upcoming = _due_times(tx, schedule, _build_rule(schedule))
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


def next_at(tx: Tx) -> int | None:
    """Return the next time at which a schedule is due; None when there is none."""
    time: int | None = tx.value(sql.NEXT_AT)
    return time


def run(tx: Tx, id: str) -> Letter:
    """Fire a schedule now, in addition to its rule; its next time does not change."""
    schedule = get(tx, id)
    if schedule.state in (ScheduleState.FINISHED, ScheduleState.CANCELLED):
        raise IllegalMove(
            f"Cannot run {schedule.id}: it is {schedule.state}. Create a new schedule.",
            id=schedule.id,
            found=schedule.state,
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
    upcoming = _build_rule(schedule).next(tx.now)
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


def cancel_of_project(tx: Tx, project_id: str) -> int:
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
    """List the repeating schedules, newest first; with `all` also ended ones."""
    return _list(tx, (ScheduleKind.EVERY, ScheduleKind.CRON), all, after, limit)


def list_timers(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Schedule]:
    """List the timers, newest first; with `all` also fired and cancelled ones."""
    return _list(tx, (ScheduleKind.ONCE, ScheduleKind.ONCE), all, after, limit)


def _create_once(tx: Tx, at: int, mailbox: str, body: Any, **columns: Any) -> Schedule:
    check_mailbox(mailbox)
    if not MIN_INTERVAL_MS <= check_int(at, "The time") - tx.now <= MAX_INTERVAL_MS:
        delay = format_duration(max(at - tx.now, 0))
        raise Invalid(f"Invalid delay of a timer {delay}: expected 5 s to 365 days.", at=at)
    # Serialized, so that concurrent calls cannot both count up to the limit.
    tx.serialize(f"timers:{mailbox}")
    limit = settings.get_value(
        tx, "schedules.max_timers", agent=agent_name_of(mailbox), project=columns["project_id"]
    )
    if tx.value(sql.PENDING_TIMERS, mailbox=mailbox) >= limit:
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
    first = RecurrenceRule(kind, rule, columns["time_zone"], anchor_at).next(tx.now)
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
    letters = []
    last = schedule
    for moment in times:
        letter = _put_unless_overlapping(tx, last, moment)
        if letter is not None:
            letters.append(letter)
            last = _with_letter(last, moment, letter)
    verb = "fire" if upcoming is not None else "finish"
    transition(
        tx,
        sql.SCHEDULES,
        verb,
        schedule.id,
        next_at=upcoming,
        ended_at=tx.now if upcoming is None else None,
        last_at=last.last_at,
        last_letter=last.last_letter,
        event_data={"moments": times, "letters": [letter.id for letter in letters]},
    )
    return letters


def _due_times(tx: Tx, schedule: Schedule, rule: RecurrenceRule) -> tuple[list[int], int | None]:
    """Return the times to fire for now, by the misfire policy, and the next time after them."""
    assert schedule.next_at is not None
    first, latest = schedule.next_at, rule.latest(tx.now)
    if latest is None or latest < first:
        latest = first
    if schedule.misfire is Misfire.ALL:
        times = [first]
        while (
            len(times) < MAX_CATCH_UP
            and (more := rule.next(times[-1])) is not None
            and more <= tx.now
        ):
            times.append(more)
        return times, rule.next(times[-1])
    grace = settings.get_value(
        tx,
        "schedules.misfire_grace_ms",
        agent=agent_name_of(schedule.mailbox),
        project=schedule.project_id,
    )
    on_time = schedule.misfire is Misfire.LATEST or tx.now - latest <= grace
    return ([latest] if on_time else []), rule.next(max(tx.now, latest))


def _put_unless_overlapping(tx: Tx, schedule: Schedule, moment: int) -> Letter | None:
    if schedule.overlap is not Overlap.ALLOW and schedule.last_letter is not None:
        before = mail.find_for_update(tx, schedule.last_letter)
        if before is not None and before.state in (LetterState.WAITING, LetterState.UNKNOWN):
            if schedule.overlap is Overlap.SKIP:
                tx.emit(
                    "schedule",
                    "skip",
                    schedule.id,
                    project_id=schedule.project_id,
                    data={"moment": moment, "open": before.id},
                )
                return None
            mail.drop(tx, before.id, reason=f"replaced by the next letter of {schedule.id}")
    return occurrences.put_letter(tx, schedule, moment)


def _with_letter(schedule: Schedule, moment: int, letter: Letter) -> Schedule:
    return msgspec.structs.replace(
        schedule, last_at=moment, last_letter=parse_number("let", letter.id)
    )


def _build_rule(schedule: Schedule) -> RecurrenceRule:
    return RecurrenceRule(schedule.kind, schedule.rule, schedule.time_zone, schedule.anchor_at)


def _list(
    tx: Tx, kinds: tuple[ScheduleKind, ScheduleKind], all: bool, after: str | None, limit: int
) -> Page[Schedule]:
    (id,) = decode_cursor(after, LAST_ID)
    rows = tx.all(
        sql.ALL if all else sql.OPEN,
        id=id,
        kind_1=kinds[0],
        kind_2=kinds[1],
        limit=check_limit(limit) + 1,
    )
    return make_page(rows, limit, lambda schedule: (schedule.id,))


def _check_project(id: str | None) -> str | None:
    return check_text(id, "The project", max_bytes=MAX_NAME) if id else None


def check_choice(choices: type[Misfire] | type[Overlap], given: str) -> str:
    """Return a valid policy; raises Invalid for any other text."""
    if given not in list(choices):
        raise Invalid(f"Invalid value {given!r}: use one of {', '.join(choices)}.", value=given)
    return given
