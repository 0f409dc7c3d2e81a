"""Requests for runs: decide what to start, where and for whom, and queue it.

The runner is the agent or provider that was named, otherwise the command of the project, otherwise
the first agent CLI that is installed. One transaction registers the project, opens the session,
records its first turn and queues the run. A plain command has no agent and no session; the modules
of these are not imported for it.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from corral import config
from corral.adapters import process
from corral.adapters.providers import registry
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run, RunMode
from corral.domain.runs.spec import GRACE_MS, OUTPUT_CAP, RunSpec
from corral.domain.settings import ops as settings
from corral.kernel.display_text import shorten
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.words import split_command
from corral.services.runs.budget_support import require_measured

if TYPE_CHECKING:
    from corral.domain.agents.model import Agent
    from corral.domain.chat.conversations.prompts import RecordedTurn
    from corral.domain.sessions.model import Session

T = TypeVar("T")

PREFERRED_PROVIDERS = ("claude", "codex", "gemini", "opencode", "qwen", "copilot")
ANY_HOST = "any"  # instead of the name of a machine
MAX_TITLE = 60  # characters; low enough for the limit in bytes


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a run of an agent or a command.

    Most options are those of `corral run`.
    """

    prompt: str | None = None
    recorded_turns: Sequence["RecordedTurn"] | None = None
    """The turns that the session records instead of the prompt."""
    title: str | None = None
    """The text whose first line becomes the title, for a prompt that Corral composed."""
    command: Sequence[str] | None = None
    agent: str | None = None
    project: str | None = None
    dir: str | None = None
    """The working directory, if it is not that of the project, such as a worktree.

    Without a project: the private folder of an agent that only chats.
    """
    session: str | None = None
    name: str | None = None
    timeout_ms: int | None = None
    idle_ms: int | None = None
    grace_period_ms: int | None = None
    max_restarts: int | None = None
    env: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}
    budget_micros: int | None = None
    max_output_bytes: int | None = None
    approvals: Sequence[str] = ()
    sandbox: str | None = None
    """One of `WORKTREE_SANDBOXES`, or a session sandbox: `session:` and its tool.

    `bubblewrap` and `landlock` isolate the working directory. The prefix is for chat agents: they
    have no network and exchange messages through files. `none` and None mean no sandbox.
    """
    terminal: bool | None = None
    """Whether to allocate a pseudo-terminal. Without a value, a `watched` run gets one."""
    watched: bool = False
    """Whether a person watches the run at a terminal."""
    acp: bool = False
    """Whether the program speaks the Agent Client Protocol."""
    host: str | None = None
    """The machine to run on, or `any`. Default: this machine, or any that has the `labels`."""
    labels: Sequence[str] = ()
    claimed: bool = False
    """Whether the caller starts the supervisor itself."""
    remote: bool = False
    """Whether the request came over HTTP, so that the directory of this process is not meant."""


class Runner(NamedTuple):
    """The program to start, its provider and its agent."""

    provider: str
    program: str
    extra: list[str]
    agent: "Agent | None" = None


class RunTarget(NamedTuple):
    """The program of a run, and where and for which conversation it runs."""

    host: str | None
    """The machine; None for any machine that fits."""
    cwd: str
    project: Project | None
    session: "Session | None"
    """The session that the run continues."""
    runner: Runner

    @property
    def is_local(self) -> bool:
        return self.host == process.host()


class ResolvedPrompt(NamedTuple):
    """The prompt of a run, and its title."""

    text: str | None
    turn: str | None
    """The text that the session records as its turn."""
    title: str | None


