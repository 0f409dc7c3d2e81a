"""Occurrences: the record of each time a schedule fired, and the run of its script.

Firing a schedule with a script creates an occurrence and a letter in the script queue, in one
transaction with the schedule's next time. The process that claims the letter runs the script and
records the result in one transaction with its effect. After a crash the script may run again (at
least once), but its letter is put or skipped exactly once.
"""

from typing import Any

import msgspec

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.mail import chains, queries
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterState, agent_name_of
from corral.domain.mail.payloads import ScriptCheck
from corral.domain.schedules import sql
from corral.domain.schedules.model import (
    Occurrence,
    OccurrenceState,
    OccurrenceWithLetter,
    Schedule,
    ScheduleState,
    ScriptResult,
)
from corral.domain.settings import ops as settings
from corral.kernel.clock import MINUTE, SECOND
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page
from corral.kernel.validation import check_int, check_text

RETENTION = sql.OCCURRENCES_RETENTION
SCRIPT_QUEUE = "queue:scripts"
MAX_REASON = 2_000
MAX_SCRIPT = 16 * 1024
MAX_SCRIPT_MS = 10 * MINUTE
"""The upper bound of a script's timeout, whatever is configured."""
LEASE_MARGIN_MS = 30_000
"""Added to the timeout for the lease: time for the work before and after the script."""


class ClaimedScript(msgspec.Struct, frozen=True):
    """A script that the claimant has to run."""

    letter: Letter
    occurrence: Occurrence
    schedule: Schedule
    timeout_ms: int


def put_letter(tx: Tx, schedule: Schedule, scheduled_at: int | None) -> Letter:
    """Put the letter of an occurrence, or a letter that queues its script.

    `scheduled_at` is None when the schedule is run by hand.
    """
    if schedule.script is None:
        letter = _put(tx, schedule, schedule.body, _build_key(schedule, scheduled_at))
        if schedule.has_history:
            _create(tx, schedule, scheduled_at, "record", letter_id=letter.number, ended_at=tx.now)
        return letter
    occurrence = _create(tx, schedule, scheduled_at, "check")
    assert occurrence is not None, "a schedule fires once for each time"
    body = ScriptCheck(occurrence=occurrence.id)
    return mail.put(tx, SCRIPT_QUEUE, body, key=occurrence.id, project=schedule.project_id)


def _create(
    tx: Tx, schedule: Schedule, scheduled_at: int | None, verb: str, **columns: Any
) -> Occurrence | None:
    return create_if_absent(
        tx,
        sql.OCCURRENCES,
        {
            "id": tx.new_id("occ"),
            "schedule_id": schedule.id,
            "project_id": schedule.project_id,
            "scheduled_at": scheduled_at,
            "attempts": 0,
            "created_at": tx.now,
            **columns,
        },
        on_conflict="(schedule_id, scheduled_at)",
        verb=verb,
        event_data={"schedule": schedule.id, "scheduled_at": scheduled_at},
    )


def _put(tx: Tx, schedule: Schedule, body: Any, key: str | None) -> Letter:
    return mail.put_caused_by(
        tx,
        chains.load(tx, "schedules", schedule.id),
        schedule.mailbox,
        body,
        key=key,
        priority=schedule.priority,
        sender=schedule.sender,
        project=schedule.project_id,
    )


def _build_key(schedule: Schedule, scheduled_at: int | None) -> str | None:
    return f"{schedule.id}@{scheduled_at}" if scheduled_at is not None else None


def check_script(script: str | None, script_timeout_ms: int | None) -> dict[str, Any]:
    """Return the columns of a valid script; raises Invalid."""
    if script is None and script_timeout_ms is not None:
        raise Invalid("A script timeout requires a script.")
    if (
        script_timeout_ms is not None
        and not SECOND <= check_int(script_timeout_ms, "The script timeout") <= MAX_SCRIPT_MS
    ):
        raise Invalid(
            "Invalid script timeout: expected 1 s to 10 minutes.",
            script_timeout_ms=script_timeout_ms,
        )
    text = check_text(script, "The script", max_bytes=MAX_SCRIPT) if script is not None else None
    return {"script": text, "script_timeout_ms": script_timeout_ms}


# -- scripts --------------------------------------------------------------------------------------


def claim_script(tx: Tx, *, owner: str) -> tuple[ClaimedScript | None, list[Occurrence]]:
    """Claim the oldest queued script, if any, and return the occurrences that were given up.

    The lease covers the longest possible run, so a crash leaves the script to the next claimant. A
    script that was claimed too often without a result is given up.
    """
    given_up: list[Occurrence] = []
    lease_ms = MAX_SCRIPT_MS + LEASE_MARGIN_MS
    while claimed := mail.claim_letters(tx, SCRIPT_QUEUE, owner=owner, lease_ms=lease_ms):
        (letter,) = claimed
        occurrence = _find_occurrence(tx, letter)
        if occurrence is None:
            mail.refuse(tx, letter, "it does not belong to an occurrence with a pending script")
        elif not mail.end_undeliverable(tx, claimed):
            reason = mail.get(tx, letter.id).last_error or "its script was interrupted every time"
            given_up.append(_give_up(tx, occurrence, reason))
        else:
            schedule = sql.SCHEDULES.get(tx, occurrence.schedule_id)
            timeout_ms = _get_timeout_ms(tx, schedule)
            return ClaimedScript(letter, occurrence, schedule, timeout_ms), given_up
    return None, given_up


