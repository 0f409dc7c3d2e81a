"""What became of each moment of a task: put, skipped by its script, or failed.

A moment with a script is an occurrence and a letter in Corral's own queue, in one transaction with
the schedule's next moment. Whoever takes that letter runs the script and says how it went, in one
transaction with what follows from it; so a script may be run again after a crash, but its moment is
put once, or skipped once.
"""

from typing import Any

import msgspec

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.mail import chains, queries
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterState, agent_of
from corral.domain.schedules import sql
from corral.domain.schedules.model import (
    Occurrence,
    OccurrenceState,
    Past,
    Schedule,
    ScheduleState,
    Verdict,
)
from corral.domain.settings import ops as settings
from corral.kernel.clock import MINUTE, SECOND
from corral.kernel.errors import Invalid
from corral.kernel.ids import number_of
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_int, clean_text

KEPT = sql.OCCURRENCES_KEPT
QUEUE = "queue:scripts"
MAX_REASON = 2_000
MAX_SCRIPT = 16 * 1024
LONGEST_MS = 10 * MINUTE
"""That a script may take, whatever is chosen."""
SPARE_MS = 30_000
"""For what comes before and after a script, beside its own time."""


class Begun(msgspec.Struct, frozen=True):
    """A script that its taker has to run."""

    letter: Letter
    occurrence: Occurrence
    schedule: Schedule
    timeout_ms: int


def put(tx: Tx, schedule: Schedule, moment: int | None) -> Letter:
    """Put the letter of a moment, or let its script be run first."""
    if schedule.script is None:
        letter = _put(tx, schedule, schedule.body, _key(schedule, moment))
        if schedule.keeps_history:
            _create(tx, schedule, moment, "put", letter=_number(letter), ended_at=tx.now)
        return letter
    made = _create(tx, schedule, moment, "check")
    assert made is not None, "a moment is fired once"
    body = {"occurrence": made.id, "schedule": schedule.id}
    return mail.put(tx, QUEUE, body, key=made.id, project=schedule.project_id)


def _create(
    tx: Tx, schedule: Schedule, moment: int | None, verb: str, **columns: Any
) -> Occurrence | None:
    return create(
        tx,
        sql.OCCURRENCES,
        {
            "id": tx.new_id("occ"),
            "schedule_id": schedule.id,
            "project_id": schedule.project_id,
            "moment": moment,
            "tries": 0,
            "created_at": tx.now,
            **columns,
        },
        unless="(schedule_id, moment)",
        begin=verb,
        note={"schedule": schedule.id, "moment": moment},
    )


def _put(tx: Tx, schedule: Schedule, body: Any, key: str | None) -> Letter:
    return mail.put_after(
        tx,
        chains.load(tx, "schedules", schedule.id),
        schedule.mailbox,
        body,
        key=key,
        priority=schedule.priority,
        sender=schedule.sender,
        project=schedule.project_id,
    )


def _key(schedule: Schedule, moment: int | None) -> str | None:
    return f"{schedule.id}@{moment}" if moment is not None else None


def check_script(script: str | None, script_ms: int | None) -> dict[str, Any]:
    """The columns of a script that can be run."""
    if script is None and script_ms is not None:
        raise Invalid("There is no script whose time could be limited; give one.")
    if script_ms is not None and not SECOND <= check_int(script_ms, "The time") <= LONGEST_MS:
        raise Invalid("A script may run from 1 s to 10 minutes.", script_ms=script_ms)
    text = clean_text(script, "The script", most=MAX_SCRIPT) if script is not None else None
    return {"script": text, "script_ms": script_ms}


# -- scripts --------------------------------------------------------------------------------------


def begin_script(tx: Tx, *, owner: str) -> tuple[Begun | None, list[Occurrence]]:
    """Take the script that waits for longest, None when there is none to run; and the moments whose
    script was given up.

    It is taken for as long as it may run: whoever dies leaves it to the next one. One that killed
    all who ran it is given up.
    """
    given_up: list[Occurrence] = []
    while taken := mail.claim(tx, QUEUE, owner=owner, lease_ms=LONGEST_MS + SPARE_MS):
        (letter,) = taken
        found = _of_letter(tx, letter)
        if found is None:
            mail.refuse(tx, letter, "it names no moment whose script is to be run")
        elif not mail.retire(tx, taken):
            why = mail.get(tx, letter.id).last_error
            given_up.append(_give_up(tx, found, why or "whoever ran its script went silent"))
        else:
            schedule = sql.SCHEDULES.get(tx, found.schedule_id)
            return Begun(letter, found, schedule, _allowed(tx, schedule)), given_up
    return None, given_up


