"""Requests for runs: decide what to start, where and for whom, and queue it.

`runners` chooses the program. One transaction registers the project, opens the session, records its
first turn and queues the run. A plain command has no agent and no session; the modules of these are
not imported for it.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from corral.adapters.processes import process
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run, RunMode
from corral.domain.runs.spec import GRACE_MS, OUTPUT_CAP, RunSpec
from corral.kernel.display_text import shorten
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.identity import CHECK_ACTOR
from corral.services.runs.budget_check import require_measurable_usage
from corral.services.runs.environment import check_env, check_secret_references
from corral.services.runs.runners import Runner, choose_runner, get_runner, make_command_runner

if TYPE_CHECKING:
    from corral.domain.agents.model import Agent
    from corral.domain.chat.conversations.prompts import RecordedTurn
    from corral.domain.sessions.model import Session

T = TypeVar("T")

ANY_HOST = "any"  # instead of the name of a machine
MAX_TITLE = 60  # characters; low enough for the limit in bytes


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a run of an agent or a command.

    An option without a value gets the setting or default of `corral run`. Times are in
    milliseconds, money in millionths of a dollar.
    """

    prompt: str | None = None
    """The first prompt. A command gets it on standard input and in `CORRAL_PROMPT`."""
    recorded_turns: Sequence["RecordedTurn"] | None = None
    """The turns that the session records instead of the prompt."""
    title: str | None = None
    """The text whose first line becomes the title, for a prompt that Corral composed."""
    command: Sequence[str] | None = None
    """The command line of the user, started as it is; None: the command of the agent."""
    agent: str | None = None
    """The id or name of the agent."""
    project: str | None = None
    """The id or directory of the project."""
    dir: str | None = None
    """The working directory, if it is not that of the project, such as a worktree.

    Without a project: the private folder of an agent that only chats.
    """
    session: str | None = None
    """The session to continue; None: a new one, if the program has conversations."""
    name: str | None = None
    """A name by which commands find the run; unique among live runs."""
    timeout_ms: int | None = None
    """Stop the run when an attempt lasts longer than this; None: no limit."""
    idle_ms: int | None = None
    """End the run after this time without output; None: never."""
    grace_period_ms: int | None = None
    """The time between SIGTERM and SIGKILL when the run is stopped; None: `GRACE_MS`."""
    max_restarts: int | None = None
    """How often a failed attempt is followed by another one; None: never."""
    env: Mapping[str, str] = {}
    """Environment variables of the program, besides the inherited ones."""
    secrets: Mapping[str, str] = {}
    """Environment variables whose values are secret references, resolved at each start."""
    budget_micros: int | None = None
    """Stop the run when its cost exceeds this amount; None: only other budgets limit it."""
    max_output_bytes: int | None = None
    """How much output to keep, half at each end; None: `OUTPUT_CAP`."""
    approvals: Sequence[str] = ()
    """The classes of requests that are approved: `edit`, `run`, `trust`, `all`."""
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
    """The labels that a machine must have to start the run."""
    claimed: bool = False
    """Whether the caller starts the supervisor itself."""
    remote: bool = False
    """Whether the request came over HTTP, so that the directory of this process is not meant."""


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


def request_run(tx: Tx, request: RunRequest, *, caller_run: str | None = None) -> Run:
    """Queue a run and return it.

    `caller_run` is the run that the environment of the caller names; it may have ended. Raises
    NotFound for an unknown agent, session or project, Refused when no agent CLI is installed
    or the budget cannot be enforced, and Invalid for contradicting options.
    """
    if request.agent is not None and request.command is not None:
        raise Invalid("Give an agent or a command, not both.")
    target = _resolve_target(tx, request)
    prompt = _resolve_prompt(tx, request, target)
    spec = _to_spec(tx, request, target, prompt)
    spec = msgspec.structs.replace(spec, parent_id=_find_parent(tx, caller_run))
    require_measurable_usage(spec.command, target.runner.provider, spec.mode, spec.budget_micros)
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
    session = _get_session(tx, request.session) if request.session else None
    agent_name = request.agent
    if agent_name is None and request.command is None and session is not None:
        agent_name = session.agent_id
    named_runner = get_runner(tx, agent_name) if agent_name is not None else None
    host = _choose_host(request)
    is_local = host == process.host()
    project: Project | None
    if request.dir is not None:
        cwd = projects.resolve_dir(request.dir, must_exist=is_local)
        project = projects.get(tx, request.project) if request.project is not None else None
    else:
        cwd = _resolve_cwd(tx, request, session, named_runner, must_exist=is_local)
        project = projects.register(tx, cwd, must_exist=is_local)
    if request.command is not None:
        if session is not None:
            _check_session_of_command(tx, session)
        runner = make_command_runner(request.command)
    else:
        runner = named_runner or choose_runner(project, session)
    return RunTarget(host, cwd, project, session, runner)


