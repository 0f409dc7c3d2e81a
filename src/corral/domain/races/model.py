"""Races: several attempts at the same work, by several agents or with several prompts.

A race has rounds, a round has attempts, and one attempt of a round wins. Each attempt works in its
own git worktree, from the base commit of the round. Checks are gates: an attempt that fails a check
never ranks above one that passes all checks. The winner's commit is the base of the next round. The
driver of a round holds a lease with a fencing token, and every step of a driver is repeatable, so
another driver can continue after a crash.
"""

from enum import StrEnum

import msgspec

from corral.kernel.states import TransitionTable, allow


class RaceState(StrEnum):
    ACTIVE = "active"  # a round is open, or another one may start
    COMPLETED = "completed"  # finished by a person or by its plan
    ABANDONED = "abandoned"  # given up; all commits and worktrees are kept


RACE_TRANSITIONS = TransitionTable(
    "race",
    RaceState,
    create_verb="start",
    initial=RaceState.ACTIVE,
    import_states=(RaceState.COMPLETED, RaceState.ABANDONED),
    verbs={
        "finish": allow(RaceState.ACTIVE, to=RaceState.COMPLETED),
        "abandon": allow(RaceState.ACTIVE, to=RaceState.ABANDONED),
        # Another round starts, from any earlier one.
        "reopen": allow(RaceState.COMPLETED, RaceState.ABANDONED, to=RaceState.ACTIVE),
    },
)


class RoundState(StrEnum):
    RUNNING = "running"  # at least one attempt is open
    SELECTING = "selecting"  # all attempts ended; a winner can be selected
    FAILED = "failed"  # all attempts ended, none passed: retry one or abandon the round
    COMPLETED = "completed"  # a winner is selected and its commit is kept
    ABANDONED = "abandoned"  # given up without a winner


ROUND_TRANSITIONS = TransitionTable(
    "round",
    RoundState,
    create_verb="begin",
    initial=RoundState.RUNNING,
    import_states=(RoundState.COMPLETED, RoundState.ABANDONED),
    verbs={
        "begin_selection": allow(RoundState.RUNNING, to=RoundState.SELECTING),
        "fail": allow(RoundState.RUNNING, to=RoundState.FAILED),
        "retry": allow(RoundState.SELECTING, RoundState.FAILED, to=RoundState.RUNNING),
        "select": allow(RoundState.SELECTING, to=RoundState.COMPLETED),
        # A person overrides the checks, the ranking, or an earlier selection.
        "overrule": allow(
            RoundState.SELECTING, RoundState.FAILED, RoundState.COMPLETED, to=RoundState.COMPLETED
        ),
        # Files of another attempt were added to the winner's commit.
        "graft": allow(RoundState.COMPLETED, to=RoundState.COMPLETED),
        "abandon": allow(
            RoundState.RUNNING, RoundState.SELECTING, RoundState.FAILED, to=RoundState.ABANDONED
        ),
    },
)


class AttemptState(StrEnum):
    PREPARING = "preparing"  # its worktree is being created and set up
    RUNNING = "running"  # its agent is running
    CHECKING = "checking"  # its agent exited with 0; its work is being committed and checked
    COMPLETED = "completed"  # committed and checked; `passed` has the outcome
    FAILED = "failed"  # could not be prepared, or its agent failed
    TIMED_OUT = "timed_out"  # its agent exceeded the timeout
    CANCELLED = "cancelled"  # by a caller, by the budget, or because it could no longer win


OPEN = (AttemptState.PREPARING, AttemptState.RUNNING, AttemptState.CHECKING)
ATTEMPT_TRANSITIONS = TransitionTable(
    "attempt",
    AttemptState,
    create_verb="plan",
    initial=AttemptState.PREPARING,
    import_states=(
        AttemptState.COMPLETED,
        AttemptState.FAILED,
        AttemptState.TIMED_OUT,
        AttemptState.CANCELLED,
    ),
    verbs={
        "start": allow(AttemptState.PREPARING, to=AttemptState.RUNNING),
        "finish": allow(AttemptState.RUNNING, to=AttemptState.CHECKING),
        "complete": allow(AttemptState.CHECKING, to=AttemptState.COMPLETED),
        "fail": allow(*OPEN, to=AttemptState.FAILED),
        "time_out": allow(AttemptState.RUNNING, to=AttemptState.TIMED_OUT),
        "cancel": allow(*OPEN, to=AttemptState.CANCELLED),
        "retry": allow(
            AttemptState.FAILED,
            AttemptState.TIMED_OUT,
            AttemptState.CANCELLED,
            AttemptState.COMPLETED,
            to=AttemptState.PREPARING,
        ),
    },
)


class VerdictState(StrEnum):
    PENDING = "pending"  # the judge is running
    GIVEN = "given"  # the judge ranked the candidates
    FAILED = "failed"  # the answer has no valid ranking and does not count


VERDICT_TRANSITIONS = TransitionTable(
    "verdict",
    VerdictState,
    create_verb="request",
    initial=VerdictState.PENDING,
    verbs={
        "give": allow(VerdictState.PENDING, to=VerdictState.GIVEN),
        "fail": allow(VerdictState.PENDING, to=VerdictState.FAILED),
    },
)