def request_run(tx: Tx, request: RunRequest) -> Run:
    """Queue a run and return it.

    Raises NotFound for an unknown agent, session or project, Refused when no agent CLI is installed
    or the budget cannot be enforced, and Invalid for contradicting options.
    """
    if request.agent is not None and request.command is not None:
        raise Invalid("Give an agent or a command, not both.")
    target = _resolve_target(tx, request)
    prompt = _resolve_prompt(tx, request, target)
    spec = _to_spec(tx, request, target, prompt)
    require_measured(spec.command, target.runner.provider, spec.mode, spec.budget_micros)
    session = target.session
    if session is None and (target.runner.agent is not None or request.command is None):
        session = _open_session(tx, target.runner, target.project, prompt.title)
        spec = msgspec.structs.replace(spec, session_id=session.id)
    run = runs.enqueue(tx, spec)
    if session is not None and prompt.turn is not None:
        from corral.services.runs import conversation

        conversation.record_prompt(tx, session, run, prompt.turn, request.recorded_turns)
    return run


def _resolve_target(tx: Tx, request: RunRequest) -> RunTarget:
    """Return where a run happens, and its program. Registers the project of its directory."""
    session = _session(tx, request.session) if request.session else None
    named_runner = _named_runner(tx, request, session)
    host = _host(request)
    is_local = host == process.host()
    project: Project | None
    if request.dir is not None:
        cwd = projects.resolve_dir(request.dir, must_exist=is_local)
        project = projects.get(tx, request.project) if request.project is not None else None
    else:
        cwd = _cwd(tx, request, session, named_runner, must_exist=is_local)
        project = projects.register(tx, cwd, must_exist=is_local)
    runner = named_runner or _default_runner(request, project, session)
    return RunTarget(host, cwd, project, session, runner)


def _resolve_prompt(tx: Tx, request: RunRequest, target: RunTarget) -> ResolvedPrompt:
    """Return the prompt of a run: of the request, else of the project for a new session.

    A prompt that another agent writes into a conversation that it does not own is quoted.
    """
    given = request.prompt
    is_new_session = request.command is None and target.session is None
    if given is None and is_new_session and target.project is not None:
        given = target.project.prompt
    text = turn = given
    is_of_another_agent = tx.run_id is not None and request.session is not None
    if given and is_of_another_agent and request.recorded_turns is None:
        from corral.services.runs import conversation

        text, turn = conversation.quote_caller(tx, given)
    first_turn = request.recorded_turns[0].text if request.recorded_turns else turn
    return ResolvedPrompt(text, turn, _title(tx, request.title or first_turn))


def _to_spec(tx: Tx, request: RunRequest, target: RunTarget, prompt: ResolvedPrompt) -> RunSpec:
    """Return the specification of a run, with the limits of its agent where it has none."""
    project, session, runner = target.project, target.session, target.runner
    interactive = _is_watched(request) and target.is_local
    return RunSpec(
        command=runner.program,
        args=runner.extra,
        cwd=target.cwd,
        name=request.name,
        title=prompt.title,
        project_id=project.id if project else None,
        session_id=session.id if session else None,
        agent_id=runner.agent.id if runner.agent else None,
        agent_version=runner.agent.version if runner.agent else None,
        parent_id=_parent(tx),
        provider=runner.provider,
        mode=RunMode.ACP if request.acp else RunMode.PTY if interactive else RunMode.PIPE,
        prompt=_with_context(tx, session, prompt.text, request),
        resume_session=session.provider_session if session else None,
        env=check_env(request.env),
        secrets=check_secret_references(tx, request.secrets),
        approvals=request.approvals,
        sandbox=request.sandbox,
        raw=request.command is not None,
        interactive=interactive,
        grace_period_ms=_first_given(request.grace_period_ms, GRACE_MS),
        max_restarts=request.max_restarts or 0,
        max_output_bytes=_first_given(request.max_output_bytes, OUTPUT_CAP),
        host=target.host,
        labels=request.labels,
        claimed=request.claimed and target.is_local,
        timeout_ms=_limit(request, runner.agent, "timeout_ms"),
        idle_ms=_limit(request, runner.agent, "idle_ms"),
        budget_micros=_limit(request, runner.agent, "budget_micros"),
    )


