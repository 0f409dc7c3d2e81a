"""Edit a repeating schedule."""

from typing import Any

from corral.db.tx import Tx
from corral.domain.schedules import occurrences, ops, sql
from corral.domain.schedules.model import Misfire, Overlap, Schedule, ScheduleKind, ScheduleState
from corral.domain.schedules.recurrence import RecurrenceRule, check_cron, check_every, load_zone
from corral.kernel.errors import Invalid, Refused
from corral.kernel.unset import UNSET
from corral.kernel.validation import MAX_NAME, check_choice, check_text, encode_json


def edit_schedule(
    tx: Tx,
    id: str,
    *,
    body: Any = UNSET,
    every_ms: int | None = None,
    cron: str | None = None,
    time_zone: str | None = None,
    misfire: str | None = None,
    overlap: str | None = None,
    name: str | None = UNSET,
    script: str | None = UNSET,
    script_timeout_ms: int | None = UNSET,
) -> Schedule:
    """Edit a repeating schedule. Arguments that are left out keep their values.

    `script=None` removes the script. After a change of the rule or the time zone, the next time is
    computed from now.
    """
    current = sql.SCHEDULES.get_for_update(tx, sql.IDS.resolve(tx, id))  # it may fire concurrently
    if current.kind is ScheduleKind.ONCE or current.ended_at is not None:
        problem = "has ended" if current.ended_at else "fires only once"
        raise Refused(
            f"{current.id} {problem} and cannot be edited. Create a new schedule.",
            id=current.id,
            reason="fires_once",
        )
    columns = {
        "name": _keep_if_unset(current.name, name),
        "body": encode_json(_keep_if_unset(current.body, body), "The body"),
        "misfire": check_choice(misfire or current.misfire, Misfire, "The misfire policy"),
        "overlap": check_choice(overlap or current.overlap, Overlap, "The overlap policy"),
        **_build_script_columns(current, script, script_timeout_ms),
        **_build_rule_columns(tx, current, every_ms, cron, time_zone),
    }
    if columns["name"]:
        check_text(columns["name"], "The name", max_bytes=MAX_NAME)
    edited = tx.one(sql.EDIT, id=current.id, **columns)
    ops.save_chain(tx, edited)
    tx.emit("schedule", "edit", edited.id, project_id=edited.project_id, data={"rule": edited.rule})
    return edited


def _build_script_columns(
    current: Schedule, script: str | None, script_timeout_ms: int | None
) -> dict[str, Any]:
    command = _keep_if_unset(current.script, script)
    timeout_ms = _keep_if_unset(current.script_timeout_ms if command else None, script_timeout_ms)
    return occurrences.check_script(command, timeout_ms)


def _build_rule_columns(
    tx: Tx, current: Schedule, every_ms: int | None, cron: str | None, time_zone: str | None
) -> dict[str, Any]:
    """Return the columns of the rule, and its next time."""
    if every_ms is not None and cron is not None:
        raise Invalid("`every` and `cron` cannot be combined. Give only one of them.")
    zone_name = time_zone or current.time_zone
    load_zone(zone_name)
    kind, rule, anchor_at = current.kind, current.rule, current.anchor_at
    if every_ms is not None:
        kind, rule, anchor_at = ScheduleKind.EVERY, check_every(every_ms), tx.now + every_ms
    elif cron is not None or (time_zone is not None and kind is ScheduleKind.CRON):
        kind, rule = ScheduleKind.CRON, check_cron(cron or rule, zone_name, tx.now)
    upcoming = current.next_at
    changed = (kind, rule, zone_name) != (current.kind, current.rule, current.time_zone)
    if changed and current.state is ScheduleState.ACTIVE:
        upcoming = RecurrenceRule(kind, rule, zone_name, anchor_at).find_next(tx.now)
    return {
        "kind": kind,
        "rule": rule,
        "time_zone": zone_name,
        "anchor_at": anchor_at,
        "next_at": upcoming,
    }


def _keep_if_unset(current: Any, value: Any) -> Any:
    return current if value is UNSET else value
