"""The factory of agent interfaces: one for each way in which an agent communicates."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corral.adapters.providers.provider import LaunchCommand
from corral.adapters.transcripts.reader import READABLE_PROVIDERS
from corral.config import write_private_file
from corral.domain.runs.model import Launch, Run, RunMode
from corral.kernel.clock import SystemClock
from corral.supervisor.agent_io import AgentIO, Log
from corral.supervisor.recorder import Recorder
from corral.supervisor.streams import OUTPUT, AgentStreams

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Provider
    from corral.api import Corral
    from corral.supervisor.worktree_sandbox import WorktreeSandbox

# Options that make an agent CLI report in structured lines, in a command line of the user.
STRUCTURED_OPTIONS = frozenset({"stream-json", "--json"})


class AgentConfig(NamedTuple):
    """The configuration of the run's agent: model, instructions and tool grants."""

    model: str | None = None
    instructions: str | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    tools: bool = False
    """Whether it gets Corral's own tools (MCP)."""


def is_structured(provider: "Provider", args: Sequence[str]) -> bool:
    """Whether a command line of the user makes the agent CLI report in structured lines."""
    return provider.name != "plain" and not STRUCTURED_OPTIONS.isdisjoint(args)


class AgentIOFactory:
    """Creates the interface to the agent of each attempt of a run."""

    def __init__(
        self,
        store: "Corral",
        launch: Launch,
        folder: Path,
        *,
        provider: "Provider",
        config: AgentConfig,
        size: tuple[int, int],
        secrets: Sequence[str],
        env: Callable[[LaunchCommand], dict[str, str]],
        worktree_sandbox: "WorktreeSandbox | None",
    ) -> None:
        self._store = store
        self._launch = launch
        self._folder = folder
        self._provider = provider
        self._config = config
        self._size = size
        self._secrets = secrets
        self._env = env
        self._worktree_sandbox = worktree_sandbox

    def create(self, command: LaunchCommand, run: Run, streams: AgentStreams, log: Log) -> AgentIO:
        """Return the interface to the agent of an attempt that was just started."""
        agent_io = self._create_interface(command, run, streams, log)
        if self._provider.name in READABLE_PROVIDERS:
            self._follow_transcript(agent_io, command, run, log, started_at=SystemClock().now())
        return agent_io

    def _create_interface(
        self, command: LaunchCommand, run: Run, streams: AgentStreams, log: Log
    ) -> AgentIO:
        if run.mode is RunMode.ACP:
            return self._make_acp_io(command, run, streams, log)
        if run.mode is RunMode.PTY:
            return self._make_screen_io(command, run, streams, log)
        if command.structured or self._launch.has_session_sandbox:
            path = self._folder / OUTPUT
            return self._make_stream_io(run, path.stat().st_size if path.exists() else 0, log)
        return AgentIO()

    def create_adopted(self, run: Run, session: str | None, log: Log) -> AgentIO:
        """Return the interface to an agent that another supervisor started.

        `session` is the provider's own id of the conversation, if it is known. The agent's stream
        is read again from the beginning; facts that are recorded are not added twice.
        """
        structured = not self._launch.raw or is_structured(self._provider, [run.command, *run.args])
        agent_io = AgentIO()
        is_stream = run.mode is RunMode.PIPE and structured and self._provider.name != "plain"
        if self._launch.has_session_sandbox or is_stream:
            agent_io = self._make_stream_io(run, self._read_offset(run.attempts), log)
        if self._provider.name in READABLE_PROVIDERS:
            command = LaunchCommand([run.command, *run.args], structured=is_stream, session=session)
            self._follow_transcript(agent_io, command, run, log, started_at=run.started_at or 0)
        return agent_io

    def _follow_transcript(
        self, agent_io: AgentIO, command: LaunchCommand, run: Run, log: Log, *, started_at: int
    ) -> None:
        """Make `agent_io` follow the transcript that the CLI writes."""
        from corral.supervisor.transcript import follow_transcript

        recorder = Recorder(
            self._store,
            run,
            agent_io,
            log,
            secrets=self._secrets,
            budget=agent_io.recorder.budget if agent_io.recorder else None,
        )
        follow_transcript(
            agent_io,
            recorder,
            store=self._store,
            run=run,
            provider=self._provider,
            env=self._env(command),
            session=command.session,
            started_at=started_at,
            prompt=None if self._launch.raw else self._launch.prompt,
            worktree_sandbox=self._worktree_sandbox,
        )

    def _make_stream_io(self, run: Run, offset: int, log: Log) -> AgentIO:
        from corral.supervisor.stream_io import StreamIO  # not needed for a plain run

        kind = StreamIO
        if self._launch.has_session_sandbox:
            from corral.supervisor.sandbox_io import SandboxIO

            kind = SandboxIO
        write_private_file(self._folder / f"offset.{run.attempts}", str(offset))
        parser = self._provider.create_parser(self._store)
        return kind(
            self._store,
            run,
            parser,
            self._folder / OUTPUT,
            offset=offset,
            secrets=self._secrets,
            log=log,
            # A command line of the user has no session yet; its transcript has all turns.
            only_outcome=self._launch.raw and self._provider.name in READABLE_PROVIDERS,
        )

    def _read_offset(self, attempt: int) -> int:
        """Return where the output of an attempt begins in the file that all attempts share."""
        try:
            return int((self._folder / f"offset.{attempt}").read_text())
        except (OSError, ValueError):
            return 0

    def _make_screen_io(
        self, command: LaunchCommand, run: Run, streams: AgentStreams, log: Log
    ) -> AgentIO:
        screen = self._provider.screen
        if screen is None:
            return AgentIO()
        from corral.supervisor.screen_io import ScreenIO

        return ScreenIO(
            screen,
            size=self._size,
            approvals=frozenset(self._launch.approvals),
            type_in=streams.type_in,
            first_prompt=command.stdin,
            log=log,
        )

    def _make_acp_io(
        self, command: LaunchCommand, run: Run, streams: AgentStreams, log: Log
    ) -> AgentIO:
        from corral.adapters.providers.mcp_config import build_acp_servers
        from corral.supervisor.acp_io import AcpIO

        def write(data: bytes) -> None:
            if not streams.type_in(data):
                raise BrokenPipeError

        return AcpIO(
            self._store,
            run,
            write=write,
            prompt=command.stdin or "",
            session=command.session,
            approvals=frozenset(self._launch.approvals),
            allow=self._config.allow,
            deny=self._config.deny,
            servers=build_acp_servers(self._env(command)) if self._config.tools else [],
            secrets=self._secrets,
            log=log,
        )
