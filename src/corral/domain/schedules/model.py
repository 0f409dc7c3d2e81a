"""A schedule puts letters at times given by its rule; a timer is a schedule that fires once."""

from enum import StrEnum
from typing import Any

import msgspec

from corral.domain.mail.model import mailbox_kind
from corral.kernel.states import TransitionTable, allow


class ScheduleState(StrEnum):
    ACTIVE = "active"  # its next time is known
    PAUSED = "paused"  # does not fire until it is resumed
    FINISHED = "finished"  # has fired for the last time
    CANCELLED = "cancelled"  # was cancelled


TRANSITIONS = TransitionTable(
    "schedule",
    ScheduleState,
    create_verb="create",
    initial=ScheduleState.ACTIVE,
    import_states=(ScheduleState.PAUSED, ScheduleState.FINISHED, ScheduleState.CANCELLED),
    verbs={
        "fire": allow(ScheduleState.ACTIVE, to=ScheduleState.ACTIVE),
        "finish": allow(ScheduleState.ACTIVE, to=ScheduleState.FINISHED),
        "pause": allow(ScheduleState.ACTIVE, to=ScheduleState.PAUSED),
        "resume": allow(ScheduleState.PAUSED, to=ScheduleState.ACTIVE),
        "cancel": allow(ScheduleState.ACTIVE, ScheduleState.PAUSED, to=ScheduleState.CANCELLED),
    },
)


class ScheduleKind(StrEnum):
    ONCE = "once"
    EVERY = "every"
    CRON = "cron"


class Misfire(StrEnum):
    """What happens to times that were missed, because no process fired the schedule."""

    ALL = "all"  # fire for every missed time
    LATEST = "latest"  # fire once, for the last missed time
    SKIP = "skip"  # do not fire for missed times


class Overlap(StrEnum):
    """What happens while the previous letter is not done."""

    ALLOW = "allow"  # put another letter
    SKIP = "skip"  # skip this time
    REPLACE = "replace"  # drop the previous letter


class Schedule(msgspec.Struct, frozen=True):
    """A schedule or a timer."""

    id: str
    name: str | None
    project_id: str | None
    mailbox: str
    body: Any
    priority: int
    kind: ScheduleKind
    rule: str
    time_zone: str
    anchor_at: int
    misfire: Misfire
    overlap: Overlap
    state: ScheduleState
    next_at: int | None
    last_at: int | None
    last_letter_id: str | None
    last_error: str | None
    script: str | None
    script_timeout_ms: int | None
    failures: int
    sender: str | None
    created_at: int
    ended_at: int | None

    @property
    def has_history(self) -> bool:
        """Whether each occurrence is recorded. Otherwise the letters themselves are the record."""
        return self.script is not None or mailbox_kind(self.mailbox) == "session"


class OccurrenceState(StrEnum):
    CHECKING = "checking"  # its script is queued or running
    PUT = "put"  # its letter is in the mailbox
    SKIPPED = "skipped"  # its script decided that there is nothing to do
    FAILED = "failed"  # its script failed in every attempt


OCCURRENCE_TRANSITIONS = TransitionTable(
    "occurrence",
    OccurrenceState,
    create_verb="check",
    initial=OccurrenceState.CHECKING,
    other_create_verbs={"record": OccurrenceState.PUT},
    verbs={
        # Its script failed and is retried after a back-off.
        "fail": allow(OccurrenceState.CHECKING, to=OccurrenceState.CHECKING),
        "put": allow(OccurrenceState.CHECKING, to=OccurrenceState.PUT),
        "skip": allow(OccurrenceState.CHECKING, to=OccurrenceState.SKIPPED),
        "give_up": allow(OccurrenceState.CHECKING, to=OccurrenceState.FAILED),
    },
)


class Occurrence(msgspec.Struct, frozen=True):
    """One time at which a schedule fired, and its outcome."""

    id: str
    schedule_id: str
    project_id: str | None
    scheduled_at: int | None
    state: OccurrenceState
    attempts: int
    exit_code: int | None
    output: str | None
    reason: str | None
    letter_id: str | None
    run_id: str | None
    created_at: int
    ended_at: int | None


class OccurrenceWithLetter(Occurrence, frozen=True):
    """An occurrence with the current state of its letter."""

    letter_state: str | None


EXIT_NOTHING_TO_DO = 77
"""The exit code for "nothing to do", as automake tests use it for "skipped"."""
NOTHING_TO_DO = "its script found nothing to do"


class ScriptResult(msgspec.Struct, frozen=True):
    """The decision of a script: put the letter, skip it, or a failure."""

    puts_letter: bool
    reason: str | None = None
    output: str = ""
    """The text that is added to the letter."""
    failed: bool = False


def parse_script_result(exit_code: int, output: str) -> ScriptResult:
    """Interpret the exit code and the last line of a script's output.

    Exit code 0 puts the letter, with the output; 77 skips it; any other code is a failure. If the
    last line is a JSON object, `{"wake": false, "reason": "…"}` skips the letter, and `data`
    replaces the output.
    """
    text = output.strip()
    if exit_code == EXIT_NOTHING_TO_DO:
        return ScriptResult(False, _last_line(text) or NOTHING_TO_DO)
    if exit_code != 0:
        reason = f"its script exited with {exit_code}: {_last_line(text)}"
        return ScriptResult(False, reason, failed=True)
    head, _, last = text.rpartition("\n")
    decision = _parse_decision(last)
    if decision is None:
        return ScriptResult(True, output=text)
    wake = decision.get("wake", decision.get("wakeAgent", True))
    if not isinstance(wake, bool):
        return ScriptResult(
            False, "`wake` in the last line of its script is not true or false", failed=True
        )
    if not wake:
        stated = decision.get("reason")
        reason = stated if isinstance(stated, str) and stated else NOTHING_TO_DO
        return ScriptResult(False, reason[:1_000])
    if "data" in decision:
        data = decision["data"]
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        return ScriptResult(True, output=text)
    return ScriptResult(True, output=head.strip())


def _parse_decision(line: str) -> dict[str, Any] | None:
    """Return the decision in a line of JSON; None: it is ordinary output."""
    if not line.startswith("{"):
        return None
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    is_decision = isinstance(value, dict) and {"wake", "wakeAgent", "data"} & {*value}
    return value if is_decision else None


def _last_line(text: str) -> str:
    return text.rpartition("\n")[2][:1_000] or "it printed nothing"
