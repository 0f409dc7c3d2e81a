"""The launch plan of a run: command line, environment, streams and agent interface."""

import os
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corral.adapters import process
from corral.adapters.providers import registry
from corral.adapters.providers.provider import RESUME_PROMPT, LaunchCommand, LaunchRequest
from corral.adapters.supervisor_process import RUN_VARIABLES
from corral.adapters.transcripts.reader import READABLE_PROVIDERS
from corral.config import write_private_file
from corral.domain.runs.model import Launch, Run, RunMode
from corral.kernel.clock import SystemClock
from corral.supervisor.agent_io import AgentIO, Log
from corral.supervisor.recorder import Recorder
from corral.supervisor.streams import (
    OUTPUT,
    AgentStreams,
    CopiedStreams,
    DirectStreams,
    ProtocolStreams,
    TerminalStreams,
)

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Provider
    from corral.adapters.sandbox_bridge.schema import SessionFolder
    from corral.adapters.worktree_registry import Checkout
    from corral.api import Corral
    from corral.supervisor.confinement import Confinement

# Options that make an agent CLI report in structured lines, in a command line of the user.
STRUCTURED_OPTIONS = frozenset({"stream-json", "--json"})
MAX_TOPIC_CHARS = 8_000  # of the prompt are used to select relevant notes


class AgentConfig(NamedTuple):
    """The configuration of the run's agent: model, instructions and tool grants."""

    model: str | None = None
    instructions: str | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    tools: bool = False
    """Whether it gets Corral's own tools (MCP)."""


