"""Making schedules and timers, and putting their letters when the time has come."""

from typing import Any

import msgspec

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterState, agent_of, check_mailbox, check_priority
from corral.domain.schedules import occurrences, sql
from corral.domain.schedules.model import Kind, Misfire, Overlap, Schedule, ScheduleState
from corral.domain.schedules.recurrence import (
    LONGEST,
    SHORTEST,
    Rule,
    check_cron,
    check_every,
    zone,
)
from corral.domain.settings import ops as settings
from corral.kernel.clock import format_duration
from corral.kernel.errors import IllegalMove, Invalid, Refused
from corral.kernel.ids import number_of
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json

KEPT = sql.KEPT

# Of a long row of missed moments, so many are put in one transaction.
MAX_CATCH_UP = 100


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
    """Put a letter again and again: every so often, by a cron rule, or once at a moment.

    `misfire` says what becomes of moments that passed while nobody looked (all, latest, skip),
    `overlap` what happens while the last letter is still open (allow, skip, replace). A `script`,
    which may take `script_ms`, is run first and says whether a letter is put; what it prints goes
    with it. `sender` is the mailbox that is told should a letter never arrive.
    """
    if sum(given is not None for given in (every_ms, cron, at)) != 1:
        raise Invalid("Give one rule: every, cron or at.")
    columns = {
        "time_zone": time_zone,
        "misfire": check_choice(Misfire, misfire),
        "overlap": check_choice(Overlap, overlap),
        "priority": check_priority(priority),
        "name": clean_text(name, "The name", most=MAX_NAME) if name else None,
        "project_id": _project(project),
        "sender": check_mailbox(sender) if sender else None,
        **occurrences.check_script(script, script_ms),
    }
    zone(time_zone)
    if every_ms is not None:
        anchor = tx.now + every_ms
        return _create(tx, Kind.EVERY, check_every(every_ms), anchor, mailbox, body, **columns)
    if cron is not None:
        rule = check_cron(cron, time_zone, tx.now)
        return _create(tx, Kind.CRON, rule, tx.now, mailbox, body, **columns)
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
    """Put a letter once, after a delay or at a moment, 5 seconds to a year from now.

    A mailbox may have 20 timers pending. `sender` signs the letter, and is told should it never
    arrive.
    """
    if (delay_ms is None) == (at is None):
        raise Invalid("Say when: after how long (--in 10m), or at which moment (--at TIME).")
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
        project_id=_project(project),
        sender=check_mailbox(sender) if sender else None,
    )


def fire_due(tx: Tx, *, limit: int = 20) -> list[Letter]:
    """Put the letters of every moment that has come.

    The letters and the schedule's next moment are one transaction, and each letter's key names
    schedule and moment: however often it is called, and wherever a process dies, a moment is put
    exactly once.
    """
    letters: list[Letter] = []
    for schedule in tx.all(sql.DUE, now=tx.now, limit=check_limit(limit)):
        try:
            moments, upcoming = _moments(tx, schedule, _rule(schedule))
        except Invalid as error:
            # A zone that this machine does not know, say. It must not hold up the others.
            move(
                tx,
                sql.SCHEDULES,
                "pause",
                schedule.id,
                next_at=None,
                last_error=error.message,
                note={"reason": error.message},
            )
            continue
        letters += _fire(tx, schedule, moments, upcoming)
    return letters


def next_at(tx: Tx) -> int | None:
    """The moment at which `fire_due` will next have something to do."""
    moment: int | None = tx.value(sql.NEXT_AT)
    return moment


def run(tx: Tx, id: str) -> Letter:
    """Put one letter now, beside the rule; the next moment stays as it is."""
    schedule = get(tx, id)
    if schedule.state in (ScheduleState.FINISHED, ScheduleState.CANCELLED):
        raise IllegalMove(
            f"Cannot run {schedule.id}: it is {schedule.state}; create it anew.",
            id=schedule.id,
            found=schedule.state,
            verb="run",
            allowed=[],
        )
    if chains.is_counted(schedule.mailbox):
        chains.check(tx, chains.of_caller(tx))
    letter = occurrences.put(tx, schedule, None)
    tx.note(
        "schedule", "run", schedule.id, project_id=schedule.project_id, data={"letter": letter.id}
    )
    return letter


