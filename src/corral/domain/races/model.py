"""A race asks several agents, or one several ways, for the same thing, and the winner goes on.

A race has rounds, a round has attempts, and one attempt of a round wins. Each attempt works in a
git worktree of its own, from the round's base commit. Checks are gates: what fails one never ranks
above what passes all. The winner's commit is the base of the next round. Whoever drives a round
holds it by a lease with a fence; everything that it does can be done again by another.
"""

from enum import StrEnum

import msgspec

from corral.kernel.states import Moves, move


class RaceState(StrEnum):
    ACTIVE = "active"  # a round is under way, or another one may begin
    COMPLETED = "completed"  # somebody, or its plan, says that it is over
    ABANDONED = "abandoned"  # given up; what was made is kept


RACE_MOVES = Moves(
    "race",
    RaceState,
    begin="start",
    initial=RaceState.ACTIVE,
    imports=(RaceState.COMPLETED, RaceState.ABANDONED),
    verbs={
        "finish": move(RaceState.ACTIVE, to=RaceState.COMPLETED),
        "abandon": move(RaceState.ACTIVE, to=RaceState.ABANDONED),
        # Another round begins, from any earlier one.
        "reopen": move(RaceState.COMPLETED, RaceState.ABANDONED, to=RaceState.ACTIVE),
    },
)


class RoundState(StrEnum):
    RUNNING = "running"  # attempts are prepared, work, or are checked
    SELECTING = "selecting"  # all are over, and one that passed can be chosen
    FAILED = "failed"  # all are over, and none passed: retry one, or abandon the round
    COMPLETED = "completed"  # its winner is chosen, and that commit is kept
    ABANDONED = "abandoned"  # given up without a winner


R = RoundState
ROUND_MOVES = Moves(
    "round",
    RoundState,
    begin="begin",
    initial=R.RUNNING,
    imports=(R.COMPLETED, R.ABANDONED),
    verbs={
        "settle": move(R.RUNNING, to=R.SELECTING),
        "fail": move(R.RUNNING, to=R.FAILED),
        "retry": move(R.SELECTING, R.FAILED, to=R.RUNNING),
        "select": move(R.SELECTING, to=R.COMPLETED),
        # A person chooses otherwise than the ranking, or than what was chosen before.
        "overrule": move(R.SELECTING, R.FAILED, R.COMPLETED, to=R.COMPLETED),
        # Files of another attempt were put onto the winner's.
        "graft": move(R.COMPLETED, to=R.COMPLETED),
        "abandon": move(R.RUNNING, R.SELECTING, R.FAILED, to=R.ABANDONED),
    },
)


class AttemptState(StrEnum):
    PREPARING = "preparing"  # its worktree is made and set up
    RUNNING = "running"  # its agent works
    CHECKING = "checking"  # its agent ended well; what it left is committed and checked
    COMPLETED = "completed"  # committed and checked; `passed` says with what outcome
    FAILED = "failed"  # it could not be prepared, or its agent failed
    TIMED_OUT = "timed_out"  # its agent's time was over
    CANCELLED = "cancelled"  # ended by somebody, by its budget, or because it had lost already


A = AttemptState
OPEN = (A.PREPARING, A.RUNNING, A.CHECKING)
ATTEMPT_MOVES = Moves(
    "attempt",
    AttemptState,
    begin="plan",
    initial=A.PREPARING,
    imports=(A.COMPLETED, A.FAILED, A.TIMED_OUT, A.CANCELLED),
    verbs={
        "start": move(A.PREPARING, to=A.RUNNING),
        "finish": move(A.RUNNING, to=A.CHECKING),
        "complete": move(A.CHECKING, to=A.COMPLETED),
        "fail": move(*OPEN, to=A.FAILED),
        "time_out": move(A.RUNNING, to=A.TIMED_OUT),
        "cancel": move(*OPEN, to=A.CANCELLED),
        "retry": move(A.FAILED, A.TIMED_OUT, A.CANCELLED, A.COMPLETED, to=A.PREPARING),
    },
)


class VerdictState(StrEnum):
    ASKED = "asked"  # the judge is at work
    GIVEN = "given"  # it has ranked the candidates
    FAILED = "failed"  # it gave no ranking that can be read; it does not count


VERDICT_MOVES = Moves(
    "verdict",
    VerdictState,
    begin="ask",
    initial=VerdictState.ASKED,
    verbs={
        "give": move(VerdictState.ASKED, to=VerdictState.GIVEN),
        "fail": move(VerdictState.ASKED, to=VerdictState.FAILED),
    },
)


class Tally(msgspec.Struct, frozen=True):
    """What a check's report, or what it printed, says of its tests."""

    total: int
    passed: int
    failed: int
    errors: int = 0
    skipped: int = 0


