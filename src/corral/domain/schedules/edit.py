"""Changing a schedule that repeats."""

from typing import Any

from corral.db.tx import Tx
from corral.domain.schedules import occurrences, ops, sql
from corral.domain.schedules.model import Kind, Misfire, Overlap, Schedule, ScheduleState
from corral.domain.schedules.recurrence import Rule, check_cron, check_every, zone
from corral.kernel.errors import Invalid, Refused
from corral.kernel.text import MAX_NAME, clean_text, encode_json
from corral.kernel.unset import KEEP


def edit(
    tx: Tx,
    id: str,
    *,
    body: Any = KEEP,
    every_ms: int | None = None,
    cron: str | None = None,
    time_zone: str | None = None,
    misfire: str | None = None,
    overlap: str | None = None,
    name: str | None = KEEP,
    script: str | None = KEEP,
    script_ms: int | None = KEEP,
) -> Schedule:
    """Change a schedule that repeats; what is left out stays. Another rule or zone counts from now:
    the next moment is the next one of that rule. A schedule keeps its script, or its lack of one,
    only when that is left out, too: None takes it away."""
    found = sql.SCHEDULES.hold(tx, sql.IDS.resolve(tx, id))  # it may fire this moment
    if found.kind is Kind.ONCE or found.ended_at is not None:
        raise Refused(
            f"{found.id} {'is over' if found.ended_at else 'fires once'}, and is not changed; make "
            "a new one.",
            id=found.id,
            reason="fires_once",
        )
    columns = {
        "name": _or(found.name, name),
        "body": encode_json(_or(found.body, body), "The body"),
        "misfire": ops.check_choice(Misfire, misfire or found.misfire),
        "overlap": ops.check_choice(Overlap, overlap or found.overlap),
        **_script(found, script, script_ms),
        **_when(tx, found, every_ms, cron, time_zone),
    }
    if columns["name"]:
        clean_text(columns["name"], "The name", most=MAX_NAME)
    edited = tx.one(sql.EDIT, id=found.id, **columns)
    assert edited is not None
    ops.continue_chain(tx, edited)
    tx.note("schedule", "edit", edited.id, project_id=edited.project_id, data={"rule": edited.rule})
    return edited


def _script(found: Schedule, script: str | None, script_ms: int | None) -> dict[str, Any]:
    command = _or(found.script, script)
    limit = _or(found.script_ms if command else None, script_ms)
    return occurrences.check_script(command, limit)


def _when(
    tx: Tx, found: Schedule, every_ms: int | None, cron: str | None, time_zone: str | None
) -> dict[str, Any]:
    """The columns of its rule, and the moment that comes next by it."""
    if every_ms is not None and cron is not None:
        raise Invalid("Give one rule: every or cron.")
    where = time_zone or found.time_zone
    zone(where)
    kind, rule, anchor_at = found.kind, found.rule, found.anchor_at
    if every_ms is not None:
        kind, rule, anchor_at = Kind.EVERY, check_every(every_ms), tx.now + every_ms
    elif cron is not None or (time_zone is not None and kind is Kind.CRON):
        kind, rule = Kind.CRON, check_cron(cron or rule, where, tx.now)
    upcoming = found.next_at
    changed = (kind, rule, where) != (found.kind, found.rule, found.time_zone)
    if changed and found.state is ScheduleState.ACTIVE:
        upcoming = Rule(kind, rule, where, anchor_at).next(tx.now)
    return {
        "kind": kind,
        "rule": rule,
        "time_zone": where,
        "anchor_at": anchor_at,
        "next_at": upcoming,
    }


def _or(kept: Any, given: Any) -> Any:
    return kept if given is KEEP else given
