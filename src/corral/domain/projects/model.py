"""A project is a directory that agents work in, with its default command and prompt."""

from enum import StrEnum

import msgspec

from corral.kernel.states import TransitionTable, allow


class ProjectState(StrEnum):
    ACTIVE = "active"  # listed, and agents can be started in it
    ARCHIVED = "archived"  # kept for its history; not listed


TRANSITIONS = TransitionTable(
    "project",
    ProjectState,
    create_verb="register",
    initial=ProjectState.ACTIVE,
    import_states=(ProjectState.ACTIVE, ProjectState.ARCHIVED),
    verbs={
        "change": allow(ProjectState.ACTIVE, to=ProjectState.ACTIVE),
        "archive": allow(ProjectState.ACTIVE, to=ProjectState.ARCHIVED),
        # By `register` of an archived project: the directory is used again.
        "restore": allow(ProjectState.ARCHIVED, to=ProjectState.ACTIVE),
    },
)


class Project(msgspec.Struct, frozen=True):
    """A registered directory."""

    id: str
    dir: str
    name: str
    command: str | None
    prompt: str | None
    state: ProjectState
    created_at: int
    updated_at: int
    last_run_at: int | None
