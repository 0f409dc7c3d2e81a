"""From a wish ("ask claude to fix the tests here") to what is to be run.

Who answers: the agent or provider that was named, else the project's own command, else the first
agent CLI that is installed. Everything that a wish leads to, the project, the session, its first
turn and the queued run, is one transaction. A plain command has neither agent nor session, and
starts without their rooms being loaded.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from corral import config
from corral.adapters import process
from corral.adapters.providers import registry
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Mode, Run
from corral.domain.runs.spec import GRACE_MS, OUTPUT_CAP, Order
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.text import abridged, command_words
from corral.services.runs.budget_support import require_measured

if TYPE_CHECKING:
    from corral.domain.agents.model import Agent
    from corral.domain.chat.conversations.prompts import ToldTurn
    from corral.domain.sessions.model import Session

INSTALLED_FIRST = ("claude", "codex", "gemini", "opencode", "qwen", "copilot")
ANY = "any"  # no machine of this name: whichever fits
MAX_TITLE = 60  # characters, so that it fits in bytes too


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to be run."""

    prompt: str | None = None
    told: Sequence["ToldTurn"] | None = None
    """The turns that the session records for the prompt; None: the prompt itself."""
    title: str | None = None
    """The text whose first line is the title, for a prompt that Corral composed; None: the
    prompt."""
    command: Sequence[str] | None = None
    agent: str | None = None
    project: str | None = None
    dir: str | None = None
    """The working directory, if it is not that of the project: a worktree. Without a project: the
    private folder of an agent that only chats."""
    session: str | None = None
    name: str | None = None
    timeout_ms: int | None = None
    idle_ms: int | None = None
    grace_ms: int | None = None
    restarts: int | None = None
    env: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}
    budget_micros: int | None = None
    output_cap: int | None = None
    approvals: Sequence[str] = ()
    sandbox: str | None = None
    """What keeps it in the worktree that it works in: bubblewrap or landlock; None: nothing."""
    terminal: bool | None = None
    """Whether it gets a terminal; None: when somebody watches it."""
    watched: bool = False
    acp: bool = False
    host: str | None = None
    """The machine on which it must run, or `any`; None: this one, or any that offers the labels."""
    labels: Sequence[str] = ()
    claimed: bool = False
    """Whether whoever asks brings a keeper along."""
    afar: bool = False
    """Whether it was asked by a request: the directory of this process is nobody's then."""


class Runner(NamedTuple):
    """What is started, and who it is."""

    provider: str
    program: str
    extra: list[str]
    agent: "Agent | None" = None


