"""A schedule puts letters at moments that follow from its rule; a timer is one that fires once."""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import Moves, move


class ScheduleState(StrEnum):
    ACTIVE = "active"  # its next moment is known
    PAUSED = "paused"  # nothing is put until it is resumed
    FINISHED = "finished"  # its last moment has passed
    CANCELLED = "cancelled"  # taken back


S = ScheduleState
MOVES = Moves(
    "schedule",
    ScheduleState,
    begin="create",
    initial=S.ACTIVE,
    imports=(S.PAUSED, S.FINISHED, S.CANCELLED),
    verbs={
        "fire": move(S.ACTIVE, to=S.ACTIVE),
        "finish": move(S.ACTIVE, to=S.FINISHED),
        "pause": move(S.ACTIVE, to=S.PAUSED),
        "resume": move(S.PAUSED, to=S.ACTIVE),
        "cancel": move(S.ACTIVE, S.PAUSED, to=S.CANCELLED),
    },
)


class Kind(StrEnum):
    ONCE = "once"
    EVERY = "every"
    CRON = "cron"


class Misfire(StrEnum):
    ALL = "all"  # put every moment that was missed
    LATEST = "latest"  # put the last of them
    SKIP = "skip"  # put none of them


class Overlap(StrEnum):
    ALLOW = "allow"  # put another letter beside the open one
    SKIP = "skip"  # leave this moment out
    REPLACE = "replace"  # drop the open one


class Schedule(msgspec.Struct, frozen=True):
    id: str
    name: str | None
    project_id: str | None
    mailbox: str
    body: Any
    priority: int
    kind: Kind
    rule: str
    time_zone: str
    anchor_at: int
    misfire: Misfire
    overlap: Overlap
    state: ScheduleState
    next_at: int | None
    last_at: int | None
    last_letter: int | None
    last_error: str | None
    script: str | None
    script_ms: int | None
    failures: int
    sender: str | None
    created_at: int
    ended_at: int | None

    @property
    def keeps_history(self) -> bool:
        """Whether it is kept what became of each of its moments: those of a plain letter are told
        by the letters."""
        return self.script is not None or self.mailbox.startswith("session:")


class OccurrenceState(StrEnum):
    CHECKING = "checking"  # its script is to be run, or runs
    PUT = "put"  # its letter is in the mailbox
    SKIPPED = "skipped"  # its script said that there is nothing to do
    FAILED = "failed"  # its script failed, as often as it was tried


Became = OccurrenceState
OCCURRENCE_MOVES = Moves(
    "occurrence",
    OccurrenceState,
    begin="check",
    initial=Became.CHECKING,
    also={"put": Became.PUT},
    verbs={
        # Its script failed, and is run again after a pause.
        "fail": move(Became.CHECKING, to=Became.CHECKING),
        "let_through": move(Became.CHECKING, to=Became.PUT),
        "skip": move(Became.CHECKING, to=Became.SKIPPED),
        "give_up": move(Became.CHECKING, to=Became.FAILED),
    },
)


class Occurrence(msgspec.Struct, frozen=True):
    """One moment of a schedule, and what became of it."""

    id: str
    schedule_id: str
    project_id: str | None
    moment: int | None
    state: OccurrenceState
    tries: int
    exit_code: int | None
    output: str | None
    reason: str | None
    letter_id: str | None
    run_id: str | None
    created_at: int
    ended_at: int | None


class Past(Occurrence, frozen=True):
    """An occurrence with what has become of its letter since."""

    letter_state: str | None


NOTHING_TO_DO = 77
"""The exit code with which a script says so, as test programs do."""


class Verdict(msgspec.Struct, frozen=True):
    """What a script says: whether a letter is put, or why that cannot be told."""

    wakes: bool
    reason: str | None = None
    found: str = ""
    failed: bool = False


def verdict(exit_code: int, output: str) -> Verdict:
    """What a script says by its exit code and its last line.

    0 lets the letter be put, with what was printed; 77 does not; anything else is a failure. A last
    line that is a JSON object may say `{"wake": false, "reason": "…"}`; `data` in it is what the
    letter is given instead of the output.
    """
    text = output.strip()
    if exit_code == NOTHING_TO_DO:
        return Verdict(False, _last_line(text) or "its script found nothing to do")
    if exit_code != 0:
        return Verdict(False, f"its script ended with {exit_code}: {_last_line(text)}", failed=True)
    head, _, last = text.rpartition("\n")
    said = _object(last)
    if said is None:
        return Verdict(True, found=text)
    wakes = said.get("wake", said.get("wakeAgent", True))
    if not isinstance(wakes, bool):
        return Verdict(
            False, "the `wake` of its script's last line is neither true nor false", failed=True
        )
    if not wakes:
        reason = said.get("reason")
        told = reason if isinstance(reason, str) and reason else "its script found nothing to do"
        return Verdict(False, told[:1_000])
    if "data" in said:
        data = said["data"]
        found = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        return Verdict(True, found=found)
    return Verdict(True, found=head.strip())


def _object(line: str) -> dict[str, Any] | None:
    """A line that speaks to us; None: it is output like any other."""
    if not line.startswith("{"):
        return None
    try:
        said = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    known = isinstance(said, dict) and {"wake", "wakeAgent", "data"} & {*said}
    return said if known else None


def _last_line(text: str) -> str:
    return text.rpartition("\n")[2][:1_000] or "it printed nothing"
