"""The results of the reports."""

from enum import StrEnum
from typing import Any

import msgspec

from corral.domain.charges.model import UsageTotal
from corral.domain.projects.model import Project
from corral.domain.races.model import RaceState, RoundState
from corral.domain.runs.denials import Denial, describe_denied
from corral.domain.runs.model import Dialog, Run, describe_run


class StatsGroup(StrEnum):
    """The attributes by which run statistics are grouped."""

    PROJECT = "project"
    AGENT = "agent"
    MODEL = "model"
    PROVIDER = "provider"
    DAY = "day"


class RunSummary(msgspec.Struct, frozen=True):
    """A run as an overview shows it."""

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
    """When its supervisor last reported."""
    started_at: int | None
    ended_at: int | None
    denials: list[Denial] | None

    @property
    def denied_text(self) -> str | None:
        """A description of the denied calls; None when none were denied."""
        return describe_denied(self.denials)

    @property
    def description(self) -> str:
        """A one-line description: the title, or the command line."""
        return describe_run(self.title, self.command, self.args)


class SubmittedTask(msgspec.Struct, frozen=True):
    """A submitted task that waits for a review."""

    id: str
    key: str
    title: str
    project_id: str
    project: str | None
    """The project's name."""
    agent_id: str | None
    submitted_at: int


class Overview(msgspec.Struct, frozen=True):
    """Active runs, what needs attention, recent failures, and the cost of today."""

    at: int
    active: list[RunSummary]
    attention: list[RunSummary]
    queued: int
    failed: list[RunSummary]
    """Runs that failed in the last 24 hours, newest first."""
    recent: list[RunSummary]
    """The runs that ended last, with any outcome."""
    dead_letters: int
    unconfirmed_letters: int
    """Letters whose delivery is unconfirmed."""
    open_questions: int
    proposed_decisions: int
    """Open questions and proposed decisions before their deadline."""
    submitted: list[SubmittedTask]
    """Tasks without a check command that wait for a review, oldest first."""
    submitted_tasks: int
    """The number of tasks that wait for a review."""
    today: UsageTotal
    more: bool
    """Whether a list or a count was cut off at its limit."""


class ProjectView(msgspec.Struct, frozen=True):
    """A project with its latest run, run counts and cost."""

    project: Project
    latest_run: Run | None
    total_runs: int
    states: dict[str, int]
    """The number of runs by state; states without runs are left out."""
    exact: bool
    """False: a count reached its limit, so the numbers are lower bounds."""
    total: UsageTotal
    """The total cost of the project."""


class CrashedRun(msgspec.Struct, frozen=True):
    """A crashed run with the directory of its project."""

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
    """The statistics of the runs of one group."""

    key: str | None
    """A project or agent id, a model, a provider or a day; None: runs without one."""
    label: str | None
    """The name of the project or agent."""
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
    unpriced: int
    """The number of runs without a known cost; `cost_micros` is a lower bound if it is not 0."""

    success_rate: float | None = None
    """Completed runs divided by all runs that were not cancelled; None: no such runs."""


class NamedItem(msgspec.Struct, frozen=True):
    """An id with its readable name."""

    id: str
    label: str


class CostGroup(StrEnum):
    """The attributes by which daily costs are grouped."""

    PROJECT = "project"
    AGENT = "agent"
    MODEL = "model"


class DailyCost(msgspec.Struct, frozen=True):
    """The cost of a project, an agent or a model on one day."""

    scope: str
    day: str
    charges: int
    unpriced: int
    """The number of charges without a cost; `cost_micros` is a lower bound if it is not 0."""
    tokens: int
    cost_micros: int | None

    @property
    def key(self) -> str:
        """The project id, agent id or model."""
        return self.scope.partition(":")[2]


class TaskCost(msgspec.Struct, frozen=True):
    """The cost of a task in its last run.

    These are the charges of that run from the start of the task until the run claimed its next
    task. Charges of earlier runs are not included.
    """

    id: str
    key: str
    title: str
    state: str
    agent_id: str | None
    run_id: str
    charges: int
    unpriced: int
    """The number of charges without a cost; `cost_micros` is a lower bound if it is not 0."""
    tokens: int
    cost_micros: int | None


class TaskEvent(msgspec.Struct, frozen=True):
    """An event of a task, as far as the board history needs it."""

    seq: int
    at: int
    actor: str
    verb: str
    data: Any


class PastTask(msgspec.Struct, frozen=True):
    """A task as it was at a time. Key, title and role are the current ones."""

    id: str
    key: str
    title: str
    role: str | None
    state: str | None
    """None: unknown, because the events do not reach back that far."""
    agent: str | None
    """The agent that worked on it, or had finished it."""
    verb: str | None
    """The transition that led to the state; `actor` made it at `since`."""
    actor: str | None
    since: int | None


class PastLock(msgspec.Struct, frozen=True):
    """A lock that was held at a time."""

    id: str
    path: str
    mode: str
    owner: str
    run_id: str | None
    reason: str | None
    held_at: int
    ended_at: int | None


class PastBoard(msgspec.Struct, frozen=True):
    """The board of a project as it was at a time."""

    at: int
    tasks: list[PastTask]
    next: str | None
    """The cursor for `after` of the next page of tasks; None: this is the last page."""
    locks: list[PastLock]
    """Newest first."""


class RaceSummary(msgspec.Struct, frozen=True):
    """A race as a list shows it, with its latest round and its last winner."""

    id: str
    project_id: str
    name: str
    state: RaceState
    created_at: int
    created_by: str
    ended_at: int | None
    budget_micros: int | None
    spent_micros: int | None
    """The known cost of attempts and judges."""
    rounds: int
    round_state: RoundState
    needs_driver: bool
    """Whether the latest round continues without a person."""
    attempts: int
    """The attempts of the latest round; of these `under_way` are live and `can_win` selectable."""
    under_way: int
    can_win: int
    winner_round: int | None
    """The last winner: its round, attempt number and agent."""
    winner_number: int | None
    winner_agent: str | None

    @property
    def waits(self) -> bool:
        """Whether a person has to select a winner, retry or end the race."""
        return (
            self.round_state in (RoundState.SELECTING, RoundState.FAILED) and not self.needs_driver
        )