def ask(tx: Tx, wish: Wish) -> Run:
    """Queue the run that a wish asks for."""
    if wish.agent is not None and wish.command is not None:
        raise Invalid("An agent gets a prompt, not a command; leave one of the two out.")
    session = _session(tx, wish.session) if wish.session else None
    named = _named(tx, wish, session)
    host = _host(wish)
    here = host == process.host()
    project: Project | None
    if wish.dir is not None:
        cwd = projects.real_dir(wish.dir, must_exist=here)
        project = projects.get(tx, wish.project) if wish.project is not None else None
    else:
        cwd = _cwd(tx, wish, session, named, must_exist=here)
        project = projects.register(tx, cwd, must_exist=here)
    runner = named or _runner(wish, project, session)
    prompt = wish.prompt
    if wish.command is None and prompt is None and session is None and project is not None:
        prompt = project.prompt
    said = None
    if prompt and wish.session is not None and wish.told is None and tx.origin is not None:
        from corral.services.runs import conversation

        # Another agent speaks into a conversation that others began.
        prompt, said = conversation.quote_caller(tx, prompt)
    title = _title(tx, wish.title or (wish.told[0].text if wish.told else said or prompt))
    interactive = _is_watched(wish) and here
    mode = Mode.ACP if wish.acp else Mode.PTY if interactive else Mode.PIPE
    budget = _limit(wish, runner.agent, "budget_micros")
    require_measured(runner.program, runner.provider, mode, budget)
    if runner.agent is not None or wish.command is None:
        session = session or _open_session(tx, runner, project, title)
    run = runs.request(
        tx,
        Order(
            command=runner.program,
            args=runner.extra,
            cwd=cwd,
            name=wish.name,
            title=title,
            project_id=project.id if project else None,
            session_id=session.id if session else None,
            agent_id=runner.agent.id if runner.agent else None,
            agent_version=runner.agent.version if runner.agent else None,
            parent_id=_parent(tx),
            provider=runner.provider,
            mode=mode,
            prompt=_with_context(tx, session, prompt, wish),
            resume_session=session.provider_session if session else None,
            env=checked_env(wish.env),
            secrets=checked_secrets(tx, wish.secrets),
            approvals=wish.approvals,
            sandbox=wish.sandbox,
            raw=wish.command is not None,
            interactive=interactive,
            grace_ms=GRACE_MS if wish.grace_ms is None else wish.grace_ms,
            restarts=wish.restarts or 0,
            output_cap=OUTPUT_CAP if wish.output_cap is None else wish.output_cap,
            host=host,
            labels=wish.labels,
            claimed=wish.claimed and here,
            timeout_ms=_limit(wish, runner.agent, "timeout_ms"),
            idle_ms=_limit(wish, runner.agent, "idle_ms"),
            budget_micros=budget,
        ),
    )
    if session is not None and prompt is not None:
        from corral.services.runs import conversation

        conversation.keep_turns(tx, session, run, said or prompt, wish.told)
    return run


def resume(tx: Tx, typed: str, wish: Wish) -> Run:
    """Queue a run that goes on where another one, or a session, stopped.

    What the wish leaves open is as it was: the limits, the variables, the agent. A command without
    a conversation is started again. The first prompt is not said again.
    """
    if typed.startswith("ses_"):
        session = _session(tx, typed)
        earlier = runs.list_runs(tx, session=session.id, limit=1).items
        if not earlier:
            return ask(tx, msgspec.structs.replace(wish, session=session.id))
        before = earlier[0]
    else:
        before = runs.get(tx, typed)
    if before.session_id is not None:
        # Of several who resume the same conversation, one does.
        tx.serialize(f"resume:{before.session_id}")
        latest = runs.list_runs(tx, session=before.session_id, limit=1).items
        before = latest[0] if latest and latest[0].is_live else before
    if before.is_live:
        raise Conflict(f"{before.id} is {before.state}; there is nothing to resume.", id=before.id)
    launch = runs.launch_of(tx, before.id)
    if launch.is_boxed and wish.sandbox is None:
        raise Refused(
            f"The agent of {before.id} is in a box, and hears only what is said in its chat; say "
            "it there, or set gateway.sandbox to off first.",
            id=before.id,
            reason="sandboxed",
        )
    place = None if wish.project or wish.dir else _place(tx, before)
    command = [before.command, *before.args] if launch.raw else None
    return ask(
        tx,
        msgspec.structs.replace(
            wish,
            command=command,
            agent=wish.agent or (None if command else _agent_now(tx, before)),
            project=wish.project or place or (None if wish.dir else before.cwd),
            dir=before.cwd if place else wish.dir,
            session=before.session_id,
            name=wish.name or before.name,
            timeout_ms=_either(wish.timeout_ms, launch.timeout_ms),
            idle_ms=_either(wish.idle_ms, launch.idle_ms),
            grace_ms=_either(wish.grace_ms, launch.grace_ms),
            budget_micros=_either(wish.budget_micros, launch.budget_micros),
            restarts=_either(wish.restarts, launch.restarts),
            output_cap=_either(wish.output_cap, launch.output_cap),
            env={**launch.env, **wish.env},
            secrets={**launch.secrets, **wish.secrets},
            approvals=wish.approvals or launch.approvals,
            sandbox=wish.sandbox or launch.sandbox,
            acp=wish.acp or before.mode is Mode.ACP,
            # What its provider remembers of the conversation is on the machine that had it.
            host=wish.host or launch.host or (None if before.mode is Mode.RECORDED else ANY),
            labels=wish.labels or launch.labels,
        ),
    )


