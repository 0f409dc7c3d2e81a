"""The specification of a run, and the identity of the process that a supervisor starts for it."""

from collections.abc import Mapping, Sequence

import msgspec

from corral.domain.runs.model import SESSION_SANDBOX_PREFIX, RunMode
from corral.kernel.clock import DAY, SECOND
from corral.kernel.errors import Invalid
from corral.kernel.money import MAX_MICROS
from corral.kernel.validation import MAX_BODY, MAX_NAME, check_int, check_text

GRACE_MS = 10 * SECOND
OUTPUT_CAP = 1 << 30
MAX_ARGS = 1 << 20
MAX_DIR = 4_096
MAX_PROMPT = 8 * MAX_BODY
MAX_RESTARTS = 1_000
MAX_LABELS = 20
MAX_DURATION_MS = 365 * DAY
# Classes of permission prompts that can be approved in advance, as providers classify them.
APPROVALS = ("edit", "run", "trust", "all")
# A run has one of two kinds of sandbox, or none:
# - A worktree sandbox ("bubblewrap", "landlock") is for an agent that works in a git worktree. The
#   agent may use the network, has a private home, and commits into a private repository
#   (`supervisor/worktree_sandbox.py`).
# - A session sandbox ("session:TOOL") is for an agent that answers a chat. The agent has no
#   network, sees only its working directory, and exchanges messages through the two files of its
#   session (`services/chat/sandbox_sync.py`). TOOL is the program that isolates it.
WORKTREE_SANDBOXES = ("bubblewrap", "landlock", "none")
SESSION_SANDBOX_TOOLS = ("auto", *WORKTREE_SANDBOXES)


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run a program: where, on whose behalf, and within which limits."""

    command: str
    args: Sequence[str] = ()
    cwd: str
    name: str | None = None
    title: str | None = None
    project_id: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    agent_version: int | None = None
    parent_id: str | None = None
    provider: str = "plain"
    mode: RunMode = RunMode.PIPE
    prompt: str | None = None
    resume_session: str | None = None
    env: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}
    approvals: Sequence[str] = ()
    raw: bool = False
    interactive: bool = False
    timeout_ms: int | None = None
    idle_ms: int | None = None
    grace_period_ms: int = GRACE_MS
    max_restarts: int = 0
    budget_micros: int | None = None
    max_output_bytes: int = OUTPUT_CAP
    sandbox: str | None = None
    host: str | None = None
    labels: Sequence[str] = ()
    due_at: int | None = None
    claimed: bool = False
    """Whether the caller starts the supervisor itself, so that dispatch leaves the run alone."""


class SupervisedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The identities of the agent's process and of its supervisor."""

    owner: str
    host: str
    boot_id: str
    pid: int
    start_token: str
    supervisor_pid: int
    supervisor_token: str
    folder: str


def check_spec(spec: RunSpec) -> None:
    """Raise Invalid for a specification that can never be run."""
    for approval in spec.approvals:
        if approval not in APPROVALS:
            raise Invalid(
                f"Invalid approval {approval!r}: --yes takes {', '.join(APPROVALS)}.",
                approval=approval,
            )
    _check_sandbox(spec.sandbox)
    check_text(spec.command, "The command")
    check_text(spec.cwd, "The directory", max_bytes=MAX_DIR)
    for argument in spec.args:
        if argument:
            check_text(argument, "An argument", max_bytes=MAX_ARGS)
    for field, limit in _TEXTS.items():
        text = getattr(spec, field)
        if text is not None:
            check_text(text, f"The {field.removesuffix('_id')}", max_bytes=limit)
    for field, (low, high) in _NUMBERS.items():
        value = getattr(spec, field)
        if value is not None and not low <= check_int(value, field) <= high:
            raise Invalid(f"Invalid {field} {value:,}: expected {low:,} to {high:,}.", value=value)
    _check_labels(spec.labels)
    name = spec.name or ""
    if name.startswith("run_") or name.strip() != name:
        raise Invalid("Invalid run name: it must not begin with run_ or have spaces at its ends.")


def _check_sandbox(kind: str | None) -> None:
    kinds = (
        *WORKTREE_SANDBOXES,
        *(SESSION_SANDBOX_PREFIX + tool for tool in SESSION_SANDBOX_TOOLS),
    )
    if kind is not None and kind not in kinds:
        raise Invalid(
            f"Invalid sandbox {kind!r}: expected one of {', '.join(kinds)}.", sandbox=kind
        )


def _check_labels(labels: Sequence[str]) -> None:
    if len(labels) > MAX_LABELS:
        raise Invalid(f"Too many labels: {len(labels)} given, {MAX_LABELS} allowed.")
    for label in labels:
        check_text(label, "A label", max_bytes=MAX_NAME)


# Maximum lengths of the optional texts, and ranges of the optional numbers.
_TEXTS = {
    "name": MAX_NAME,
    "title": MAX_NAME,
    "project_id": MAX_NAME,
    "session_id": MAX_NAME,
    "agent_id": MAX_NAME,
    "parent_id": MAX_NAME,
    "provider": MAX_NAME,
    "host": MAX_NAME,
    "resume_session": 2 * MAX_NAME,
    "prompt": MAX_PROMPT,
}
_NUMBERS = {
    "timeout_ms": (1, MAX_DURATION_MS),
    "idle_ms": (1, MAX_DURATION_MS),
    "grace_period_ms": (1, DAY),
    "max_output_bytes": (1, 1 << 40),
    "max_restarts": (0, MAX_RESTARTS),
    "budget_micros": (0, MAX_MICROS),
    "due_at": (0, 1 << 50),
}