def _check_session_of_command(tx: Tx, session: "Session") -> None:
    """Refuse that a process inside a run gives a session of another agent to its own program.

    A program without an agent acts as its session.
    """
    if not _is_inside_run(tx) or session.agent_id is None:
        return
    caller = runs.get(tx, tx.run_id) if tx.run_id is not None else None
    if caller is None or caller.agent_id != session.agent_id:
        raise Refused(
            f"A process inside a run cannot start a command in {session.id}, which another agent "
            "has. Start the command without a session.",
            id=session.id,
            run=tx.run_id,
        )


def _is_inside_run(tx: Tx) -> bool:
    """Return whether a process inside a run, or a check, makes the request."""
    return tx.run_id is not None or tx.actor == CHECK_ACTOR


def _resolve_prompt(tx: Tx, request: RunRequest, target: RunTarget) -> ResolvedPrompt:
    """Return the prompt of a run: of the request, else of the project for a new session.

    A prompt that another agent writes into a conversation that it does not own is quoted.
    """
    given = request.prompt
    is_new_session = request.command is None and target.session is None
    if given is None and is_new_session and target.project is not None:
        given = target.project.prompt
    text = turn = given
    is_of_another_agent = _is_inside_run(tx) and request.session is not None
    if given and is_of_another_agent and request.recorded_turns is None:
        from corral.services.runs import conversation

        text, turn = conversation.quote_caller(tx, given)
    first_turn = request.recorded_turns[0].text if request.recorded_turns else turn
    return ResolvedPrompt(text, turn, _make_title(tx, request.title or first_turn))


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
        grace_period_ms=coalesce(request.grace_period_ms, GRACE_MS),
        max_restarts=request.max_restarts or 0,
        max_output_bytes=coalesce(request.max_output_bytes, OUTPUT_CAP),
        host=target.host,
        labels=request.labels,
        claimed=request.claimed and target.is_local,
        timeout_ms=_get_limit(request, runner.agent, "timeout_ms"),
        idle_ms=_get_limit(request, runner.agent, "idle_ms"),
        budget_micros=_get_limit(request, runner.agent, "budget_micros"),
    )


def _with_context(
    tx: Tx, session: "Session | None", prompt: str | None, request: RunRequest
) -> str | None:
    """Return the prompt, preceded by the conversation if the provider does not know it."""
    if request.session is None or session is None or session.provider_session or not session.turns:
        return prompt
    from corral.services.runs import conversation

    return conversation.add_context(tx, session, prompt, request.recorded_turns)


def coalesce(given: int | None, default: T) -> int | T:
    """Return the given value, which may be 0, else the default."""
    return default if given is None else given


def _choose_host(request: RunRequest) -> str | None:
    """Return the machine to run on; None for any machine that fits."""
    if request.host == ANY_HOST:
        return None
    return request.host or (None if request.labels else process.host())


def _resolve_cwd(
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
            "The current directory no longer exists. Change to another one, or name a project."
        ) from None
    return projects.resolve_dir(current, must_exist=True)


def _get_session(tx: Tx, id: str) -> "Session":
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


def _make_title(tx: Tx, text: str | None) -> str | None:
    """Return the first line of a text, shortened and without secrets; None when it is empty."""
    first = (text or "").strip().partition("\n")[0]
    return shorten(tx.without_secrets(first), MAX_TITLE) or None


def _is_watched(request: RunRequest) -> bool:
    return request.watched if request.terminal is None else request.terminal


def _find_parent(tx: Tx, caller_run: str | None) -> str | None:
    """Return the run that the caller is or was inside of, if it is in this store."""
    given = tx.run_id or caller_run
    with suppress(NotFound, Invalid):
        return runs.get(tx, given).id if given else None
    return None


def _get_limit(request: RunRequest, agent: "Agent | None", name: str) -> int | None:
    """Return the limit of the request, otherwise that of the agent."""
    given: int | None = getattr(request, name)
    if given is None and agent is not None:
        given = getattr(agent.limits, name)
    return given
