"""From words to a race: who tries, in which ways, from which commit of which repository."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from corral import config
from corral.adapters import git, history, repositories
from corral.adapters.sandbox import Kind
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.races import variations
from corral.domain.races.model import Entry, Plan
from corral.domain.runs.model import Mode
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.scratch_folders import scratch_folder
from corral.services.races.folders import repository_folder
from corral.services.runs import request
from corral.services.runs.budget_support import require_measured

Dirty = Literal["refuse", "include", "ignore"]


class Where(msgspec.Struct, frozen=True):
    repository: str
    inside: str
    private: bool
    branch: str | None
    commit: str


def agents_of(given: str | Sequence[str] | None) -> list[str]:
    if given is None:
        return []
    if isinstance(given, str):
        return variations.read_agents(given)
    return [name for text in given for name in variations.read_agents(text)]


def entries_of(who: list[str], given: Sequence[str], vary_auto: bool) -> list[Entry]:
    if vary_auto and given:
        raise Invalid("Give variations, or let templates vary the prompt, not both.")
    texts = [*given]
    if vary_auto:
        texts = variations.templates(len(who) if len(who) > 1 else len(variations.TEMPLATES))
    return variations.entries(who, texts)


def check_start(
    tx: Tx, entries: Sequence[Entry], plan: Plan, budget_micros: int | None = None
) -> None:
    """Refuse what can never go well before anything is made."""
    request.checked_env(plan.env)
    request.checked_secrets(tx, plan.secrets)
    if plan.sandbox not in ("auto", *Kind):
        raise Invalid(f"{plan.sandbox!r} is none of auto, {', '.join(Kind)}.", value=plan.sandbox)
    if plan.sandbox in (Kind.BUBBLEWRAP, Kind.LANDLOCK):
        _require_sandbox(Kind(plan.sandbox))
    runners = {each: request.runner_of(tx, each) for each in {one.agent for one in entries} if each}
    for runner in runners.values():
        require_measured(runner.program, runner.provider, Mode.PIPE, budget_micros)
    if plan.judge is None:
        return
    judge = request.runner_of(tx, plan.judge)
    for name, runner in runners.items():
        own = runner.agent.model if runner.agent else None
        model = judge.agent.model if judge.agent else None
        same = judge.provider == runner.provider != "plain" and own == model
        if name == plan.judge or same:
            raise Invalid(
                f"{plan.judge} would judge its own model's work ({name}); name another judge, or "
                f"give one another model (`corral agent create NAME --provider P --model M`).",
                judge=plan.judge,
                agent=name,
                reason="judges_own_work",
            )


def check_programs(tx: Tx, entries: Sequence[Entry], plan: Plan) -> None:
    """Refuse agents and a judge whose programs are not on this machine."""
    for name in dict.fromkeys(one.agent for one in entries):
        if name is not None:
            request.require_program(name, request.runner_of(tx, name), plan.env)
    if plan.judge is not None:
        request.require_program(plan.judge, request.runner_of(tx, plan.judge), {})


def check_own_agent(project: Project, entries: Sequence[Entry]) -> None:
    """Refuse attempts without an agent where the project has none and none is installed."""
    if all(one.agent for one in entries) or project.command or request.installed():
        return
    raise Refused(
        f"No agent CLI was found on the PATH ({', '.join(request.INSTALLED_FIRST)}); say who tries "
        "with --agents, as in --agents scripted:2 (`scripted` is always there, to try things out).",
        reason="no_agent_found",
    )


def _require_sandbox(kind: Kind) -> None:
    from corral.adapters.sandbox import probe

    told = probe()
    if (why := told.why_not.get(kind)) is not None:
        raise Refused(
            f"{kind} does not work here ({why}); --sandbox auto takes the best there is "
            f"({told.kind}).",
            kind=str(kind),
        )


def project_of(tx: Tx, given: str | None) -> Project:
    if given is not None and not os.path.isdir(given):
        with suppress(NotFound):
            return projects.get(tx, given)
    try:
        return projects.register(tx, os.getcwd() if given is None else given)
    except FileNotFoundError:
        raise Invalid("The current directory is gone; go to another, or name one.") from None


def repository_of(project: Project, base: str | None, dirty: Dirty) -> Where:
    """Where a race's worktrees come from: the project's repository, or a private one."""
    if dirty not in ("refuse", "include", "ignore"):
        raise Invalid(f"{dirty!r} is none of refuse, include, ignore.", value=dirty)
    dir = projects.real_dir(project.dir, must_exist=True)
    if not repositories.is_in_git(dir):
        if base is not None:
            raise Refused(f"{dir} is in no git repository, so it has no {base!r}.", dir=dir)
        folder = repository_folder(project.id)
        config.make_private_folder(folder.parent)
        taken = repositories.snapshot(dir, str(folder), message=f"{dir} as a race began with it")
        return Where(str(folder), "", True, None, taken.commit)
    commit = history.resolve(dir, base or "HEAD")
    inside = os.fsdecode(git.told(dir, "rev-parse", "--show-prefix").rstrip(b"\n")).rstrip("/")
    if base is None and dirty != "ignore" and (changed := history.uncommitted(dir)):
        if dirty == "refuse":
            named = ", ".join(changed[:3]) + (" …" if len(changed) > 3 else "")
            raise Conflict(
                f"{dir} has changes in no commit ({len(changed)}: {named}), which attempts would "
                "not see; commit them, or say --dirty include or --dirty ignore.",
                dir=dir,
                files=[git.storable(name) for name in changed[:20]],
                reason="uncommitted_changes",
            )
        commit = _snapshot(dir, commit)
    return Where(dir, inside, False, history.branch_of(dir), commit)


def _snapshot(dir: str, head: str) -> str:
    """A commit of a user's own folder as it is, on top of its last one; neither the folder nor its
    index nor any branch is changed."""
    with scratch_folder("snapshot") as folder:
        apart = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        top = os.fsdecode(git.told(dir, "rev-parse", "--show-toplevel").rstrip(b"\n"))
        git.told(top, "read-tree", head, environment=apart)
        git.told(top, "add", "--all", environment=apart, seconds=git.LONG_SECONDS)
        tree = git.told(top, "write-tree", environment=apart).decode().strip()
        words = ("commit-tree", tree, "-p", head, "-m", "What was in no commit when a race began")
        return git.told(top, *words, environment=git.NOBODY).decode().strip()
