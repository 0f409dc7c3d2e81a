"""The launch plan of a run: command line, environment and streams of its attempts."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corral import config
from corral.adapters.processes import process
from corral.adapters.providers import registry
from corral.adapters.providers.provider import RESUME_PROMPT, LaunchCommand, LaunchRequest
from corral.adapters.supervisor_process import RUN_VARIABLES
from corral.domain.runs.model import SESSION_SANDBOX_PREFIX, Launch, Run, RunMode
from corral.supervisor.streams import (
    AgentStreams,
    CopiedStreams,
    DirectStreams,
    ProtocolStreams,
    TerminalStreams,
)

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Provider
    from corral.adapters.sandbox_bridge.schema import SessionFolder
    from corral.api import Corral
    from corral.supervisor.agent_io import Log
    from corral.supervisor.worktree_sandbox import WorktreeSandbox

# The maximum length of the part of the prompt that is used to select relevant notes.
MAX_TOPIC_CHARS = 8_000


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
        self.store = store
        self.run = run
        self.launch = launch
        self.folder = folder
        self._stdin = stdin
        self._split = split
        self.size = size
        self.secrets = {name: secret(reference) for name, reference in launch.secrets.items()}
        self.provider: Provider = registry.get_provider(run.provider)
        self.agent_config = self._read_agent_config()
        self._is_moved = self._was_on_another_host()
        self._session_sandbox: dict[str, Any] | None = None

    def _was_on_another_host(self) -> bool:
        """Whether an earlier attempt ran on another machine.

        The provider's own files of the conversation are on that machine.
        """
        run = self.run
        if self.launch.host is not None or not run.attempts or run.session_id is None:
            return False
        return self.store.outputs.get(run.id).host != process.host()

    def build_command(self, log: "Log", *, resume: bool) -> LaunchCommand:
        """Return the command of an attempt; with `resume`, it continues the conversation."""
        command = self._build_provider_command(resume=resume)
        if self.launch.has_session_sandbox:
            return self._wrap_in_session_sandbox(command)
        if self.worktree_sandbox is None:
            return command
        session = self.get_provider_session() if self.run.session_id else None
        return self.worktree_sandbox.wrap(command, session, log)

    def _wrap_in_session_sandbox(self, command: LaunchCommand) -> LaunchCommand:
        """Return the command inside a session sandbox; see `runs/spec.py`."""
        from corral.services.chat import session_sandbox

        run, folder = self.run, self._session_files
        start_file = session_sandbox.write_start_file(folder, command, self.provider.name)
        wrapped = session_sandbox.wrap_command(
            [sys.executable, "-P", "-m", session_sandbox.AGENT_CLIENT, "run", start_file],
            folder,
            session_sandbox.SandboxPaths(
                work=run.cwd,
                store=self.store.address,
                scratch=str(self.folder / "scratch"),
                programs=command.args,
                reads=self._get_setting("chat.sandbox_read_paths"),
            ),
            kind=str(self.launch.sandbox).removeprefix(SESSION_SANDBOX_PREFIX),
        )
        self._session_sandbox = _describe_sandbox(wrapped.kind, wrapped.missing_protections)
        return LaunchCommand(
            wrapped.words,
            env=session_sandbox.build_agent_environment(folder) | wrapped.environment,
            structured=command.structured,
            session=command.session,
        )

    @cached_property
    def _session_files(self) -> "SessionFolder":
        """The prepared session files of an agent in a session sandbox."""
        assert self.run.session_id is not None
        return self.store.internal.chat.prepare_sandbox(self.run.session_id)

    @cached_property
    def worktree_sandbox(self) -> "WorktreeSandbox | None":
        """The worktree sandbox of the run; None without one."""
        if not self.launch.has_worktree_sandbox:
            return None
        from corral.supervisor.worktree_sandbox import WorktreeSandbox

        return WorktreeSandbox(
            self.store,
            self.run,
            self.launch,
            self.folder,
            self.provider.name,
            self._get_project_setting,
        )

    @property
    def sandbox_description(self) -> dict[str, Any] | None:
        """The kind of the run's sandbox and the protections that it lacks; None without one."""
        if self.worktree_sandbox is None:
            return self._session_sandbox
        return _describe_sandbox(
            str(self.launch.sandbox), self.worktree_sandbox.missing_protections
        )

    def get_provider_session(self) -> str | None:
        """Return the provider's own id of the conversation; None without one."""
        if self.run.session_id is None:
            return None
        return self.store.sessions.get(self.run.session_id).provider_session

    def _get_project_setting(self, name: str) -> Any:
        return self.store.settings.get(name, project=self.run.project_id).value

    def _build_provider_command(self, *, resume: bool) -> LaunchCommand:
        run, launch = self.run, self.launch
        if launch.raw and run.mode is not RunMode.ACP:
            args = [run.command, *run.args]
            return LaunchCommand(args, structured=is_structured(self.provider, args))
        request = self._build_launch_request(resume=resume)
        if run.mode is RunMode.ACP:
            return self._build_acp_command(request)
        command = self.provider.build_command(request, run.command)
        if command.session is not None and run.session_id is not None:
            self.store.sessions.set_provider_session(
                run.session_id, self.provider.name, command.session
            )
        return command

    def _build_launch_request(self, *, resume: bool) -> LaunchRequest:
        from corral.adapters.git import git

        run, launch = self.run, self.launch
        session = self.get_provider_session()
        prompt = launch.prompt
        if launch.has_session_sandbox:
            from corral.adapters.sandbox_bridge.agent_client import PROMPT_PLACEHOLDER

            # The sandbox replaces it with the messages in the session file.
            prompt = PROMPT_PLACEHOLDER
        elif self._is_moved:
            from corral.services.runs.conversation import MAX_TURNS, prepend_context

            # Send the conversation as text; from the next attempt on, the provider has it here.
            assert run.session_id is not None
            context = self.store.sessions.context(run.session_id, limit=MAX_TURNS)
            session, prompt, self._is_moved = None, prepend_context(context, None) or prompt, False
        resumes = session is not None and (resume or launch.resume_session is not None)
        if session is None and self.provider.accepts_session_id:
            session = _random_uuid()
        return LaunchRequest(
            prompt=None if resume and resumes else prompt,
            model=self.agent_config.model,
            instructions=self._instructions,
            session=session,
            resume=resumes,
            interactive=launch.interactive,
            approvals=tuple(launch.approvals),
            allow=self.agent_config.allow,
            deny=self.agent_config.deny,
            is_sandboxed=launch.has_session_sandbox or self.worktree_sandbox is not None,
            is_root=os.geteuid() == 0 and not self._is_root_allowed(),
            is_own_worktree=config.is_own_worktree(run.cwd),
            tools=self.agent_config.tools,
            # Lock hooks need the store, which a sandbox cannot reach.
            hooks=run.agent_id is not None
            and self.worktree_sandbox is None
            and git.is_linked_worktree(run.cwd),
            extra=tuple(run.args),
        )

    def _is_root_allowed(self) -> bool:
        name = self.provider.root_variable
        return name is not None and bool((os.environ | self.launch.env).get(name))

    def _build_acp_command(self, request: LaunchRequest) -> LaunchCommand:
        """Return the command of an agent that speaks ACP.

        A program whose provider has no special options for ACP is started as it is.
        """
        run = self.run
        program = None if run.command == self.provider.program else run.command
        command = self.provider.build_acp_command(request, program)
        if command is not None:
            return command
        session = request.session if request.resume else None
        return LaunchCommand(
            [run.command, *run.args], stdin=request.prompt or RESUME_PROMPT, session=session
        )

    def build_environment(self, command: LaunchCommand) -> dict[str, str]:
        """Return the environment of the agent.

        It has the supervisor's own variables, those given to the run, and those that identify the
        run.
        """
        run = self.run
        if self.launch.has_session_sandbox:
            # A session sandbox gets neither the host's environment nor the address of the store.
            return command.env | self.launch.env | self.secrets | {"CORRAL_RUN": run.id}
        # The token of a person is not passed on: a run acts as itself.
        removed = (*RUN_VARIABLES, "CORRAL_TOKEN")
        env = {name: value for name, value in os.environ.items() if name not in removed}
        env["CORRAL_STORE"] = self.store.address
        given = command.env | self.launch.env | self.secrets
        env = (
            self.worktree_sandbox.build_environment(given) if self.worktree_sandbox else env | given
        )
        env["CORRAL_RUN"] = run.id
        if self.secrets:  # `corral`, called by the agent, redacts the values of these variables
            inherited = env.get("CORRAL_SECRETS", "").split(",")
            env["CORRAL_SECRETS"] = ",".join(dict.fromkeys([*inherited, *self.secrets])).strip(",")
        if run.session_id is not None:
            env["CORRAL_SESSION"] = run.session_id
        if run.agent_id is not None:
            env["CORRAL_AGENT"] = self.store.agents.get(run.agent_id).name
        if run.mode is RunMode.PTY:
            env.setdefault("TERM", "xterm-256color")
        return env

    def create_streams(self, command: LaunchCommand) -> AgentStreams:
        """Return the streams of an attempt, not opened yet."""
        if self.run.mode is RunMode.PTY:
            rows, columns = self.size
            return TerminalStreams(self.folder, rows=rows, columns=columns)
        if self.run.mode is RunMode.ACP:
            return ProtocolStreams(self.folder, stdin=None, split=bool(self.secrets))
        stdin: str | int | None = command.stdin
        if stdin is None and self._stdin is not None:
            stdin = self._stdin
        split = self._split or command.structured
        kind = CopiedStreams if self.secrets else DirectStreams
        return kind(self.folder, stdin=stdin, split=split)

    def _read_agent_config(self) -> AgentConfig:
        run = self.run
        if run.agent_id is None or run.agent_version is None:
            return AgentConfig()
        version = self.store.agents.version(run.agent_id, run.agent_version)
        grants = self.store.agents.grants(run.agent_id).items
        return AgentConfig(
            version.model,
            version.instructions,
            tuple(grant.tool for grant in grants if grant.allowed),
            tuple(grant.tool for grant in grants if not grant.allowed),
            self._get_setting("runs.mcp_tools") is True,
        )

    @cached_property
    def _instructions(self) -> str | None:
        """The instructions of the agent, followed by notes that are relevant to the prompt.

        The notes are those of the agent, of the project and of everyone.
        """
        run, own = self.run, self.agent_config.instructions
        if run.agent_id is None or not (tokens := self._get_setting("notes.prompt_tokens")):
            return own
        prompt = self.launch.prompt
        section = self.store.notes.prompt_section(
            about=prompt[:MAX_TOPIC_CHARS] if prompt else None,
            agent=run.agent_id,
            project=run.project_id,
            tokens=tokens,
        )
        if not section.notes:
            return own
        self.store.notes.record_use(section.notes)
        return f"{own}\n\n{section.text}" if own else section.text

    def _get_setting(self, name: str) -> Any:
        """Return a setting for the run's agent and project."""
        agent = self.store.agents.get(self.run.agent_id or "").name
        return self.store.settings.get(name, agent=agent, project=self.run.project_id).value


def _describe_sandbox(kind: str, missing_protections: Sequence[str]) -> dict[str, Any]:
    return {"kind": kind, "missing_protections": missing_protections}


def _random_uuid() -> str:
    """Return a version 4 UUID. Importing `uuid` would slow down the start."""
    number = int.from_bytes(os.urandom(16))
    number = number & ~(0xF << 76) | 4 << 76
    number = number & ~(0b11 << 62) | 0b10 << 62
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
