"""Validation of a race before it starts: agents, variations, programs and the base commit."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from corral import config
from corral.adapters.git import git, git_history, snapshot_repositories
from corral.adapters.processes import process
from corral.adapters.sandbox.sandbox import SandboxKind
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.races import ops, variations
from corral.domain.races.model import AttemptSpec, Race, RaceBase, RacePlan
from corral.domain.runs.model import RunMode
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.scratch_folders import scratch_folder
from corral.services.runs.budget_check import require_measurable_usage
from corral.services.runs.environment import check_env, check_secret_references
from corral.services.runs.runners import (
    PREFERRED_PROVIDERS,
    find_installed_provider,
    get_runner,
    require_program,
)

DirtyPolicy = Literal["refuse", "include", "ignore"]
"""What to do with uncommitted changes in the project's directory."""


def parse_agents(agents: str | Sequence[str] | None) -> list[str]:
    """Return the names of agents, each once for each of its attempts."""
    if agents is None:
        return []
    if isinstance(agents, str):
        return variations.parse_agents(agents)
    return [name for text in agents for name in variations.parse_agents(text)]


def plan_attempts(agents: list[str], texts: Sequence[str], vary_auto: bool) -> list[AttemptSpec]:
    """Combine agents with variations, or with `vary_auto` with the built-in templates."""
    if vary_auto and texts:
        raise Invalid("Give variations, or use the templates, not both.")
    chosen = [*texts]
    if vary_auto:
        count = len(agents) if len(agents) > 1 else len(variations.TEMPLATES)
        chosen = variations.from_templates(count)
    return variations.combine(agents, chosen)


def validate_start(
    tx: Tx, entries: Sequence[AttemptSpec], plan: RacePlan, budget_micros: int | None = None
) -> None:
    """Reject a race that cannot succeed, before anything is created."""
    check_env(plan.env)
    check_secret_references(tx, plan.secrets)
    if plan.sandbox not in ("auto", *SandboxKind):
        raise Invalid(
            f"Unknown sandbox {plan.sandbox!r}. Use one of auto, {', '.join(SandboxKind)}.",
            value=plan.sandbox,
        )
    if plan.sandbox in (SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK):
        _require_sandbox(SandboxKind(plan.sandbox))
    names = {entry.agent for entry in entries}
    runners = {name: get_runner(tx, name) for name in names if name}
    for runner in runners.values():
        require_measurable_usage(runner.program, runner.provider, RunMode.PIPE, budget_micros)
    if plan.judge is None:
        return
    judge = get_runner(tx, plan.judge)
    for name, runner in runners.items():
        own_model = runner.agent.model if runner.agent else None
        judge_model = judge.agent.model if judge.agent else None
        same_model = judge.provider == runner.provider != "plain" and own_model == judge_model
        if name == plan.judge or same_model:
            raise Invalid(
                f"{plan.judge} would judge the work of its own model ({name}). Name another judge, "
                "or create one with another model (`corral agent create NAME --provider P --model "
                "M`).",
                judge=plan.judge,
                agent=name,
                reason="judges_own_work",
            )


def require_programs(tx: Tx, entries: Sequence[AttemptSpec], plan: RacePlan) -> None:
    """Raise Refused when the program of an agent or of the judge is not on this machine."""
    for name in dict.fromkeys(entry.agent for entry in entries):
        if name is not None:
            require_program(name, get_runner(tx, name), plan.env)
    if plan.judge is not None:
        require_program(plan.judge, get_runner(tx, plan.judge), {})


def require_this_host(race: Race) -> Race:
    """Return the race; raises Refused when its worktrees are on another machine."""
    ops.require_repository(race)
    if race.host != process.host():
        raise Refused(
            f"The worktrees of {race.id} are on {race.host}. Run the command there.",
            id=race.id,
            host=race.host,
            reason="other_host",
        )
    return race


