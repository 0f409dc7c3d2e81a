"""The `Provider` protocol, its request and command structs, and the base class `CliProvider`.

A provider knows the arguments, the output stream, the screen and the transcript files of one agent
CLI. It does not access the store, and runs the CLI only to probe its version and options.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from corral.adapters.providers.facts import ProviderFact, UsageFact
from corral.kernel.clock import Clock
from corral.kernel.errors import Invalid, Refused

if TYPE_CHECKING:
    from corral.adapters.providers.screens import ScreenLayout

# Linux limits one argument or environment variable to 128 KiB.
MAX_ARGUMENT_BYTES = 100_000
# The prompt of a resumed conversation without a new prompt. The first prompt is never sent again:
# the conversation still contains it, and an agent that reads it twice does the work twice.
RESUME_PROMPT = "You were interrupted. Continue where you stopped."

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")


class LaunchRequest(msgspec.Struct, frozen=True):
    """The options with which a run launches an agent."""

    prompt: str | None
    model: str | None = None
    instructions: str | None = None
    session: str | None = None
    """The provider's own id: of the conversation to resume, or for a new conversation."""
    resume: bool = False
    latest: bool = False
    """Continue the newest conversation of the directory, whatever its id is."""
    interactive: bool = False
    approvals: tuple[str, ...] = ()
    """The classes of requests to approve: `edit`, `run`, `trust`, `all`."""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    is_sandboxed: bool = False
    is_root: bool = False
    """Whether the CLI runs as root, and the provider's `root_variable` is not set."""
    is_own_worktree: bool = False
    """Whether the run works in a worktree that Corral created."""
    tools: bool = False
    """Whether the agent gets Corral's MCP tools."""
    hooks: bool = False
    """Whether to pass the hooks that enforce locks, if the CLI accepts hooks as arguments."""
    extra: tuple[str, ...] = ()
    """The user's own arguments for the CLI."""

    @property
    def is_continuation(self) -> bool:
        """Whether the run continues an existing conversation."""
        return self.resume or self.latest

    @property
    def is_trusted(self) -> bool:
        """Whether the folder is trusted: the user approved that, or Corral created the folder."""
        return self.is_own_worktree or not {"trust", "all"}.isdisjoint(self.approvals)


class LaunchCommand(msgspec.Struct, frozen=True):
    """The command that launches an agent."""

    args: list[str]
    """The complete command line, including the program."""
    stdin: str | None = None
    """The first input: a text for standard input, a text to type when the screen is ready, or the
    first prompt of the Agent Client Protocol."""
    env: dict[str, str] = {}
    structured: bool = False
    """Whether standard output is a structured stream for the parser."""
    session: str | None = None
    """The conversation's id, if it is known before the stream states it."""


class StreamParser(Protocol):
    """Turns the structured output of one process into facts."""

    def feed(self, line: bytes) -> list[ProviderFact]:
        """Return the facts of one line of standard output. Never raises, for any input."""
        ...

    def pending(self) -> list[UsageFact]:
        """Return the usage that no emitted `UsageFact` covers yet: an estimate during a turn."""
        ...

    def close(self) -> list[ProviderFact]:
        """Return the remaining facts at the end of the stream. Later calls return nothing."""
        ...


class Provider(Protocol):
    """The adapter of one agent CLI."""

    name: str
    program: str
    quit_command: str | None
    """The command that ends a terminal conversation; Enter is pressed after it."""
    accepts_session_id: bool
    """Whether a new conversation accepts an id. Pass one: then the conversation can be resumed
    even if the CLI dies before its first output."""
    root_variable: str | None
    """The variable that lets the CLI skip permission checks as root."""

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        """Return the command for a request. Starts no process."""
        ...

    def build_acp_command(
        self, request: LaunchRequest, program: str | None = None
    ) -> LaunchCommand | None:
        """Return the command for the Agent Client Protocol; None if the CLI does not support it."""
        ...

    def create_parser(self, clock: Clock | None = None) -> StreamParser:
        """Return a new parser for the output of one process."""
        ...

    def probe_version(self, program: str) -> str | None:
        """Return the installed version; None if it is unknown."""
        ...

    def iter_transcripts(self, home: Path) -> Iterator[Path]:
        """Iterate over the transcript files below a home directory."""
        ...

    def find_transcript(self, home: Path, session: str) -> Path | None:
        """Return the transcript file of one conversation; None if there is none."""
        ...

    @property
    def screen(self) -> "ScreenLayout | None":
        """How the CLI draws its terminal interface; None if that is unknown."""
        ...