class CheckTally(msgspec.Struct, frozen=True):
    """Numbers of tests, from the JUnit report or the output of a check."""

    total: int
    passed: int
    failed: int
    errors: int = 0
    skipped: int = 0


class CheckResult(msgspec.Struct, frozen=True):
    """One check of an attempt and its outcome."""

    command: str
    exit_code: int
    """As in a shell; 124 means that the check timed out."""
    duration_ms: int
    tests: CheckTally | None = None
    output: str | None = None
    """The end of its output."""


class RacePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all rounds of a race share."""

    checks: list[str] = []
    setup: str | None = None
    """Command to run in each worktree before its agent starts."""
    rounds: int = 1
    auto: bool = False
    """Whether the best attempt is selected and the next round started automatically."""
    stop_after: int | None = None
    """Cancel the other attempts once this many have passed; None: let all attempts end."""
    judge: str | None = None
    samples: int = 2
    """How often the judge is asked. Every second time the candidates are in reverse order."""
    rubric: str | None = None
    """Criteria for the judge."""
    timeout_ms: int | None = None
    check_timeout_ms: int | None = None
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Names of environment variables, with references to secrets; never the values."""
    approvals: list[str] = []
    sandbox: str = "none"
    unsandboxed_commands: bool = False
    """Whether set-up and checks run outside the sandbox."""
    continue_session: bool = False
    """Whether later rounds continue the winner's conversation."""
    reports: list[str] = []
    """Paths of the JUnit reports that checks write, relative to the project's directory."""


class RaceBase(msgspec.Struct, frozen=True):
    """The commit and the repository from which a race starts."""

    repository: str
    subdirectory: str
    """The path of the project's directory inside the repository; empty for its root."""
    managed_repository: bool
    """Whether Corral created the repository, because the directory is in none."""
    branch: str | None
    """The user's current branch; None for a detached HEAD."""
    commit: str


class AttemptSpec(msgspec.Struct, frozen=True):
    """One requested attempt: its agent and its variation of the prompt."""

    agent: str | None
    """None: the default agent of the project."""
    variation: str | None = None


class Attempt(msgspec.Struct, frozen=True):
    """One agent's try in a race, in its own worktree."""

    id: str
    race_id: str
    round_id: str
    project_id: str
    number: int
    """Its number in the round, from 1."""
    state: AttemptState
    agent: str | None
    """The name of the agent; None: the default agent of the project."""
    agent_version: int | None
    """The version of the agent's definition that its run was started with."""
    provider: str | None
    """The agent CLI of its run."""
    model: str | None
    variation: str | None
    """The text that was added to the prompt of the round."""
    prompt: str
    """The complete prompt, with the variation."""
    branch: str
    """The git branch of its worktree. Each try has its own branch and worktree."""
    worktree: str
    port: int | None
    """A port that is reserved for a server of the attempt."""
    sandbox: str | None
    """The kind of its sandbox, or none; None: not started yet."""
    run_id: str | None
    """The run of the current try."""
    session_id: str | None
    try_number: int
    """1 for the first try; each retry increments it."""
    commit: str | None
    """The commit with its work."""
    checked_tree: str | None
    """A fingerprint of the worktree after the checks, which shows later changes."""
    passed: bool | None
    """Whether it passed all checks; None: it was not checked, or there are no checks."""
    checks: list[CheckResult]
    files: int | None
    """Number of changed files."""
    insertions: int | None
    """Number of added lines."""
    deletions: int | None
    """Number of deleted lines."""
    previous_cost_micros: int | None
    """Cost of the earlier tries; None: there are none, or it is not known."""
    cost_micros: int | None
    """Known cost of all tries; None: not known."""
    reason: str | None
    """Why it is in this state, such as the failed check."""
    created_at: int
    started_at: int | None
    """When its run was requested."""
    ended_at: int | None
    cleaned_at: int | None
    """When its worktree was removed."""
    score: float | None = None
    """From 0 to 1; see `ranking`."""
    rank: int | None = None
    """1 is the best; None: the attempt cannot be selected."""
    is_winner: bool = False

    @property
    def is_open(self) -> bool:
        return self.ended_at is None

    @property
    def can_win(self) -> bool:
        """Whether the attempt completed and failed no check."""
        return self.state is AttemptState.COMPLETED and self.passed is not False

    @property
    def duration_ms(self) -> int | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at


class JudgeVerdict(msgspec.Struct, frozen=True):
    """One answer of a judge."""

    id: str
    race_id: str
    round_id: str
    project_id: str
    number: int
    """Its number in the round, from 1."""
    state: VerdictState
    judge: str
    """The name of the agent that judges."""
    model: str | None
    run_id: str | None
    labels: dict[str, str]
    """Attempt ids by the label shown to the judge, in the order in which they were shown."""
    prompt_hash: str
    """Identifies the prompt that the judge was given."""
    truncated: bool
    """Whether a diff was too long to be shown completely."""
    ranking: list[list[str]] | None
    """Groups of attempt ids, the best first. The attempts of a group are tied."""
    reason: str | None
    """The judge's explanation, or why the verdict failed."""
    cost_micros: int | None
    created_at: int
    ended_at: int | None