class Check(msgspec.Struct, frozen=True):
    """One gate, and how it ended."""

    command: str
    exit_code: int
    """As a shell tells it; 124: its time was over."""
    duration_ms: int
    tests: Tally | None = None
    output: str | None = None
    """The last of what it printed."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a race is run: what every round of it has alike."""

    checks: list[str] = []
    setup: str | None = None
    """A command that is run in each worktree before its agent starts."""
    rounds: int = 1
    auto: bool = False
    """Whether the best is chosen, and the next round begun, without anybody."""
    enough: int | None = None
    """When so many have passed, the others have lost; None: each is given its time."""
    judge: str | None = None
    samples: int = 2
    """How often the judge is asked; each second time in the opposite order."""
    rubric: str | None = None
    """What the judge is to look at."""
    timeout_ms: int | None = None
    check_timeout_ms: int | None = None
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """References, never values."""
    approvals: list[str] = []
    sandbox: str = "none"
    commands_outside: bool = False
    """Whether set-up and checks run outside of the sandbox."""
    goes_on: bool = False
    """Whether later attempts go on with the winner's conversation."""
    reports: list[str] = []
    """Where checks leave JUnit reports, from the worktree's top."""


class Entry(msgspec.Struct, frozen=True):
    """One attempt that is wanted: who, and in which way."""

    agent: str | None
    """None: whoever answers prompts in the project."""
    variation: str | None = None


class Attempt(msgspec.Struct, frozen=True):
    id: str
    race_id: str
    round_id: str
    project_id: str
    number: int
    state: AttemptState
    agent: str | None
    agent_version: int | None
    provider: str | None
    model: str | None
    variation: str | None
    prompt: str
    branch: str
    worktree: str
    port: int | None
    sandbox: str | None
    run_id: str | None
    session_id: str | None
    tries: int
    commit: str | None
    checked_tree: str | None
    passed: bool | None
    checks: list[Check]
    files: int | None
    insertions: int | None
    deletions: int | None
    earlier_micros: int | None
    cost_micros: int | None
    reason: str | None
    created_at: int
    started_at: int | None
    ended_at: int | None
    cleaned_at: int | None
    score: float | None = None
    """From 0 to 1, among the attempts of its round; see `ranking`."""
    rank: int | None = None
    """1 is the best; None: it cannot be chosen."""
    is_winner: bool = False

    @property
    def is_open(self) -> bool:
        return self.ended_at is None

    @property
    def can_win(self) -> bool:
        """Whether it ended well and no gate stands against it."""
        return self.state is A.COMPLETED and self.passed is not False

    @property
    def duration_ms(self) -> int | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at


class Verdict(msgspec.Struct, frozen=True):
    """What a judge said, once."""

    id: str
    race_id: str
    round_id: str
    project_id: str
    number: int
    state: VerdictState
    judge: str
    model: str | None
    run_id: str | None
    labels: dict[str, str]
    """Which attempt stood under which letter, in the order in which they were shown."""
    prompt_hash: str
    truncated: bool
    """Whether some of a diff was too long to be shown."""
    ranking: list[list[str]] | None
    """Ids of attempts, the best first; those in one group are equal."""
    reason: str | None
    cost_micros: int | None
    created_at: int
    ended_at: int | None


class Choice(msgspec.Struct, frozen=True):
    """A winner that was chosen: when, by whom, why, and what the ranking had said."""

    round_id: str
    number: int
    verb: str
    attempt_id: str
    commit: str
    ranked_first_id: str | None
    """The attempt that ranked first at that time."""
    by: str
    reason: str | None
    at: int


class Graft(msgspec.Struct, frozen=True):
    """Files of another attempt that were put onto the winner's, to see whether that is better."""

    id: str
    round_id: str
    attempt_id: str
    files: list[str]
    commit: str | None
    kept: bool
    checks: list[Check]
    reason: str
    by: str
    at: int


class Round(msgspec.Struct, frozen=True):
    id: str
    race_id: str
    project_id: str
    number: int
    state: RoundState
    parent_id: str | None
    base_attempt_id: str | None
    base_commit: str
    prompt: str
    budget_micros: int | None
    winner_id: str | None
    winner_commit: str | None
    reason: str | None
    decided_by: str | None
    goes_on: bool
    """Whether something of it happens by itself: attempts, a judge, a choice."""
    host: str
    owner: str | None
    fence: int
    lease_until: int | None
    created_at: int
    ended_at: int | None
    attempts: list[Attempt] = []
    verdicts: list[Verdict] = []
    choices: list[Choice] = []
    grafts: list[Graft] = []

    @property
    def ranked(self) -> list[Attempt]:
        """The attempts that can be chosen, the best first."""
        return sorted(
            (attempt for attempt in self.attempts if attempt.rank is not None),
            key=lambda attempt: attempt.rank or 0,
        )


class Race(msgspec.Struct, frozen=True):
    id: str
    project_id: str
    name: str
    prompt: str
    state: RaceState
    repository: str
    inside: str
    private: bool
    """Whether the repository is Corral's own, because the directory has none."""
    branch: str | None
    base_commit: str
    host: str
    plan: Plan
    budget_micros: int | None
    merged_commit: str | None
    reason: str | None
    created_at: int
    created_by: str
    ended_at: int | None
    rounds: list[Round] = []
    spent_micros: int | None = None
    """What attempts and judges cost, as far as that is known."""

    @property
    def latest(self) -> Round:
        """The round that was begun last."""
        return self.rounds[-1]


class Winning(msgspec.Struct, frozen=True):
    """How attempts of one kind fare in all races that were decided."""

    key: str | None
    attempts: int
    passed: int
    wins: int
    cost_micros: int | None
    unknown: int
    """Attempts whose cost is not known, so that `cost_micros` tells too little."""
    win_rate: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """Between these two the rate lies with 95 % confidence (Wilson)."""
    micros_per_win: int | None = None