class CliProvider:
    """Base class of the providers: class attributes describe the CLI."""

    name: ClassVar[str]
    program: ClassVar[str]
    quit_command: ClassVar[str | None] = None
    accepts_session_id: ClassVar[bool] = False
    """Whether a new conversation accepts an id."""
    root_variable: ClassVar[str | None] = None
    """The variable that lets the CLI skip permission checks as root."""
    version_args: ClassVar[tuple[str, ...]] = ("--version",)
    transcript_files: ClassVar[str | None] = None
    """Glob of the transcript files, relative to the home directory. `{}` stands for the session id,
    if the path contains it."""
    acp_args: ClassVar[tuple[str, ...] | None] = None
    """The arguments that select the Agent Client Protocol; None: it is not supported."""
    acp_program: ClassVar[str | None] = None
    """A separate program that implements the Agent Client Protocol for this CLI."""

    def build_acp_command(
        self, request: LaunchRequest, program: str | None = None
    ) -> LaunchCommand | None:
        if self.acp_args is None:
            return None
        executable = program or self.acp_program or self.program
        args = [executable, *self.acp_args, *self.trust_args(request), *request.extra]
        session = validate_session_id(request) if request.resume else None
        return LaunchCommand(
            args, stdin=compose_prompt(request, instructions=True), session=session
        )

    def trust_args(self, request: LaunchRequest) -> list[str]:
        """Return the arguments that make the CLI trust its directory, if the request is trusted."""
        return []

    def probe_version(self, program: str) -> str | None:
        from corral.adapters.providers.versions import probe_version

        return probe_version(program, self.version_args)

    @property
    def screen(self) -> "ScreenLayout | None":
        from corral.adapters.providers.screens import SCREENS

        return SCREENS.get(self.name)

    def iter_transcripts(self, home: Path) -> Iterator[Path]:
        pattern = self.transcript_files
        return home.glob(pattern.format("*")) if pattern else iter(())

    def find_transcript(self, home: Path, session: str) -> Path | None:
        """Return the transcript file of one conversation.

        For a terminal run, it is the only source of turns and usage.
        """
        pattern = self.transcript_files
        if pattern is None or "{}" not in pattern or not SESSION_ID.fullmatch(session):
            return None
        # Regular files only: reading a pipe or a device would block forever.
        return next((path for path in home.glob(pattern.format(session)) if path.is_file()), None)


def compose_prompt(request: LaunchRequest, *, instructions: bool = False) -> str | None:
    """Return the prompt of the agent, or `RESUME_PROMPT` for a continuation without one.

    `instructions` is for a CLI without a system prompt option: the instructions are then prepended
    to the first prompt of a new conversation.
    """
    prompt = request.prompt
    if prompt is None and request.is_continuation and not request.interactive:
        prompt = RESUME_PROMPT
    if not (instructions and request.instructions) or request.is_continuation:
        return prompt
    return f"{request.instructions}\n\n{prompt}" if prompt else request.instructions


def split_prompt(
    request: LaunchRequest, *, instructions: bool = False
) -> tuple[str | None, str | None]:
    """Return the prompt as an (argument, stdin) pair, of which at most one is set.

    A terminal conversation gets the prompt as an argument, or typed if it is too long for one. Any
    other conversation reads the prompt from standard input.
    """
    prompt = compose_prompt(request, instructions=instructions)
    if not request.interactive:
        return None, prompt
    if prompt is None or len(prompt.encode(errors="replace")) <= MAX_ARGUMENT_BYTES:
        return prompt, None
    return None, prompt


def compose_command(
    args: list[str], request: LaunchRequest, stdin: str | None, session: str | None
) -> LaunchCommand:
    """Return the usual command: structured unless interactive, and with the session id.

    The session id of the latest conversation is unknown until the stream states it.
    """
    return LaunchCommand(
        args,
        stdin=stdin,
        structured=not request.interactive,
        session=None if request.latest else session,
    )


def validate_session_id(request: LaunchRequest) -> str | None:
    """Return the session id if it is safe on a command line. Raises Invalid.

    The id may originate from the output of an agent, so it is not trusted.
    """
    if request.session is None:
        if request.resume:
            raise Invalid(
                "Cannot resume without a session id. Give the session, or continue the latest one.",
                field="session",
                reason="session_missing",
            )
        return None
    if not SESSION_ID.fullmatch(request.session):
        raise Invalid(
            "The session id is invalid: expected up to 200 letters, digits and any of _.:-",
            field="session",
        )
    return request.session


def refuse_denials(name: str, request: LaunchRequest) -> None:
    """Raise Refused if the request denies tools; for a CLI that cannot disable a single tool.

    A run must not start with a tool that the user denied.
    """
    if request.deny:
        raise Refused(
            f"{name} cannot disable single tools. Remove the denials or choose another provider.",
            provider=name,
            deny=list(request.deny),
            reason="denials_unsupported",
        )