def pause(tx: Tx, id: str) -> Schedule:
    """Put nothing until it is resumed. What would have come meanwhile is not made up for."""
    return move(tx, sql.SCHEDULES, "pause", sql.IDS.resolve(tx, id), next_at=None)


def resume(tx: Tx, id: str) -> Schedule:
    """Go on with the next moment from now."""
    schedule = get(tx, id)
    continue_chain(tx, schedule)
    upcoming = _rule(schedule).next(tx.now)
    if upcoming is None and schedule.state is ScheduleState.PAUSED:
        # A timer whose moment passed while it was paused: nobody asked that it be lost.
        upcoming = tx.now
    return move(tx, sql.SCHEDULES, "resume", schedule.id, next_at=upcoming, last_error=None)


def cancel(tx: Tx, id: str) -> Schedule:
    """Take a schedule or timer back; letters that it has put stay."""
    return _cancel(tx, sql.IDS.resolve(tx, id))


def cancel_timer(tx: Tx, id: str) -> Schedule:
    """Take a timer back; a schedule that repeats is left alone."""
    found = get(tx, id)
    if found.kind is not Kind.ONCE:
        raise Invalid(
            f"{found.id} is a schedule that repeats and no timer; use `corral schedule delete "
            f"{found.id}`.",
            id=found.id,
            kind=found.kind,
            reason="not_a_timer",
        )
    return _cancel(tx, found.id)


def cancel_all(tx: Tx, project_id: str) -> int:
    """Take back every schedule of a project that is being deleted."""
    ids = [row[0] for row in tx.run(sql.OF_PROJECT, project_id=project_id)]
    for id in ids:
        _cancel(tx, id)
    return len(ids)


def _cancel(tx: Tx, id: str) -> Schedule:
    return move(tx, sql.SCHEDULES, "cancel", id, next_at=None, ended_at=tx.now)


def get(tx: Tx, id: str) -> Schedule:
    """A schedule or timer by its id, which may be shortened."""
    return sql.SCHEDULES.get(tx, sql.IDS.resolve(tx, id))


def list_schedules(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Schedule]:
    """Schedules that repeat, newest first; ended ones only when asked for."""
    return _list(tx, (Kind.EVERY, Kind.CRON), all, after, limit)


def list_timers(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Schedule]:
    """Timers, newest first; fired and cancelled ones only when asked for."""
    return _list(tx, (Kind.ONCE, Kind.ONCE), all, after, limit)


def _create_once(tx: Tx, at: int, mailbox: str, body: Any, **columns: Any) -> Schedule:
    check_mailbox(mailbox)
    if not SHORTEST <= check_int(at, "The moment") - tx.now <= LONGEST:
        after = format_duration(max(at - tx.now, 0))
        raise Invalid(f"A timer runs for 5 s to 365 days, not {after}.", at=at)
    # Two that count at the same moment would both find room for one more.
    tx.serialize(f"timers:{mailbox}")
    most = settings.value(
        tx, "schedules.max_timers", agent=agent_of(mailbox), project=columns["project_id"]
    )
    if tx.value(sql.PENDING_TIMERS, mailbox=mailbox) >= most:
        raise Refused(
            f"{mailbox} has {most} timers pending, and more are not allowed; cancel one first "
            "(`corral timer list`).",
            mailbox=mailbox,
            limit=most,
        )
    return _create(tx, Kind.ONCE, "", at, mailbox, body, **columns)


def _create(
    tx: Tx, kind: Kind, rule: str, anchor_at: int, mailbox: str, body: Any, **columns: Any
) -> Schedule:
    first = Rule(kind, rule, columns["time_zone"], anchor_at).next(tx.now)
    assert first is not None, "whoever made the rule has checked that it fires"
    made = create(
        tx,
        sql.SCHEDULES,
        {
            "id": tx.new_id("sch"),
            "mailbox": mail.open_mailbox(tx, check_mailbox(mailbox)),
            "body": encode_json(body, "The body"),
            "kind": kind,
            "rule": rule,
            "anchor_at": anchor_at,
            "next_at": first,
            "created_at": tx.now,
            **columns,
        },
    )
    assert made is not None
    continue_chain(tx, made)
    return made