def resume_run(tx: Tx, run_or_session: str, request: RunRequest) -> Run:
    """Queue a run that continues an earlier run or a session.

    Limits, variables and agent are those of the earlier run unless the request has its own. A
    command without a conversation is started again. The first prompt is not repeated. Raises
    Conflict while the earlier run is live.
    """
    named_run = _latest_run(tx, run_or_session)
    if named_run is None:
        return request_run(tx, msgspec.structs.replace(request, session=run_or_session))
    before = _live_run_or(tx, named_run)
    if before.is_live:
        raise Conflict(f"Cannot resume {before.id}: it is {before.state}.", id=before.id)
    launch = runs.get_launch(tx, before.id)
    if launch.has_session_sandbox and request.sandbox is None:
        raise Refused(
            f"Cannot resume {before.id}: its sandboxed agent reads only its chat. Write to it "
            "there, or set chat.sandbox to off first.",
            id=before.id,
            reason="sandboxed",
        )
    has_directory = bool(request.project or request.dir)
    worktree_project = None if has_directory else _worktree_project(tx, before)
    command = [before.command, *before.args] if launch.raw else None
    return request_run(
        tx,
        msgspec.structs.replace(
            request,
            command=command,
            agent=request.agent or (None if command else _current_agent(tx, before)),
            project=request.project or worktree_project or (None if request.dir else before.cwd),
            dir=before.cwd if worktree_project else request.dir,
            session=before.session_id,
            name=request.name or before.name,
            timeout_ms=_first_given(request.timeout_ms, launch.timeout_ms),
            idle_ms=_first_given(request.idle_ms, launch.idle_ms),
            grace_period_ms=_first_given(request.grace_period_ms, launch.grace_period_ms),
            budget_micros=_first_given(request.budget_micros, launch.budget_micros),
            max_restarts=_first_given(request.max_restarts, launch.max_restarts),
            max_output_bytes=_first_given(request.max_output_bytes, launch.max_output_bytes),
            env={**launch.env, **request.env},
            secrets={**launch.secrets, **request.secrets},
            approvals=request.approvals or launch.approvals,
            sandbox=request.sandbox or launch.sandbox,
            acp=request.acp or before.mode is RunMode.ACP,
            # The provider stores its conversation on the machine that ran it.
            host=request.host
            or launch.host
            or (None if before.mode is RunMode.RECORDED else ANY_HOST),
            labels=request.labels or launch.labels,
        ),
    )


def _latest_run(tx: Tx, run_or_session: str) -> Run | None:
    """Return a run, or the latest run of a session; None for a session without runs."""
    if not run_or_session.startswith("ses_"):
        return runs.get(tx, run_or_session)
    session = _session(tx, run_or_session)
    return next(iter(runs.list_runs(tx, session=session.id, limit=1).items), None)


def _live_run_or(tx: Tx, run: Run) -> Run:
    """Return the live run of a run's session if there is one, else the run itself.

    Serialized, so that only one of several concurrent callers resumes the conversation.
    """
    if run.session_id is None:
        return run
    tx.serialize(f"resume:{run.session_id}")
    latest = runs.list_runs(tx, session=run.session_id, limit=1).items
    return latest[0] if latest and latest[0].is_live else run


def _worktree_project(tx: Tx, before: Run) -> str | None:
    """Return the project of a run that worked outside the project's directory."""
    with suppress(NotFound):
        project = projects.get(tx, before.project_id) if before.project_id else None
        return project.id if project is not None and project.dir != before.cwd else None
    return None


def _current_agent(tx: Tx, before: Run) -> str | None:
    """Return the agent that has the conversation now: it may have been handed off since."""
    if before.session_id is not None:
        owner = _session(tx, before.session_id).agent_id
        if owner is not None:
            return owner
    return before.agent_id or before.provider


def _with_context(
    tx: Tx, session: "Session | None", prompt: str | None, request: RunRequest
) -> str | None:
    """Return the prompt, preceded by the conversation if the provider does not know it."""
    if request.session is None or session is None or session.provider_session or not session.turns:
        return prompt
    from corral.services.runs import conversation

    return conversation.add_context(tx, session, prompt, request.recorded_turns)


