"""A project is a directory that agents work in, with its default command and prompt."""

from enum import StrEnum

import msgspec

from corral.kernel.states import Moves, move


class ProjectState(StrEnum):
    ACTIVE = "active"  # listed, and agents may be started in it
    ARCHIVED = "archived"  # kept for its history; out of the way


MOVES = Moves(
    "project",
    ProjectState,
    begin="register",
    initial=ProjectState.ACTIVE,
    imports=(ProjectState.ACTIVE, ProjectState.ARCHIVED),
    verbs={
        "change": move(ProjectState.ACTIVE, to=ProjectState.ACTIVE),
        "archive": move(ProjectState.ACTIVE, to=ProjectState.ARCHIVED),
        # Said by `register` on an archived directory: whoever works there again wants it back.
        "restore": move(ProjectState.ARCHIVED, to=ProjectState.ACTIVE),
    },
)


class Project(msgspec.Struct, frozen=True):
    id: str
    dir: str
    name: str
    command: str | None
    prompt: str | None
    state: ProjectState
    created_at: int
    updated_at: int
    last_run_at: int | None
