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
    created_at: int
    ended_at: int | None