class Selection(msgspec.Struct, frozen=True):
    """The record of a selection: the winner, who selected it and why."""

    round_id: str
    number: int
    """Its number in the round, from 1. The last one is in force."""
    verb: str
    """select, overrule or graft."""
    attempt_id: str
    commit: str
    """The winner's commit after the selection, from which the next round starts."""
    ranked_first_id: str | None
    """The attempt that ranked first at that time, for comparison."""
    selected_by: str
    reason: str | None
    selected_at: int


class Graft(msgspec.Struct, frozen=True):
    """A trial to add files of another attempt to the winner's commit."""

    id: str
    round_id: str
    attempt_id: str
    """The attempt whose files were tried."""
    files: list[str]
    commit: str | None
    """The commit that was tried; None: the changes conflicted with the winner."""
    kept: bool
    """Whether the commit became the winner's."""
    checks: list[CheckResult]
    reason: str
    created_by: str
    created_at: int


class GraftTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a trial that is not recorded yet."""

    attempt_id: str
    files: list[str]
    commit: str | None
    """None: the changes conflict with the winner."""
    checks: list[CheckResult]
    kept: bool
    """Whether the commit becomes the winner's: no check got worse."""
    reason: str


class Round(msgspec.Struct, frozen=True):
    """Attempts from one base commit, of which one wins."""

    id: str
    race_id: str
    project_id: str
    number: int
    """Its number in the race, from 1."""
    state: RoundState
    parent_id: str | None
    """The round whose winner is the base; None: it starts from the base commit of the race."""
    base_attempt_id: str | None
    """The attempt that won that round."""
    base_commit: str
    """The commit from which its attempts start."""
    prompt: str
    budget_micros: int | None
    """Maximum cost of the round, which its attempts share; None: no limit."""
    winner_id: str | None
    """The attempt that won."""
    winner_commit: str | None
    """The winner's commit, with grafted files. The next round starts from it."""
    reason: str | None
    """Why the winner was selected, or why the round failed or was abandoned."""
    decided_by: str | None
    """The actor that selected the winner, or `auto (…)` for a selection by the race itself."""
    needs_driver: bool
    """Whether a driver still has work to do: attempts, a judge, or an automatic selection."""
    host: str
    """The machine that has the worktrees. Only its drivers work on the round."""
    owner: str | None
    """The driver that holds the lease, or held it last."""
    fence: int
    """The fencing token. It is incremented whenever a driver acquires the round."""
    lease_until: int | None
    """End of the driver's lease; None: no driver has it."""
    created_at: int
    ended_at: int | None
    """When its winner was selected or it was abandoned."""
    attempts: list[Attempt] = []
    verdicts: list[JudgeVerdict] = []
    selections: list[Selection] = []
    grafts: list[Graft] = []

    @property
    def ranked(self) -> list[Attempt]:
        """The attempts that can be selected, the best first."""
        return sorted(
            (attempt for attempt in self.attempts if attempt.rank is not None),
            key=lambda attempt: attempt.rank or 0,
        )

    @property
    def has_pending_verdict(self) -> bool:
        """Whether a judge is still running."""
        return any(verdict.state is VerdictState.PENDING for verdict in self.verdicts)


class Race(msgspec.Struct, frozen=True):
    """Several attempts at the same work, in rounds."""

    id: str
    project_id: str
    name: str
    prompt: str
    """The prompt of the first round."""
    state: RaceState
    repository: str
    """The git repository of the worktrees; empty for an imported race."""
    subdirectory: str
    """The path of the project's directory inside the repository; empty for its root."""
    managed_repository: bool
    """Whether Corral created the repository, because the directory is in none."""
    branch: str | None
    """The branch that was checked out at the start; None for a detached HEAD."""
    base_commit: str
    """The base commit of the first round."""
    host: str
    """The machine that has the worktrees."""
    plan: RacePlan
    budget_micros: int | None
    """Maximum cost of all rounds; None: no limit of its own."""
    merged_commit: str | None
    """The winner's commit that was merged last."""
    reason: str | None
    """Why it was completed or abandoned."""
    created_at: int
    created_by: str
    """The actor that started it. An agent or a person is notified about its rounds."""
    ended_at: int | None
    rounds: list[Round] = []
    spent_micros: int | None = None
    """Known cost of attempts and judges."""

    @property
    def latest(self) -> Round:
        """The round that was started last."""
        return self.rounds[-1]


class WinRate(msgspec.Struct, frozen=True):
    """How often attempts of one agent, model, provider or variation win decided rounds."""

    key: str | None
    attempts: int
    passed: int
    wins: int
    cost_micros: int | None
    unpriced: int
    """Number of attempts without a known cost; `cost_micros` does not include them."""
    win_rate: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """Bounds of the 95 % confidence interval (Wilson)."""
    micros_per_win: int | None = None


def add_costs(one: int | None, other: int | None) -> int | None:
    """Add two costs; an unknown cost counts as 0 unless both are unknown."""
    return None if one is None is other else (one or 0) + (other or 0)
