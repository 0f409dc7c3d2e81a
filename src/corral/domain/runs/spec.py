"""What is asked for when a run is wanted, and what a keeper says of the process it starts."""

from collections.abc import Mapping, Sequence

import msgspec

from corral.domain.runs.model import Mode
from corral.kernel.clock import DAY, SECOND
from corral.kernel.errors import Invalid
from corral.kernel.money import MOST
from corral.kernel.text import MAX_BODY, MAX_NAME, check_int, clean_text

GRACE_MS = 10 * SECOND
OUTPUT_CAP = 1 << 30
MAX_ARGS = 1 << 20
MAX_DIR = 4_096
MAX_PROMPT = 8 * MAX_BODY
MAX_RESTARTS = 1_000
MAX_LABELS = 20
LONGEST = 365 * DAY
# Classes of questions that may be answered with yes beforehand, as providers sort them.
APPROVALS = ("edit", "run", "trust", "all")
SANDBOXES = ("bubblewrap", "landlock", "none")
# Without network and with nothing in sight but its work, spoken to by two files; by which sandbox.
BOXED = "boxed:"
BOXED_BY = ("auto", *SANDBOXES)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: a program, where, for whom, and within which limits."""

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
    mode: Mode = Mode.PIPE
    prompt: str | None = None
    resume_session: str | None = None
    env: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}
    approvals: Sequence[str] = ()
    raw: bool = False
    interactive: bool = False
    timeout_ms: int | None = None
    idle_ms: int | None = None
    grace_ms: int = GRACE_MS
    restarts: int = 0
    budget_micros: int | None = None
    output_cap: int = OUTPUT_CAP
    sandbox: str | None = None
    host: str | None = None
    labels: Sequence[str] = ()
    due_at: int | None = None
    claimed: bool = False
    """Whether whoever asks brings a keeper along: for a while nobody else starts it then."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The process that a keeper is about to start, and the keeper's own."""

    owner: str
    host: str
    boot_id: str
    pid: int
    start_token: str
    keeper_pid: int
    keeper_token: str
    folder: str


def check_order(order: Order) -> None:
    """Refuse what can never be run."""
    for given in order.approvals:
        if given not in APPROVALS:
            raise Invalid(
                f"{given!r} is no class of questions; --yes takes {', '.join(APPROVALS)}.",
                approval=given,
            )
    _check_sandbox(order.sandbox)
    clean_text(order.command, "The command")
    clean_text(order.cwd, "The directory", most=MAX_DIR)
    for argument in order.args:
        if argument:
            clean_text(argument, "An argument", most=MAX_ARGS)
    for name, most in _TEXTS.items():
        text = getattr(order, name)
        if text is not None:
            clean_text(text, f"The {name.removesuffix('_id')}", most=most)
    for name, (low, high) in _NUMBERS.items():
        value = getattr(order, name)
        if value is not None and not low <= check_int(value, name) <= high:
            raise Invalid(f"{name} goes from {low:,} to {high:,}, not {value:,}.", value=value)
    _check_labels(order.labels)
    name = order.name or ""
    if name.startswith("run_") or name.strip() != name:
        raise Invalid("A run's name does not begin with run_ or with a blank; give another.")


def _check_sandbox(kind: str | None) -> None:
    kinds = (*SANDBOXES, *(BOXED + by for by in BOXED_BY))
    if kind is not None and kind not in kinds:
        known = ", ".join(kinds)
        raise Invalid(f"{kind!r} is no sandbox; take one of {known}.", sandbox=kind)


def _check_labels(labels: Sequence[str]) -> None:
    if len(labels) > MAX_LABELS:
        raise Invalid(f"A run wants {MAX_LABELS} labels at the most, not {len(labels)}.")
    for label in labels:
        clean_text(label, "A label", most=MAX_NAME)


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
    "timeout_ms": (1, LONGEST),
    "idle_ms": (1, LONGEST),
    "grace_ms": (1, DAY),
    "output_cap": (1, 1 << 40),
    "restarts": (0, MAX_RESTARTS),
    "budget_micros": (0, MOST),
    "due_at": (0, 1 << 50),
}