def _place(tx: Tx, before: Run) -> str | None:
    """The project of a run that worked elsewhere than in its project's directory."""
    with suppress(NotFound):
        project = projects.get(tx, before.project_id) if before.project_id else None
        return project.id if project is not None and project.dir != before.cwd else None
    return None


def _agent_now(tx: Tx, before: Run) -> str | None:
    """Who has the conversation now: it may have been handed to another agent since."""
    if before.session_id is not None:
        owner = _session(tx, before.session_id).agent_id
        if owner is not None:
            return owner
    return before.agent_id or before.provider


def _with_context(tx: Tx, session: "Session | None", prompt: str | None, wish: Wish) -> str | None:
    """Return the prompt, preceded by the conversation if the provider does not know it."""
    if wish.session is None or session is None or session.provider_session or not session.turns:
        return prompt
    from corral.services.runs import conversation

    return conversation.with_context(tx, session, prompt, wish.told)


def _either(given: int | None, before: int | None) -> int | None:
    return before if given is None else given


def _host(wish: Wish) -> str | None:
    """The machine on which it must run; None: on any that fits."""
    if wish.host == ANY:
        return None
    return wish.host or (None if wish.labels else process.host())


def _cwd(
    tx: Tx, wish: Wish, session: "Session | None", named: Runner | None, *, must_exist: bool
) -> str:
    """Where it works: as wished, where the conversation is, in its agent's own folder, or here.

    On another machine there may be directories that are not on this one.
    """
    if wish.project is not None:
        if not os.path.isdir(wish.project):
            with suppress(NotFound, Invalid):
                project = projects.get(tx, wish.project)
                return projects.real_dir(project.dir, must_exist=must_exist)
        return projects.real_dir(wish.project, must_exist=must_exist)
    if session is not None and session.project_id is not None:
        project = projects.get(tx, session.project_id)
        return projects.real_dir(project.dir, must_exist=must_exist)
    if named is not None and named.agent is not None and named.agent.workspace:
        return projects.real_dir(named.agent.workspace, must_exist=must_exist)
    if wish.afar:
        raise Invalid(
            "Say where it is to work: give `project`, its id or a whole path.",
            reason="project_missing",
        )
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise Invalid("The current directory is gone; go to another, or name one.") from None
    return projects.real_dir(here, must_exist=True)


def _runner(wish: Wish, project: Project | None, session: "Session | None") -> Runner:
    """What is started where nobody named an agent."""
    if wish.command is not None:
        if not wish.command or not wish.command[0]:
            raise Invalid("Give the command to run.")
        known = registry.for_program(wish.command[0]).name
        return Runner(known, wish.command[0], list(wish.command[1:]))
    if session is not None and session.provider is not None:
        return _provider(session.provider)
    if project is not None and project.command:
        return _from_command(project.command, None)
    if (found := installed()) is None:
        raise Refused(
            f"No agent CLI was found on the PATH ({', '.join(INSTALLED_FIRST)}); name one with "
            "--agent (`scripted` is always there, to try things out), or give a command behind "
            "`--`."
        )
    return _provider(found)


def _named(tx: Tx, wish: Wish, session: "Session | None") -> Runner | None:
    """The agent of the store, or the provider by its own name, that was asked for."""
    name = wish.agent
    if name is None and wish.command is None and session is not None:
        name = session.agent_id
    if name is None or wish.command is not None:
        return None
    from corral.domain.agents import ops as agents
    from corral.domain.agents.model import AgentState

    try:
        agent = agents.get(tx, name)
    except (NotFound, Invalid):
        if name in registry.names() and name != "plain":
            return _provider(name)
        known = ", ".join(each for each in registry.names() if each != "plain")
        raise NotFound(
            f"There is no agent {name!r}; `corral agent list` shows yours, and any of these can be "
            f"named too: {known}.",
            name=name,
            reason="unknown_agent",
        ) from None
    if agent.state is not AgentState.ACTIVE:
        raise Conflict(f"The agent {agent.name} is retired; restore it, or take another.")
    if agent.command:
        return _from_command(agent.command, agent)
    if agent.provider is None:
        raise Invalid(
            f"The agent {agent.name} has no provider and no command; give it one with "
            f"`corral agent edit {agent.name} --provider claude`.",
            reason="no_provider",
        )
    return _provider(agent.provider)._replace(agent=agent)