def require_default_agent(project: Project, entries: Sequence[AttemptSpec]) -> None:
    """Raise Refused for attempts without an agent when there is no default agent."""
    if all(entry.agent for entry in entries) or project.command or find_installed_provider():
        return
    raise Refused(
        f"No agent CLI was found on the PATH ({', '.join(PREFERRED_PROVIDERS)}). "
        "Name agents, for example --agents scripted:2 (`scripted` is built in and needs no "
        "account).",
        reason="no_agent_found",
    )


def _require_sandbox(kind: SandboxKind) -> None:
    from corral.adapters.sandbox.sandbox import probe_sandboxes

    available = probe_sandboxes()
    if (why := available.why_not.get(kind)) is not None:
        raise Refused(
            f"The sandbox {kind} does not work here: {why}. Use --sandbox auto, which selects "
            f"{available.kind}.",
            kind=str(kind),
        )


def resolve_project(tx: Tx, project: str | None) -> Project:
    """Return the project by id, name or directory; by default of the current directory.

    Registers a directory that is not a project yet.
    """
    if project is not None and not os.path.isdir(project):
        with suppress(NotFound):
            return projects.get(tx, project)
    try:
        return projects.register(tx, os.getcwd() if project is None else project)
    except FileNotFoundError:
        raise Invalid(
            "The current directory no longer exists. Change to another one, or name a project."
        ) from None


def resolve_base(project: Project, base: str | None, dirty: DirtyPolicy) -> RaceBase:
    """Return the base commit of a race, in the project's repository or in a managed one.

    Raises Conflict for uncommitted changes when `dirty` is "refuse".
    """
    if dirty not in ("refuse", "include", "ignore"):
        raise Invalid(
            f"Unknown value {dirty!r} for --dirty. Use refuse, include or ignore.", value=dirty
        )
    dir = projects.resolve_dir(project.dir, must_exist=True)
    if not snapshot_repositories.is_in_git(dir):
        if base is not None:
            raise Refused(f"Cannot resolve {base!r}: {dir} is not in a git repository.", dir=dir)
        folder = config.repository_folder(project.id)
        config.make_private_folder(folder.parent)
        snapshot = snapshot_repositories.snapshot_folder(
            dir, str(folder), message=f"Snapshot of {dir} for a race"
        )
        return RaceBase(str(folder), "", True, None, snapshot.commit)
    commit = git_history.resolve_commit(dir, base or "HEAD")
    subdirectory = os.fsdecode(
        git.check_output(dir, "rev-parse", "--show-prefix").rstrip(b"\n")
    ).rstrip("/")
    if base is None and dirty != "ignore" and (changed := git_history.list_uncommitted(dir)):
        if dirty == "refuse":
            named = ", ".join(changed[:3]) + (" …" if len(changed) > 3 else "")
            raise Conflict(
                f"{dir} has uncommitted changes ({len(changed)}: {named}), which attempts would "
                "not see. Commit them, or use --dirty include or --dirty ignore.",
                dir=dir,
                files=[git.decode_name(name) for name in changed[:20]],
                reason="uncommitted_changes",
            )
        commit = _snapshot_commit(dir, commit)
    return RaceBase(dir, subdirectory, False, git_history.find_branch(dir), commit)


def _snapshot_commit(dir: str, head: str) -> str:
    """Commit the user's directory as it is, on top of `head`, and return the commit.

    Uses a temporary index, so it changes neither the directory nor its index nor any branch.
    """
    with scratch_folder("snapshot") as folder:
        env = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        top = os.fsdecode(git.check_output(dir, "rev-parse", "--show-toplevel").rstrip(b"\n"))
        git.check_output(top, "read-tree", head, environment=env)
        git.check_output(top, "add", "--all", environment=env, seconds=git.LONG_SECONDS)
        tree = git.check_output(top, "write-tree", environment=env).decode().strip()
        command = ("commit-tree", tree, "-p", head, "-m", "Uncommitted changes at a race's start")
        return git.check_output(top, *command, environment=git.CORRAL_IDENTITY).decode().strip()