def next_script(tx: Tx) -> int | None:
    """When there will next be a script to run."""
    return queries.next_due(tx, QUEUE)


def conclude(
    tx: Tx, begun: Begun, said: Verdict, *, exit_code: int | None, output: str
) -> Occurrence:
    """Say what a script said: its moment is put, or skipped, or tried again after a pause, or given
    up at the limit, and counted. Held when another has taken it over meanwhile."""
    found, letter = begun.occurrence, begun.letter
    ran: dict[str, Any] = {"tries": letter.attempts, "exit_code": exit_code, "output": output}
    reason = (said.reason or "")[:MAX_REASON] or None
    if said.failed:
        reason = reason or "its script failed"
        failed = mail.fail(tx, letter, reason)
        if failed.state is LetterState.DEAD:
            return _give_up(tx, found, reason, **ran)
        return move(
            tx, sql.OCCURRENCES, "fail", found.id, note={"reason": reason}, reason=reason, **ran
        )
    mail.ack(tx, letter)
    tx.run(sql.CLEAR_FAILURES, id=found.schedule_id)
    schedule = sql.SCHEDULES.get(tx, found.schedule_id)
    if said.wakes and schedule.state is ScheduleState.CANCELLED:
        said, reason = Verdict(False), "its schedule was cancelled"
    if not said.wakes:
        note = {"reason": reason}
        return _end(tx, "skip", found, reason, note, **ran)
    key = _key(schedule, found.moment) or f"{schedule.id}@{found.id}"
    put = _put(tx, schedule, _with_found(schedule.body, said.found), key)
    before = number_of("let", letter.id)
    tx.run(sql.SET_LAST_LETTER, id=schedule.id, letter=_number(put), before=before)
    return _end(tx, "let_through", found, None, {"letter": put.id}, letter=_number(put), **ran)


def _with_found(body: Any, found: str) -> dict[str, Any]:
    """What a letter says, and what the script found beside it."""
    if isinstance(body, dict):
        return {**body, "found": found}
    return {"text" if isinstance(body, str) else "body": body, "found": found}


def _give_up(tx: Tx, found: Occurrence, reason: str, **columns: Any) -> Occurrence:
    tx.run(sql.COUNT_FAILURE, id=found.schedule_id, reason=reason)
    return _end(tx, "give_up", found, reason, {"reason": reason}, **columns)


def _end(
    tx: Tx,
    verb: str,
    found: Occurrence,
    reason: str | None,
    note: dict[str, Any],
    **columns: Any,
) -> Occurrence:
    return move(
        tx,
        sql.OCCURRENCES,
        verb,
        found.id,
        note=note,
        reason=reason,
        ended_at=tx.now,
        **columns,
    )


def _of_letter(tx: Tx, letter: Letter) -> Occurrence | None:
    """The occurrence that a letter of the queue is about: whoever may put letters there names one
    whose key is its own, or none."""
    if letter.key is None or not letter.key.startswith("occ_"):
        return None
    found = tx.one(sql.OCCURRENCES.by_key, key_=letter.key)
    return found if found is not None and found.state is OccurrenceState.CHECKING else None


def _allowed(tx: Tx, schedule: Schedule) -> int:
    scope = {"agent": agent_of(schedule.mailbox), "project": schedule.project_id}
    return schedule.script_ms or int(settings.value(tx, "schedules.script_ms", **scope))


# -- looking --------------------------------------------------------------------------------------


def note_run(tx: Tx, letter: Letter, run_id: str) -> None:
    """A run is given the letter of a moment."""
    if letter.key is not None and letter.key.startswith("sch_"):
        tx.run(sql.SET_RUN, letter=_number(letter), run_id=run_id)


def list_occurrences(
    tx: Tx, schedule: str, *, after: str | None = None, limit: int = 50
) -> Page[Past]:
    """What became of the moments of a schedule, newest first."""
    found = sql.SCHEDULES.get(tx, sql.IDS.resolve(tx, schedule))
    if not found.keeps_history:
        raise Invalid(
            f"{found.id} only puts letters, and they tell what became of them: `corral mail list "
            f"--all --mailbox {found.mailbox}`.",
            id=found.id,
            reason="no_history",
        )
    (before,) = decode_cursor(after, "occ_~")
    given = {"before": clean_text(before, "The cursor", most=MAX_NAME)}
    rows = tx.all(sql.HISTORY, schedule_id=found.id, limit=check_limit(limit) + 1, **given)
    return page_of(rows, limit, lambda each: (each.id,))


def _number(letter: Letter) -> int:
    return number_of("let", letter.id)
