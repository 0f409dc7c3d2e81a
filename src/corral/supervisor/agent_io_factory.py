"""The factory of agent interfaces: one for each way in which an agent communicates."""

from typing import TYPE_CHECKING

from corral.adapters.providers.provider import LaunchCommand
from corral.adapters.transcripts.reader import READABLE_PROVIDERS
from corral.config import write_private_file
from corral.domain.runs.model import Run, RunMode
from corral.kernel.clock import SystemClock
from corral.supervisor.agent_io import AgentIO, Log
from corral.supervisor.launch_plan import is_structured
from corral.supervisor.recorder import Recorder
from corral.supervisor.streams import OUTPUT, AgentStreams

if TYPE_CHECKING:
    from corral.supervisor.launch_plan import LaunchPlan


class AgentIOFactory:
    """Creates the interface to the agent of each attempt of a run."""

    def __init__(self, plan: "LaunchPlan") -> None:
        self._plan = plan
        self._store = plan.store
        self._launch = plan.launch
        self._folder = plan.folder
        self._provider = plan.provider
        self._secrets = list(plan.secrets.values())

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

    def create_adopted(self, run: Run, log: Log) -> AgentIO:
        """Return the interface to an agent that another supervisor started.

        The agent's stream is read again from the beginning; facts that are recorded are not added
        twice.
        """
        structured = not self._launch.raw or is_structured(self._provider, [run.command, *run.args])
        agent_io = AgentIO()
        is_stream = run.mode is RunMode.PIPE and structured and self._provider.name != "plain"
        if self._launch.has_session_sandbox or is_stream:
            agent_io = self._make_stream_io(run, self._read_offset(run.attempts), log)
        if self._provider.name in READABLE_PROVIDERS:
            command = LaunchCommand(
                [run.command, *run.args],
                structured=is_stream,
                session=self._plan.get_provider_session(),
            )
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
            agent_io.status,
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
            env=self._plan.build_environment(command),
            session=command.session,
            started_at=started_at,
            prompt=None if self._launch.raw else self._launch.prompt,
            worktree_sandbox=self._plan.worktree_sandbox,
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
            size=self._plan.size,
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
            allow=self._plan.agent_config.allow,
            deny=self._plan.agent_config.deny,
            servers=build_acp_servers(self._plan.build_environment(command))
            if self._plan.agent_config.tools
            else [],
            secrets=self._secrets,
            log=log,
        )
