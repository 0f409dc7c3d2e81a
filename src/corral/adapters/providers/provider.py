"""The contract of an agent CLI: what a run wants of it, and how it is started for that.

A provider knows one CLI: its arguments, its stream, its screen, where it keeps its transcripts. It
knows no store and starts nothing but `--version`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from corral.adapters.providers.facts import Fact, Used
from corral.kernel.clock import Clock
from corral.kernel.errors import Invalid, Refused

if TYPE_CHECKING:
    from corral.adapters.providers.screens import Screen

# Linux takes no argument and no variable of more than 128 KiB.
MAX_ARGUMENT = 100_000
# What a resumed conversation is told when nobody gave it new words. The first prompt is never sent
# again: the conversation still holds it, and an agent that reads it twice does the work twice.
GO_ON = "You were interrupted. Go on where you stopped."

SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")


class Ask(msgspec.Struct, frozen=True):
    """What a run wants of an agent."""

    prompt: str | None
    model: str | None = None
    instructions: str | None = None
    session: str | None = None
    """The provider's own id: to choose for a new conversation, or to resume."""
    resume: bool = False
    latest: bool = False
    """Go on with the newest conversation of the directory, whatever its id is."""
    interactive: bool = False
    approvals: tuple[str, ...] = ()
    """What is answered with yes: `edit`, `run`, `trust`, `all`."""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    is_sandboxed: bool = False
    is_root: bool = False
    """Whether the CLI runs as root, and the provider's `root_variable` is not set."""
    own_folder: bool = False
    """Whether the run works in a worktree that Corral created."""
    tools: bool = False
    """Whether it gets Corral's own tools."""
    hooks: bool = False
    """Whether it gets the hooks that keep to locks, where it takes them when it is started."""
    extra: tuple[str, ...] = ()
    """The user's own arguments for the CLI."""

    @property
    def goes_on(self) -> bool:
        return self.resume or self.latest

    @property
    def is_trusted(self) -> bool:
        """Whether the folder is trusted: the user approved that, or Corral created the folder."""
        return self.own_folder or not {"trust", "all"}.isdisjoint(self.approvals)


class Start(msgspec.Struct, frozen=True):
    """How to start it."""

    args: list[str]
    """The whole command line, the program first."""
    stdin: str | None = None
    """What it reads first. With a terminal: what is to be typed once the screen is ready. With the
    Agent Client Protocol: the first prompt, for `AcpTalk`."""
    env: dict[str, str] = {}
    structured: bool = False
    """Whether its standard output is a stream for the parser."""
    session: str | None = None
    """The conversation's id, when it is known before the stream says it."""


class Parser(Protocol):
    def feed(self, line: bytes) -> list[Fact]:
        """What one line of standard output says. Never raises, whatever the line is."""
        ...

    def pending(self) -> list[Used]:
        """What was used and no `Used` has covered yet: an estimate while a turn is going on."""
        ...

    def close(self) -> list[Fact]:
        """What is left to say when the stream has ended, however it ended; then nothing more."""
        ...


class Provider(Protocol):
    name: str
    program: str
    quit_command: str | None
    """The command that ends a terminal conversation; Enter follows it."""
    chooses_session: bool
    """Whether a new conversation takes an id that is given. Give one: then it can be resumed even
    if it dies before it has said anything."""

    def start(self, ask: Ask, program: str | None = None) -> Start: ...

    def acp(self, ask: Ask, program: str | None = None) -> Start | None:
        """How to start it so that it speaks the Agent Client Protocol; None when it does not."""
        ...

    def parser(self, clock: Clock | None = None) -> Parser: ...

    def version(self, program: str) -> str | None: ...

    def transcripts(self, home: Path) -> Iterator[Path]: ...

    def transcript(self, home: Path, session: str) -> Path | None: ...

    @property
    def screen(self) -> "Screen | None": ...