def _first_given(given: int | None, default: T) -> int | T:
    """Return the given value, which may be 0, else the default."""
    return default if given is None else given


def _host(request: RunRequest) -> str | None:
    """Return the machine to run on; None for any machine that fits."""
    if request.host == ANY_HOST:
        return None
    return request.host or (None if request.labels else process.host())


def _cwd(
    tx: Tx,
    request: RunRequest,
    session: "Session | None",
    named: Runner | None,
    *,
    must_exist: bool,
) -> str:
    """Return the working directory: of the request, the session, the agent, or this process.

    `must_exist` is False for another machine, whose directories cannot be checked here.
    """
    if request.project is not None:
        if not os.path.isdir(request.project):
            with suppress(NotFound, Invalid):
                project = projects.get(tx, request.project)
                return projects.resolve_dir(project.dir, must_exist=must_exist)
        return projects.resolve_dir(request.project, must_exist=must_exist)
    if session is not None and session.project_id is not None:
        project = projects.get(tx, session.project_id)
        return projects.resolve_dir(project.dir, must_exist=must_exist)
    if named is not None and named.agent is not None and named.agent.workspace:
        return projects.resolve_dir(named.agent.workspace, must_exist=must_exist)
    if request.remote:
        raise Invalid("Give `project`: its id or an absolute path.", reason="project_missing")
    try:
        current = os.getcwd()
    except FileNotFoundError:
        raise Invalid(
            "The current directory does not exist any more. Change to another one, or name one."
        ) from None
    return projects.resolve_dir(current, must_exist=True)


def _default_runner(
    request: RunRequest, project: Project | None, session: "Session | None"
) -> Runner:
    """Return the runner of a request that names no agent."""
    if request.command is not None:
        if not request.command or not request.command[0]:
            raise Invalid("Give the command to run.")
        known = registry.find_by_program(request.command[0]).name
        return Runner(known, request.command[0], list(request.command[1:]))
    if session is not None and session.provider is not None:
        return _provider_runner(session.provider)
    if project is not None and project.command:
        return _command_runner(project.command, None)
    if (installed := find_installed_provider()) is None:
        raise Refused(
            f"No agent CLI is on the PATH ({', '.join(PREFERRED_PROVIDERS)}). Install one, name "
            "one with --agent (`scripted` is built in, for trying things out), or give a command "
            "after `--`."
        )
    return _provider_runner(installed)


def _named_runner(tx: Tx, request: RunRequest, session: "Session | None") -> Runner | None:
    """Return the runner of the named agent or provider; None when the request names none."""
    name = request.agent
    if name is None and request.command is None and session is not None:
        name = session.agent_id
    if name is None or request.command is not None:
        return None
    from corral.domain.agents import ops as agents
    from corral.domain.agents.model import AgentState

    try:
        agent = agents.get(tx, name)
    except (NotFound, Invalid):
        if name in registry.list_providers() and name != "plain":
            return _provider_runner(name)
        providers = ", ".join(known for known in registry.list_providers() if known != "plain")
        raise NotFound(
            f"There is no agent {name!r}. See `corral agent list`, or use a provider: {providers}.",
            name=name,
            reason="unknown_agent",
        ) from None
    if agent.state is not AgentState.ACTIVE:
        raise Conflict(
            f"The agent {agent.name} is retired. Restore it with `corral agent restore "
            f"{agent.name}`, or use another."
        )
    if agent.command:
        return _command_runner(agent.command, agent)
    if agent.provider is None:
        raise Invalid(
            f"The agent {agent.name} has no provider and no command. Set one with "
            f"`corral agent edit {agent.name} --provider claude`.",
            reason="no_provider",
        )
    return _provider_runner(agent.provider)._replace(agent=agent)


def find_runner(tx: Tx, name: str) -> Runner:
    """Return the runner of an agent or of a provider; raises NotFound, Conflict or Invalid."""
    runner = _named_runner(tx, RunRequest(agent=name), None)
    assert runner is not None
    return runner