def runner_of(tx: Tx, name: str) -> Runner:
    """What is started for an agent of the store, or for a provider by its own name; NotFound, or
    a reason, when that cannot be."""
    found = _named(tx, Wish(agent=name), None)
    assert found is not None
    return found


def _from_command(command: str, agent: "Agent | None") -> Runner:
    words = command_words(command)
    provider = (agent.provider if agent else None) or registry.for_program(words[0]).name
    return Runner(provider, words[0], words[1:], agent)


def _provider(name: str) -> Runner:
    return Runner(name, registry.find(name).program, [])


def installed() -> str | None:
    """The first of the providers whose program is here."""
    import shutil

    found = (name for name in INSTALLED_FIRST if shutil.which(registry.find(name).program))
    return next(found, None)


def require_program(name: str, runner: Runner, env: Mapping[str, str]) -> None:
    """Refuse an agent whose program is not on this machine. What is looked for in the folder in
    which it will work is not known before."""
    import shutil

    program, path = runner.program, env.get("PATH", os.environ.get("PATH", os.defpath))
    looked_in = [program] if "/" in program else path.split(os.pathsep)
    if not all(map(os.path.isabs, looked_in)) or shutil.which(program, path=path):
        return
    where = "" if "/" in program else " on the PATH"
    raise Refused(
        f"{name} cannot be started: there is no program {program}{where}; install it, or name "
        "another agent (`scripted` is always there, to try things out).",
        agent=name,
        program=program,
        reason="program_missing",
    )


def _session(tx: Tx, typed: str) -> "Session":
    from corral.domain.sessions import ops as sessions

    return sessions.get(tx, typed)


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
    return abridged(tx.without_secrets(first), MAX_TITLE) or None


def _is_watched(wish: Wish) -> bool:
    return wish.watched if wish.terminal is None else wish.terminal


def _parent(tx: Tx) -> str | None:
    """The run inside which this program was called, if there is one in this store."""
    given = tx.origin or config.run_id()
    with suppress(NotFound, Invalid):
        return runs.get(tx, given).id if given else None
    return None


def _limit(wish: Wish, agent: "Agent | None", name: str) -> int | None:
    """The wish's own limit; where it has none, that of the agent."""
    given: int | None = getattr(wish, name)
    if given is None and agent is not None:
        given = getattr(agent.limits, name)
    return given


def checked_secrets(tx: Tx, secrets: Mapping[str, str]) -> Mapping[str, str]:
    """References only. What is none is not repeated: it may be the secret itself."""
    for name, reference in secrets.items():
        kind, colon, where = reference.partition(":")
        try:
            known = bool(colon and where.strip() and kind in ("env", "file", "cmd", "keyring"))
            if not known:
                settings.get_secret(tx, reference)
        except (NotFound, Invalid):
            raise Invalid(
                f"What --secret {name}= was given is no reference; write env:, file:, cmd: or "
                "keyring: and a place, or the name of a `corral secret`.",
                name=name,
                reason="bad_secret_reference",
            ) from None
    return secrets


_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


def checked_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """What is given by value is stored; a secret must be given by reference."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise Invalid(f"{name!r} is no name of a variable; write --env NAME=VALUE.")
        if any(part in name.upper().split("_") for part in _SECRET_NAMES) and value:
            raise Refused(
                f"{name} looks like a secret, and values given with --env are stored; use "
                f"--secret {name}=env:{name}, or another reference.",
                name=name,
            )
    return env