def find_next_script_at(tx: Tx) -> int | None:
    """Return the earliest time at which a script can be claimed; None: none is queued."""
    return queries.next_due(tx, SCRIPT_QUEUE)


def record_script_result(
    tx: Tx, claimed: ClaimedScript, result: ScriptResult, *, exit_code: int | None, output: str
) -> Occurrence:
    """Record the result of a script and apply it.

    The letter is put or skipped. A failed script is retried after a back-off, or given up at the
    limit and counted. Raises Held when the lease was lost.
    """
    columns = {"attempts": claimed.letter.attempts, "exit_code": exit_code, "output": output}
    reason = tx.shorten_for_storage(result.reason or "", MAX_REASON) or None
    if result.failed:
        return _record_failure(tx, claimed, reason or "its script failed", columns)
    occurrence = claimed.occurrence
    mail.ack(tx, claimed.letter)
    tx.run(sql.CLEAR_FAILURES, id=occurrence.schedule_id)
    if not result.puts_letter:
        return _record_skip(tx, occurrence, reason, columns)
    schedule = sql.SCHEDULES.get(tx, occurrence.schedule_id)
    if schedule.state is ScheduleState.CANCELLED:
        return _record_skip(tx, occurrence, "its schedule was cancelled", columns)
    return _record_put(tx, claimed, schedule, result.output, columns)


def _record_failure(
    tx: Tx, claimed: ClaimedScript, reason: str, columns: dict[str, Any]
) -> Occurrence:
    failed = mail.fail(tx, claimed.letter, reason)
    if failed.state is LetterState.DEAD:
        return _give_up(tx, claimed.occurrence, reason, **columns)
    return transition(
        tx,
        sql.OCCURRENCES,
        "fail",
        claimed.occurrence.id,
        event_data={"reason": reason},
        reason=reason,
        **columns,
    )


def _record_skip(
    tx: Tx, occurrence: Occurrence, reason: str | None, columns: dict[str, Any]
) -> Occurrence:
    return _end(tx, "skip", occurrence, reason, {"reason": reason}, **columns)


def _record_put(
    tx: Tx, claimed: ClaimedScript, schedule: Schedule, output: str, columns: dict[str, Any]
) -> Occurrence:
    occurrence = claimed.occurrence
    key = _build_key(schedule, occurrence.scheduled_at) or f"{schedule.id}@{occurrence.id}"
    letter = _put(tx, schedule, _add_output(schedule.body, output), key)
    tx.run(
        sql.SET_LAST_LETTER,
        id=schedule.id,
        letter_id=letter.number,
        script_letter_id=claimed.letter.number,
    )
    event_data = {"letter": letter.id}
    return _end(tx, "put", occurrence, None, event_data, letter_id=letter.number, **columns)


def _add_output(body: Any, output: str) -> dict[str, Any]:
    """Add the output of the script to the body of the letter."""
    if isinstance(body, dict):
        return {**body, "script_output": output}
    return {"text" if isinstance(body, str) else "body": body, "script_output": output}


def _give_up(tx: Tx, occurrence: Occurrence, reason: str, **columns: Any) -> Occurrence:
    tx.run(sql.COUNT_FAILURE, id=occurrence.schedule_id, reason=reason)
    return _end(tx, "give_up", occurrence, reason, {"reason": reason}, **columns)


def _end(
    tx: Tx,
    verb: str,
    occurrence: Occurrence,
    reason: str | None,
    event_data: dict[str, Any],
    **columns: Any,
) -> Occurrence:
    return transition(
        tx,
        sql.OCCURRENCES,
        verb,
        occurrence.id,
        event_data=event_data,
        reason=reason,
        ended_at=tx.now,
        **columns,
    )


def _find_occurrence(tx: Tx, letter: Letter) -> Occurrence | None:
    """Return the pending occurrence of a letter in the script queue; None when there is none.

    Any process can put letters into that queue, so only the key is trusted: `put_letter` chose it.
    """
    if letter.key is None or not letter.key.startswith("occ_"):
        return None
    occurrence = tx.first(sql.OCCURRENCES.by_key, key_=letter.key)
    if occurrence is None or occurrence.state is not OccurrenceState.CHECKING:
        return None
    return occurrence


def _get_timeout_ms(tx: Tx, schedule: Schedule) -> int:
    scope = {"agent": agent_name_of(schedule.mailbox), "project": schedule.project_id}
    return schedule.script_timeout_ms or int(
        settings.get_value(tx, "schedules.script_timeout_ms", **scope)
    )


# -- history --------------------------------------------------------------------------------------


def link_run(tx: Tx, letter: Letter, run_id: str) -> None:
    """Record the run that got the letter of an occurrence."""
    if letter.key is not None and letter.key.startswith("sch_"):
        tx.run(sql.SET_RUN, letter_id=letter.number, run_id=run_id)


def list_occurrences(
    tx: Tx, schedule: str, *, after: str | None = None, limit: int = 50
) -> Page[OccurrenceWithLetter]:
    """List the occurrences of a schedule, newest first."""
    target = sql.SCHEDULES.get(tx, sql.IDS.resolve(tx, schedule))
    if not target.has_history:
        raise Invalid(
            f"{target.id} has no history of occurrences, because it only puts letters. List them "
            f"with `corral mail list --all --mailbox {target.mailbox}`.",
            id=target.id,
            reason="no_history",
        )
    return sql.BY_SCHEDULE.page(tx, after=after, limit=limit, schedule_id=target.id)