class LaunchPlan:
    """How one run is started; the same for each of its attempts."""

    def __init__(
        self,
        store: "Corral",
        run: Run,
        launch: Launch,
        folder: Path,
        *,
        stdin: int | None = None,
        split: bool = False,
        size: tuple[int, int] = (24, 80),
        secret: Callable[[str], str],
    ) -> None:
        self._store = store
        self._run = run
        self._launch = launch
        self.folder = folder
        self._stdin = stdin
        self._split = split
        self._size = size
        self.secrets = {name: secret(reference) for name, reference in launch.secrets.items()}
        self.provider: Provider = registry.get_provider(run.provider)
        self._agent_config = self._read_agent_config()
        self._is_moved = self._was_on_another_host()
        self._sandbox_info: dict[str, Any] = {}

    def _was_on_another_host(self) -> bool:
        """Whether an earlier attempt ran on another machine. The provider's own files of the
        conversation are there."""
        run = self._run
        if self._launch.host is not None or not run.attempts or run.session_id is None:
            return False
        return self._store.outputs.get(run.id).host != process.host()

    def start(self, *, resume: bool) -> LaunchCommand:
        """Return how to start an attempt; with `resume`, it continues the conversation."""
        start = self._start(resume=resume)
        if self._launch.is_boxed:
            return self._wrap_in_session_sandbox(start)
        if self.confinement is None:
            return start
        session = self._provider_session() if self._run.session_id else None
        return self.confinement.wrap(start, self._checkout, session)

    def _wrap_in_session_sandbox(self, start: LaunchCommand) -> LaunchCommand:
        """Return the start inside a sandbox without network, whose agent exchanges messages through
        the files of its session."""
        from corral.domain.runs.spec import BOXED_PREFIX
        from corral.services.chat import session_sandbox

        run, folder = self._run, self._session_files
        order = session_sandbox.write_start_file(folder, start, self.provider.name)
        wrapped = session_sandbox.wrap_command(
            [sys.executable, "-P", "-m", session_sandbox.AGENT_CLIENT, "run", order],
            folder,
            kind=str(self._launch.sandbox).removeprefix(BOXED_PREFIX),
            work=run.cwd,
            store=self._store.address,
            programs=start.args,
            reads=self._setting("chat.sandbox_read_paths"),
            scratch=str(self.folder / "scratch"),
        )
        self._sandbox_info = {"kind": wrapped.kind, "lacks": wrapped.missing_protections}
        return LaunchCommand(
            wrapped.words,
            env=session_sandbox.agent_environment(folder) | wrapped.environment,
            structured=start.structured,
            session=start.session,
        )

    @cached_property
    def _session_files(self) -> "SessionFolder":
        """The prepared session files of an agent in a session sandbox."""
        assert self._run.session_id is not None
        return self._store.chat.prepare_sandbox(self._run.session_id)

    @cached_property
    def confinement(self) -> "Confinement | None":
        """The sandbox of the run; None without one, and in a session sandbox (`is_boxed`)."""
        if self._launch.is_boxed or self._launch.sandbox in (None, "none"):
            return None
        from corral.supervisor.confinement import Confinement

        return Confinement(
            self._store,
            self._run,
            self._launch,
            self.folder,
            self.provider.name,
            self._project_setting,
        )

    def _project_setting(self, name: str) -> Any:
        return self._store.settings.get(name, project=self._run.project_id).value

    def collect(self, log: Log) -> None:
        """Import the results of an attempt from its sandbox, after all its processes ended."""
        if self.confinement is not None:
            session = self._provider_session() if self._run.session_id else None
            self.confinement.collect(self._checkout, session, log)

    def close(self) -> None:
        """Delete the folders of the sandbox after the run."""
        if self.confinement is not None:
            self.confinement.close(self._checkout)

    @cached_property
    def _checkout(self) -> "Checkout":
        """The worktree of a sandboxed run, as the store and the project's repository know it.

        Files inside the worktree are not trusted: an agent may have written them to escape. Raises
        Refused if there is no such worktree, and if it is the project's own folder, whose identity
        only its own files could prove.
        """
        from corral.adapters import git, snapshot_repositories
        from corral.adapters.worktree_registry import get_checkout
        from corral.kernel.errors import Refused
        from corral.services.races.paths import repository_folder

        run = self._run
        assert run.project_id is not None
        repository = project = self._store.projects.get(run.project_id).dir
        subfolder = ""
        if snapshot_repositories.is_in_git(repository):
            prefix = git.check_output(repository, "rev-parse", "--show-prefix")
            subfolder = os.fsdecode(prefix).rstrip("/\n")
        elif (private := repository_folder(run.project_id)).is_dir():
            repository = str(private)
        top = run.cwd.removesuffix(f"/{subfolder}") if subfolder else run.cwd
        if f"{os.path.realpath(project)}/".startswith(f"{os.path.realpath(top)}/"):
            raise Refused(
                f"Cannot sandbox a run in {top}: it is the project's own folder. Create a worktree "
                "with `git worktree add` and run there.",
                dir=top,
            )
        return get_checkout(repository, top)

    def _start(self, *, resume: bool) -> LaunchCommand:
        run, launch = self._run, self._launch
        if launch.raw and run.mode is not RunMode.ACP:
            args = [run.command, *run.args]
            return LaunchCommand(args, structured=self._is_structured(args))
        ask = self._ask(resume=resume)
        if run.mode is RunMode.ACP:
            return self._acp_start(ask)
        start = self.provider.start(ask, run.command)
        if start.session is not None and run.session_id is not None:
            self._store.sessions.set_provider_session(
                run.session_id, self.provider.name, start.session
            )
        return start

    def _ask(self, *, resume: bool) -> LaunchRequest:
        run, launch = self._run, self._launch
        session = self._provider_session() if run.session_id else None
        prompt = launch.prompt
        if launch.is_boxed:
            from corral.adapters.sandbox_bridge.agent_client import PROMPT_PLACEHOLDER

            # The sandbox replaces it with the messages in the session file.
            prompt = PROMPT_PLACEHOLDER
        elif self._is_moved:
            from corral.services.runs.conversation import MAX_TURNS, prepend_context

            # Send the conversation as text; from the next attempt on, the provider has it here.
            assert run.session_id is not None
            context = self._store.sessions.context(run.session_id, limit=MAX_TURNS)
            session, prompt, self._is_moved = None, prepend_context(context, None) or prompt, False
        resumes = session is not None and (resume or launch.resume_session is not None)
        if session is None and self.provider.accepts_session_id:
            session = _random_uuid()
        return LaunchRequest(
            prompt=None if resume and resumes else prompt,
            model=self._agent_config.model,
            instructions=self._instructions,
            session=session,
            resume=resumes,
            interactive=launch.interactive,
            approvals=tuple(launch.approvals),
            allow=self._agent_config.allow,
            deny=self._agent_config.deny,
            is_sandboxed=launch.is_boxed or self.confinement is not None,
            is_root=os.geteuid() == 0 and not self._is_root_allowed(),
            is_own_worktree=_is_created_by_corral(run.cwd),
            tools=self._agent_config.tools,
            # Lock hooks need the store, which a sandbox cannot reach.
            hooks=run.agent_id is not None
            and self.confinement is None
            and _is_linked_worktree(run.cwd),
            extra=tuple(run.args),
        )

    def _is_root_allowed(self) -> bool:
        name = self.provider.root_variable
        return name is not None and bool((os.environ | self._launch.env).get(name))

    def _acp_start(self, ask: LaunchRequest) -> LaunchCommand:
        """Return the start of an agent that speaks ACP. A program whose provider has no special
        options for that is started as it is."""
        run = self._run
        program = None if run.command == self.provider.program else run.command
        start = self.provider.acp(ask, program)
        if start is not None:
            return start
        session = ask.session if ask.resume else None
        return LaunchCommand(
            [run.command, *run.args], stdin=ask.prompt or RESUME_PROMPT, session=session
        )

    def env(self, start: LaunchCommand) -> dict[str, str]:
        """Return the environment of the agent: the supervisor's own, the variables given to the
        run, and those that identify the run."""
        run = self._run
        if self._launch.is_boxed:
            # Neither the host's environment nor the address of the store.
            return start.env | self._launch.env | self.secrets | {"CORRAL_RUN": run.id}
        # The token of a person is not passed on: a run acts as itself.
        removed = (*RUN_VARIABLES, "CORRAL_TOKEN")
        env = {name: value for name, value in os.environ.items() if name not in removed}
        env["CORRAL_STORE"] = self._store.address
        given = start.env | self._launch.env | self.secrets
        env = self.confinement.environment(given) if self.confinement else env | given
        env["CORRAL_RUN"] = run.id
        if self.secrets:  # `corral`, called by the agent, redacts the values of these variables
            inherited = env.get("CORRAL_SECRETS", "").split(",")
            env["CORRAL_SECRETS"] = ",".join(dict.fromkeys([*inherited, *self.secrets])).strip(",")
        if run.session_id is not None:
            env["CORRAL_SESSION"] = run.session_id
        if run.agent_id is not None:
            env["CORRAL_AGENT"] = self._store.agents.get(run.agent_id).name
        if run.mode is RunMode.PTY:
            env.setdefault("TERM", "xterm-256color")
        return env

    def streams(self, start: LaunchCommand) -> AgentStreams:
        """Return the streams of an attempt, not opened yet."""
        if self._run.mode is RunMode.PTY:
            rows, columns = self._size
            return TerminalStreams(self.folder, rows=rows, columns=columns)
        if self._run.mode is RunMode.ACP:
            return ProtocolStreams(self.folder, stdin=None, split=bool(self.secrets))
        stdin: str | int | None = start.stdin
        if stdin is None and self._stdin is not None:
            stdin = self._stdin
        split = self._split or start.structured
        kind = CopiedStreams if self.secrets else DirectStreams
        return kind(self.folder, stdin=stdin, split=split)

    def agent_io(self, start: LaunchCommand, run: Run, streams: AgentStreams, log: Log) -> AgentIO:
        """Return the interface to the agent of an attempt that was just started."""
        agent_io = self._new_agent_io(start, run, streams, log)
        if self.provider.name in READABLE_PROVIDERS:
            self._follow_transcript(agent_io, start, run, log, started_at=SystemClock().now())
        return agent_io

    def _new_agent_io(
        self, start: LaunchCommand, run: Run, streams: AgentStreams, log: Log
    ) -> AgentIO:
        if run.mode is RunMode.ACP:
            return self._acp_io(start, run, streams, log)
        if run.mode is RunMode.PTY:
            return self._screen_io(start, run, streams, log)
        if start.structured or self._launch.is_boxed:
            path = self.folder / OUTPUT
            return self._stream_io(run, path.stat().st_size if path.exists() else 0, log)
        return AgentIO()

    def adopted_agent_io(self, run: Run, log: Log) -> AgentIO:
        """Return the interface to an agent that another supervisor started.

        Its stream is read again from the beginning; facts that are recorded are not added twice.
        """
        structured = not self._launch.raw or self._is_structured([run.command, *run.args])
        agent_io = AgentIO()
        is_stream = run.mode is RunMode.PIPE and structured and self.provider.name != "plain"
        if self._launch.is_boxed or is_stream:
            agent_io = self._stream_io(run, self._read_offset(run.attempts), log)
        if self.provider.name in READABLE_PROVIDERS:
            session = self._provider_session() if run.session_id else None
            start = LaunchCommand([run.command, *run.args], structured=is_stream, session=session)
            self._follow_transcript(agent_io, start, run, log, started_at=run.started_at or 0)
        return agent_io

    def _follow_transcript(
        self, agent_io: AgentIO, start: LaunchCommand, run: Run, log: Log, *, started_at: int
    ) -> None:
        """Make `agent_io` follow the transcript that the CLI writes."""
        from corral.supervisor.transcript import follow_transcript

        recorder = Recorder(
            self._store,
            run,
            agent_io,
            log,
            secrets=self._secret_values,
            budget=agent_io.recorder.budget if agent_io.recorder else None,
        )
        follow_transcript(
            agent_io,
            recorder,
            store=self._store,
            run=run,
            provider=self.provider,
            env=self.env(start),
            session=start.session,
            started_at=started_at,
            prompt=None if self._launch.raw else self._launch.prompt,
            confinement=self.confinement,
        )

    def _stream_io(self, run: Run, offset: int, log: Log) -> AgentIO:
        from corral.supervisor.stream_io import StreamIO  # not needed for a plain run

        kind = StreamIO
        if self._launch.is_boxed:
            from corral.supervisor.sandbox_io import SandboxIO

            kind = SandboxIO
        write_private_file(self.folder / f"offset.{run.attempts}", str(offset))
        parser = self.provider.parser(self._store)
        return kind(
            self._store,
            run,
            parser,
            self.folder / OUTPUT,
            offset=offset,
            secrets=self._secret_values,
            log=log,
            # A command line of the user has no session yet; its transcript has all turns.
            only_outcome=self._launch.raw and self.provider.name in READABLE_PROVIDERS,
        )

    def _read_offset(self, attempt: int) -> int:
        """Return where the output of an attempt begins in the file that all attempts share."""
        try:
            return int((self.folder / f"offset.{attempt}").read_text())
        except (OSError, ValueError):
            return 0

    def _screen_io(
        self, start: LaunchCommand, run: Run, streams: AgentStreams, log: Log
    ) -> AgentIO:
        screen = self.provider.screen
        if screen is None:
            return AgentIO()
        from corral.supervisor.screen_io import ScreenIO

        return ScreenIO(
            screen,
            size=self._size,
            approvals=frozenset(self._launch.approvals),
            type_in=streams.type_in,
            first_prompt=start.stdin,
            log=log,
        )

    def _acp_io(self, start: LaunchCommand, run: Run, streams: AgentStreams, log: Log) -> AgentIO:
        from corral.adapters.providers.mcp_config import build_acp_servers
        from corral.supervisor.acp_io import AcpIO

        def write(data: bytes) -> None:
            if not streams.type_in(data):
                raise BrokenPipeError

        return AcpIO(
            self._store,
            run,
            write=write,
            prompt=start.stdin or "",
            session=start.session,
            approvals=frozenset(self._launch.approvals),
            allow=self._agent_config.allow,
            deny=self._agent_config.deny,
            servers=build_acp_servers(self.env(start)) if self._agent_config.tools else [],
            secrets=self._secret_values,
            log=log,
        )

    @property
    def _secret_values(self) -> list[str]:
        """The values of the run's secrets."""
        return list(self.secrets.values())

    def describe_environment(self) -> dict[str, Any]:
        """Return versions, git state, recorded variables and sandbox of the run."""
        from corral.supervisor.environment import describe_environment

        description = describe_environment() | {
            "git": self._git(),
            "provider_version": self._version(),
        }
        if self.confinement is not None:
            self._sandbox_info = {"kind": self._launch.sandbox, "lacks": self.confinement.lacks}
        return description | {"sandbox": self._sandbox_info} if self._sandbox_info else description

    def _git(self) -> dict[str, Any] | None:
        """Return the git state of the working directory.

        Git must not execute what a sandboxed agent wrote: in a worktree the known repository is
        used, and in a session sandbox git is not called at all.
        """
        from corral.supervisor import environment

        if self._launch.is_boxed:
            return None
        if self._launch.sandbox in (None, "none"):
            return environment.read_git_state(self._run.cwd)
        return environment.read_worktree_state(self._checkout)

    def _version(self) -> str | None:
        if self._launch.raw or self.provider.name == "plain":
            return None
        import shutil

        return self.provider.version(shutil.which(self._run.command) or self._run.command)

    def _is_structured(self, args: list[str]) -> bool:
        return self.provider.name != "plain" and not STRUCTURED_OPTIONS.isdisjoint(args)

    def _provider_session(self) -> str | None:
        assert self._run.session_id is not None
        return self._store.sessions.get(self._run.session_id).provider_session

    def _read_agent_config(self) -> AgentConfig:
        run = self._run
        if run.agent_id is None or run.agent_version is None:
            return AgentConfig()
        version = self._store.agents.version(run.agent_id, run.agent_version)
        grants = self._store.agents.grants(run.agent_id).items
        return AgentConfig(
            version.model,
            version.instructions,
            tuple(grant.tool for grant in grants if grant.allowed),
            tuple(grant.tool for grant in grants if not grant.allowed),
            self._setting("runs.mcp_tools") is True,
        )

    @cached_property
    def _instructions(self) -> str | None:
        """The instructions of the agent, followed by the notes of the agent, the project and
        everyone that are relevant to the prompt."""
        run, own = self._run, self._agent_config.instructions
        if run.agent_id is None or not (tokens := self._setting("notes.prompt_tokens")):
            return own
        prompt = self._launch.prompt
        section = self._store.notes.prompt_section(
            about=prompt[:MAX_TOPIC_CHARS] if prompt else None,
            agent=run.agent_id,
            project=run.project_id,
            tokens=tokens,
        )
        if not section.notes:
            return own
        self._store.notes.record_use(section.notes)
        return f"{own}\n\n{section.text}" if own else section.text

    def _setting(self, name: str) -> Any:
        """Return a setting for the run's agent and project."""
        agent = self._store.agents.get(self._run.agent_id or "").name
        return self._store.settings.get(name, agent=agent, project=self._run.project_id).value


def _is_created_by_corral(dir: str) -> bool:
    """Whether a directory is in a worktree that Corral created for a race or a task."""
    from corral.services.races.paths import races_folder
    from corral.services.tasks.autostart import worktrees_folder

    real = os.path.realpath(dir)
    folders = (os.path.realpath(folder) for folder in (races_folder(), worktrees_folder()))
    return any(real.startswith(f"{folder}/") for folder in folders)


def _is_linked_worktree(dir: str) -> bool:
    """Whether a directory is in a linked git worktree. Hooks that are installed in the project's
    own directory, and are not committed, are missing there."""
    from corral.adapters import git

    top = git.find_worktree_root(os.path.realpath(dir))
    return top is not None and git.find_main_worktree(top) is not None


def _random_uuid() -> str:
    """Return a version 4 UUID. Importing `uuid` would slow down the start."""
    number = int.from_bytes(os.urandom(16))
    number = number & ~(0xF << 76) | 4 << 76
    number = number & ~(0b11 << 62) | 0b10 << 62
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