class Cli:
    """What the providers share."""

    name: ClassVar[str]
    program: ClassVar[str]
    quit_command: ClassVar[str | None] = None
    chooses_session: ClassVar[bool] = False
    """Whether a new conversation takes an id that is given."""
    root_variable: ClassVar[str | None] = None
    """With this variable set, the CLI skips all permission checks also as root."""
    version_args: ClassVar[tuple[str, ...]] = ("--version",)
    transcript_files: ClassVar[str | None] = None
    """Where the records are, below the user's home; `{}` is the session's id where it is in the
    name of the file."""
    acp_args: ClassVar[tuple[str, ...] | None] = None
    """With these it speaks the Agent Client Protocol."""
    acp_program: ClassVar[str | None] = None
    """Another program that speaks it in this one's place."""

    def acp(self, ask: Ask, program: str | None = None) -> Start | None:
        if self.acp_args is None:
            return None
        own = program or self.acp_program or self.program
        args = [own, *self.acp_args, *self.trust_args(ask), *ask.extra]
        session = session_of(ask) if ask.resume else None
        return Start(args, stdin=words(ask, instructions=True), session=session)

    def trust_args(self, ask: Ask) -> list[str]:
        """Return the arguments that make the CLI trust its folder, if the run is trusted."""
        return []

    def version(self, program: str) -> str | None:
        from corral.adapters.providers.versions import probe

        return probe(program, self.version_args)

    @property
    def screen(self) -> "Screen | None":
        from corral.adapters.providers.screens import SCREENS

        return SCREENS.get(self.name)

    def transcripts(self, home: Path) -> Iterator[Path]:
        """All records that the CLI keeps of its conversations."""
        files = self.transcript_files
        return home.glob(files.format("*")) if files else iter(())

    def transcript(self, home: Path, session: str) -> Path | None:
        """The record of one conversation: what a terminal run says and uses stands only there."""
        files = self.transcript_files
        if files is None or "{}" not in files or not SESSION.fullmatch(session):
            return None
        # A pipe in its place, or a link to a device, would be read for ever.
        return next((path for path in home.glob(files.format(session)) if path.is_file()), None)


def words(ask: Ask, *, instructions: bool = False) -> str | None:
    """What the agent is told: the prompt, or the request to go on.

    With `instructions`, for a CLI that has no place of its own for them, a new conversation begins
    with them.
    """
    prompt = ask.prompt
    if prompt is None and ask.goes_on and not ask.interactive:
        prompt = GO_ON
    if not (instructions and ask.instructions) or ask.goes_on:
        return prompt
    return f"{ask.instructions}\n\n{prompt}" if prompt else ask.instructions


def told(ask: Ask, *, instructions: bool = False) -> tuple[str | None, str | None]:
    """The `words` of a start: as an argument, and as what it reads first; one of them at the most.

    A terminal conversation has them as an argument or, too long for one, typed; any other reads
    them.
    """
    prompt = words(ask, instructions=instructions)
    if not ask.interactive:
        return None, prompt
    if prompt is None or len(prompt.encode(errors="replace")) <= MAX_ARGUMENT:
        return prompt, None
    return None, prompt


def started(args: list[str], ask: Ask, stdin: str | None, session: str | None) -> Start:
    """How most are started: with a stream for the parser unless somebody sits in front of it, and
    in a conversation whose id is known unless it is whichever was the latest."""
    return Start(
        args,
        stdin=stdin,
        structured=not ask.interactive,
        session=None if ask.latest else session,
    )


def session_of(ask: Ask) -> str | None:
    """The conversation's id, fit for a command line: an agent's own output may have named it."""
    if ask.session is None:
        if ask.resume:
            raise Invalid(
                "To resume, name the session; or take the latest one.",
                field="session",
                reason="session_missing",
            )
        return None
    if not SESSION.fullmatch(ask.session):
        raise Invalid(
            "The session's id has characters that no provider uses; look it up again.",
            field="session",
        )
    return ask.session


def refuse_denials(name: str, ask: Ask) -> None:
    """For a CLI that cannot take a tool away: better not started than started with it."""
    if ask.deny:
        raise Refused(
            f"{name} cannot be kept from single tools; revoke the denials or choose another "
            "provider.",
            provider=name,
            deny=list(ask.deny),
            reason="denials_unsupported",
        )