def _command_runner(command: str, agent: "Agent | None") -> Runner:
    program, *arguments = split_command(command)
    provider = (agent.provider if agent else None) or registry.find_by_program(program).name
    return Runner(provider, program, arguments, agent)


def _provider_runner(name: str) -> Runner:
    return Runner(name, registry.get_provider(name).program, [])


def find_installed_provider() -> str | None:
    """Return the first preferred provider whose program is on the PATH."""
    import shutil

    names = (
        name for name in PREFERRED_PROVIDERS if shutil.which(registry.get_provider(name).program)
    )
    return next(names, None)


def require_program(name: str, runner: Runner, env: Mapping[str, str]) -> None:
    """Refuse an agent whose program is not on this machine.

    A program on a relative path is not checked: it is resolved in the working directory.
    """
    import shutil

    program, path = runner.program, env.get("PATH", os.environ.get("PATH", os.defpath))
    searched = [program] if "/" in program else path.split(os.pathsep)
    if not all(map(os.path.isabs, searched)) or shutil.which(program, path=path):
        return
    where = "" if "/" in program else " on the PATH"
    raise Refused(
        f"Cannot start {name}: there is no program {program}{where}. Install it, or use another "
        "agent (`scripted` is built in, for trying things out).",
        agent=name,
        program=program,
        reason="program_missing",
    )


def _session(tx: Tx, id: str) -> "Session":
    from corral.domain.sessions import ops as sessions

    return sessions.get(tx, id)


def _open_session(tx: Tx, runner: Runner, project: Project | None, title: str | None) -> "Session":
    from corral.domain.sessions import ops as sessions

    return sessions.open_session(
        tx,
        runner.agent.id if runner.agent else None,
        project=project.id if project else None,
        title=title,
        provider=runner.provider,
    )


def _title(tx: Tx, text: str | None) -> str | None:
    """Return the first line of a text, shortened and without secrets; None when it is empty."""
    first = (text or "").strip().partition("\n")[0]
    return shorten(tx.without_secrets(first), MAX_TITLE) or None


def _is_watched(request: RunRequest) -> bool:
    return request.watched if request.terminal is None else request.terminal


def _parent(tx: Tx) -> str | None:
    """Return the run that this process is inside of, if it is in this store."""
    given = tx.run_id or config.run_id()
    with suppress(NotFound, Invalid):
        return runs.get(tx, given).id if given else None
    return None


def _limit(request: RunRequest, agent: "Agent | None", name: str) -> int | None:
    """Return the limit of the request, otherwise that of the agent."""
    given: int | None = getattr(request, name)
    if given is None and agent is not None:
        given = getattr(agent.limits, name)
    return given


def check_secret_references(tx: Tx, secrets: Mapping[str, str]) -> Mapping[str, str]:
    """Check that each value is a reference. The error omits the value: it may be the secret."""
    for name, reference in secrets.items():
        kind, colon, where = reference.partition(":")
        try:
            known = bool(colon and where.strip() and kind in ("env", "file", "cmd", "keyring"))
            if not known:
                settings.get_secret(tx, reference)
        except (NotFound, Invalid):
            raise Invalid(
                f"The value of --secret {name}= is not a reference. Use env:NAME, file:PATH, "
                "cmd:COMMAND, keyring:SERVICE/NAME, or the name of a `corral secret`.",
                name=name,
                reason="bad_secret_reference",
            ) from None
    return secrets


_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


def check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """Check variables that are given by value. Values are stored, so secrets are refused."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise Invalid(f"Invalid variable name {name!r}. Use --env NAME=VALUE.")
        if any(part in name.upper().split("_") for part in _SECRET_NAMES) and value:
            raise Refused(
                f"{name} looks like a secret, and values of --env are stored. Use "
                f"--secret {name}=env:{name} or another reference.",
                name=name,
            )
    return env
