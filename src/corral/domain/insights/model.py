"""What the questions are answered with."""

from enum import StrEnum
from typing import Any

import msgspec

from corral.domain.charges.model import Total
from corral.domain.projects.model import Project
from corral.domain.races.model import RaceState, RoundState
from corral.domain.runs.model import Denial, Dialog, Run, describe_denied


class By(StrEnum):
    """What runs are grouped by."""

    PROJECT = "project"
    AGENT = "agent"
    MODEL = "model"
    PROVIDER = "provider"
    DAY = "day"


class Glance(msgspec.Struct, frozen=True):
    """A run, as short as an overview shows it."""

    id: str
    name: str | None
    title: str | None
    state: str
    command: str
    args: list[str]
    provider: str
    project_id: str | None
    project: str | None
    """The project's name."""
    attention: str | None
    attention_at: int | None
    dialog: Dialog | None
    reason: str | None
    exit_code: int | None
    signal: int | None
    cost_micros: int | None
    seen_at: int | None
    """When its keeper last said how it is."""
    started_at: int | None
    ended_at: int | None
    denials: list[Denial] | None

    @property
    def denied_text(self) -> str | None:
        """How many calls were denied, and of which tools; None when none were."""
        return describe_denied(self.denials)

    @property
    def what(self) -> str:
        """What it does, in a line: its title, or its command line."""
        return self.title or " ".join([self.command, *self.args])


class Submitted(msgspec.Struct, frozen=True):
    """A task that is said to be done, and that somebody has to judge."""

    id: str
    key: str
    title: str
    project_id: str
    project: str | None
    """The project's name."""
    agent_id: str | None
    submitted_at: int


class Overview(msgspec.Struct, frozen=True):
    """What runs, what waits for you, what failed lately, what it cost today."""

    at: int
    active: list[Glance]
    attention: list[Glance]
    queued: int
    failed: list[Glance]
    """Runs that ended badly in the last 24 hours, newest first."""
    recent: list[Glance]
    """Runs that ended last, however they did."""
    dead_letters: int
    doubtful_letters: int
    """Letters of which nobody knows whether they arrived."""
    open_questions: int
    proposed_decisions: int
    """That wait for somebody to answer or confirm, and are not too late yet."""
    submitted: list[Submitted]
    """Tasks that no check judges, and that wait to be accepted or rejected; oldest first."""
    submitted_tasks: int
    """How many there are of these."""
    today: Total
    more: bool
    """Whether there is more of something than is shown, or counted."""


class ProjectView(msgspec.Struct, frozen=True):
    project: Project
    latest_run: Run | None
    total_runs: int
    states: dict[str, int]
    """How many runs are in each state that there is any in."""
    exact: bool
    """False: there are so many that counting stopped, and the numbers are at least these."""
    total: Total
    """What the project has cost so far."""


class CrashedRun(msgspec.Struct, frozen=True):
    id: str
    name: str | None
    pid: int | None
    started_at: int | None
    ended_at: int | None
    exit_code: int | None
    signal: int | None
    reason: str | None
    command: str
    args: list[str]
    cwd: str
    project_id: str | None
    dir: str | None
    """The project's directory."""


class Stats(msgspec.Struct, frozen=True):
    """How the runs of one group went."""

    key: str | None
    """A project's or agent's id, a model, a provider or a day; None: it has none."""
    label: str | None
    """A name for people, where there is one."""
    runs: int
    completed: int
    failed: int
    crashed: int
    cancelled: int
    timed_out: int
    interrupted: int
    median_ms: int | None
    p95_ms: int | None
    tokens: int | None
    cost_micros: int | None
    unknown: int
    """How many of the runs have no known cost, so that `cost_micros` tells too little."""

    success_rate: float | None = None
    """Completed runs among all that were not cancelled; None when there were none."""


class Named(msgspec.Struct, frozen=True):
    """A thing, and what people call it."""

    id: str
    label: str


class CostBy(StrEnum):
    """What costs are shown by, day by day."""

    PROJECT = "project"
    AGENT = "agent"
    MODEL = "model"


class Cost(msgspec.Struct, frozen=True):
    """What a project, an agent or a model cost on one day."""

    scope: str
    day: str
    charges: int
    unknown: int
    """How many of the charges have no cost, so that `cost_micros` tells too little."""
    tokens: int
    cost_micros: int | None

    @property
    def key(self) -> str:
        """The project's or agent's id, or the model."""
        return self.scope.partition(":")[2]


class TaskCost(msgspec.Struct, frozen=True):
    """What a task cost in the run that did it last: the charges of that run from the task's start
    until the run took its next task. What was charged in runs before that is not in it."""

    id: str
    key: str
    title: str
    state: str
    agent_id: str | None
    run_id: str
    charges: int
    unknown: int
    """How many of the charges have no cost, so that `cost_micros` tells too little."""
    tokens: int
    cost_micros: int | None


class Deed(msgspec.Struct, frozen=True):
    """One line of the record, as far as a board of the past needs it."""

    seq: int
    at: int
    actor: str
    verb: str
    data: Any


class Then(msgspec.Struct, frozen=True):
    """A task as it was at a moment; its key, title and role are those of today."""

    id: str
    key: str
    title: str
    role: str | None
    state: str | None
    """None: the record does not go back so far."""
    agent: str | None
    """Who did it, or had done it."""
    verb: str | None
    """The move that had brought it there, who made it, and when."""
    actor: str | None
    since: int | None


class Held(msgspec.Struct, frozen=True):
    """A lock that was held at a moment."""

    id: str
    path: str
    mode: str
    owner: str
    run_id: str | None
    reason: str | None
    held_at: int
    ended_at: int | None


class Moment(msgspec.Struct, frozen=True):
    """A project's board as it was at a moment."""

    at: int
    tasks: list[Then]
    next: str | None
    """Hand it back as `after` for the tasks that follow; None when there were no more."""
    locks: list[Held]
    """Newest first."""


class RaceGlance(msgspec.Struct, frozen=True):
    """A race, as short as a list shows it: how its latest round stands, and who won last."""

    id: str
    project_id: str
    name: str
    state: RaceState
    created_at: int
    created_by: str
    ended_at: int | None
    budget_micros: int | None
    spent_micros: int | None
    """What attempts and judges cost, as far as that is known."""
    rounds: int
    round_state: RoundState
    goes_on: bool
    """Whether something of the latest round happens by itself."""
    attempts: int
    """Of the latest round: all, those under way, and those that can be chosen."""
    under_way: int
    can_win: int
    winner_round: int | None
    """Who won last: in which round, as which attempt, by which agent."""
    winner_number: int | None
    winner_agent: str | None

    @property
    def waits(self) -> bool:
        """Whether somebody has to choose, to try again or to give up."""
        return self.round_state in (RoundState.SELECTING, RoundState.FAILED) and not self.goes_on