def continue_chain(tx: Tx, schedule: Schedule) -> None:
    """Let the letters of a schedule continue the chain of the caller, who made or changed it.
    Raises Refused beyond `mail.max_hops`."""
    cause = chains.of_caller(tx) if chains.is_counted(schedule.mailbox) else None
    chains.check(tx, cause)
    chains.save(tx, "schedules", schedule.id, cause)


def _fire(tx: Tx, schedule: Schedule, moments: list[int], upcoming: int | None) -> list[Letter]:
    letters = []
    last = schedule
    for moment in moments:
        letter = _put_unless_overlapping(tx, last, moment)
        if letter is not None:
            letters.append(letter)
            last = _with_letter(last, moment, letter)
    verb = "fire" if upcoming is not None else "finish"
    move(
        tx,
        sql.SCHEDULES,
        verb,
        schedule.id,
        next_at=upcoming,
        ended_at=tx.now if upcoming is None else None,
        last_at=last.last_at,
        last_letter=last.last_letter,
        note={"moments": moments, "letters": [letter.id for letter in letters]},
    )
    return letters


def _moments(tx: Tx, schedule: Schedule, rule: Rule) -> tuple[list[int], int | None]:
    """The moments to put now, by the misfire policy, and the one that comes after them."""
    assert schedule.next_at is not None
    first, latest = schedule.next_at, rule.latest(tx.now)
    if latest is None or latest < first:
        latest = first
    if schedule.misfire is Misfire.ALL:
        moments = [first]
        while (
            len(moments) < MAX_CATCH_UP
            and (more := rule.next(moments[-1])) is not None
            and more <= tx.now
        ):
            moments.append(more)
        return moments, rule.next(moments[-1])
    grace = settings.value(
        tx,
        "schedules.misfire_grace_ms",
        agent=agent_of(schedule.mailbox),
        project=schedule.project_id,
    )
    on_time = schedule.misfire is Misfire.LATEST or tx.now - latest <= grace
    return ([latest] if on_time else []), rule.next(max(tx.now, latest))


def _put_unless_overlapping(tx: Tx, schedule: Schedule, moment: int) -> Letter | None:
    if schedule.overlap is not Overlap.ALLOW and schedule.last_letter is not None:
        before = mail.hold(tx, schedule.last_letter)
        if before is not None and before.state in (LetterState.WAITING, LetterState.UNKNOWN):
            if schedule.overlap is Overlap.SKIP:
                tx.note(
                    "schedule",
                    "skip",
                    schedule.id,
                    project_id=schedule.project_id,
                    data={"moment": moment, "open": before.id},
                )
                return None
            mail.drop(tx, before.id, reason=f"replaced by the next letter of {schedule.id}")
    return occurrences.put(tx, schedule, moment)


def _with_letter(schedule: Schedule, moment: int, letter: Letter) -> Schedule:
    return msgspec.structs.replace(
        schedule, last_at=moment, last_letter=number_of("let", letter.id)
    )


def _rule(schedule: Schedule) -> Rule:
    return Rule(schedule.kind, schedule.rule, schedule.time_zone, schedule.anchor_at)


def _list(
    tx: Tx, kinds: tuple[Kind, Kind], all: bool, after: str | None, limit: int
) -> Page[Schedule]:
    (id,) = decode_cursor(after, LAST_ID)
    rows = tx.all(
        sql.ALL if all else sql.OPEN,
        id=id,
        kind_1=kinds[0],
        kind_2=kinds[1],
        limit=check_limit(limit) + 1,
    )
    return page_of(rows, limit, lambda schedule: (schedule.id,))


def _project(id: str | None) -> str | None:
    return clean_text(id, "The project", most=MAX_NAME) if id else None


def check_choice(choices: type[Misfire] | type[Overlap], given: str) -> str:
    if given not in list(choices):
        raise Invalid(f"{given!r} is none of {', '.join(choices)}.", value=given)
    return given
