"""Adding tasks to a project's graph: all of a call or none, whatever their order."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.bulk_transitions import create_many, encode_rows, move_many
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.mail.model import check_mailbox, check_priority
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.domain.tasks import sql
from corral.domain.tasks.graph import check_path, in_order
from corral.domain.tasks.model import SATISFIED, Standing, Task, Wanted, read_wanted
from corral.domain.tasks.ops import MAX_FILES, MAX_PATH, MAX_TITLE, lock, speaker_of
from corral.domain.tasks.propagation import Cause, cause_in
from corral.domain.tasks.templates import TEMPLATES, Template
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.text import MAX_NAME, clean_text

# As it stands in lists and on command lines, and never to be taken for an id.
_KEY = re.compile(r"(?!tsk_)[^\s,\x00-\x1f\x7f]{1,100}")
MAX_TASKS = 20_000
MAX_EDGES = 200_000

Needs = dict[str, list[str]]
"""What each new task needs, by keys."""


def declare(
    tx: Tx,
    project: str,
    tasks: Sequence[Wanted | dict[str, Any]] | dict[str, Any],
    *,
    lead: str | None = None,
    agent: str | None = None,
) -> list[Task]:
    """Add tasks to a project's graph, all or none; their order does not matter.

    Each has a `key` and perhaps `title`, `role`, `description`, `files`, `depends_on` (keys of
    this call or of the project), `priority`, `check` and `agent`. A cycle, a key that is taken and
    a dependency that nobody knows are refused. `lead` is the mailbox that is told how they go.
    """
    wanted = read_wanted(tasks if isinstance(tasks, dict) else [*tasks])
    project_id = projects.get(tx, project).id
    speaker = speaker_of(tx, agent)
    needs = _checked(wanted)
    _check_right(tx, wanted, project_id, speaker)
    told = check_mailbox(lead) if lead else _mailbox(speaker)
    lock(tx, project_id)
    known = _known(tx, project_id, needs)
    order = in_order(needs)
    if not order:
        return []
    causes = _causes(order, needs, known)
    ids = {task.key: tx.new_id("tsk") for task in wanted}
    opened = {
        key: sum(need not in known or known[need].state not in SATISFIED for need in needed)
        for key, needed in needs.items()
    }
    create_many(
        tx,
        sql.TASKS,
        [
            {
                "id": ids[task.key],
                "key": task.key,
                "role": task.role,
                "title": task.title or task.key,
                "description": task.description,
                "files": [check_path(path) for path in task.files],
                "priority": task.priority,
                "check_command": task.check,
                "assignee_id": agents.get(tx, task.agent).id if task.agent else None,
                "open_needs": opened[task.key],
                "broken_needs": sum(need in causes for need in needs[task.key]),
            }
            for task in wanted
        ],
        sql.KINDS,
        project_id=project_id,
        lead=told,
        fence=0,
        attempts=0,
        created_at=tx.now,
        created_by=speaker,
    )
    ids_of = ids | {key: task.id for key, task in known.items()}
    pairs = [(ids[key], ids_of[need]) for key, needed in needs.items() for need in needed]
    if pairs:
        tx.run(sql.ADD_EDGES, rows=encode_rows(pairs))
    ready = [ids[key] for key, count in opened.items() if not count]
    move_many(tx, sql.TASKS, "promote", ready, ready_at=tx.now)
    _block(tx, ids, causes)
    made = tx.all(sql.WITH_IDS, keys_=encode_rows([*ids.values()]))
    return [msgspec.structs.replace(task, depends_on=needs[task.key]) for task in made]


def add(
    tx: Tx,
    project: str,
    key: str,
    title: str | None = None,
    *,
    role: str | None = None,
    description: str | None = None,
    files: Sequence[str] = (),
    depends_on: Sequence[str] = (),
    priority: int = 0,
    check: str | None = None,
    assignee: str | None = None,
    lead: str | None = None,
    agent: str | None = None,
) -> Task:
    """Add one task to a project's graph."""
    wanted = Wanted(
        key, title, role, description, [*files], [*depends_on], priority, check, assignee
    )
    return declare(tx, project, [wanted], lead=lead, agent=agent)[0]


def templates(tx: Tx) -> list[Template]:
    """The templates that come with Corral."""
    return list(TEMPLATES.values())


def apply(
    tx: Tx,
    project: str,
    template: str,
    title: str,
    *,
    key: str,
    depends_on: Sequence[str] = (),
    check: str | None = None,
    lead: str | None = None,
    agent: str | None = None,
) -> list[Task]:
    """Declare the tasks of a template for one piece of work, as KEY/build, KEY/review and so on.

    `check` is the command that accepts those of its tasks that build something.
    """
    if template not in TEMPLATES:
        raise Invalid(
            f"There is no template {template!r}; there are {', '.join(TEMPLATES)}.", name=template
        )
    wanted = TEMPLATES[template].filled(key=key, title=title, depends_on=depends_on, check=check)
    return declare(tx, project, wanted, lead=lead, agent=agent)


def _checked(wanted: Sequence[Wanted]) -> Needs:
    """What every task needs, after all that can be said without the store has been looked at."""
    if len(wanted) > MAX_TASKS:
        raise Invalid(
            f"{len(wanted):,} tasks are too many for one call; declare {MAX_TASKS:,} at a time."
        )
    needs: Needs = {}
    for task in wanted:
        if not _KEY.fullmatch(task.key):
            raise Invalid(
                f"{task.key!r} is no key for a task; take up to 100 characters without spaces and "
                "commas that do not begin with tsk_.",
                key=task.key,
                reason="bad_key",
            )
        if task.key in needs:
            raise Invalid(
                f"{task.key} is declared twice; give each its own key.",
                key=task.key,
                reason="duplicate_key",
            )
        needs[task.key] = list(dict.fromkeys(task.depends_on))
        _check_texts(task)
    if sum(map(len, needs.values())) > MAX_EDGES:
        raise Invalid(f"A call may have {MAX_EDGES:,} dependencies; declare fewer at a time.")
    return needs


def _check_texts(task: Wanted) -> None:
    for value, what, most in (
        (task.title, "The title", MAX_TITLE),
        (task.role, "The role", MAX_NAME),
        (task.description, "The description", None),
        (task.check, "The check", None),
    ):
        if value is not None:
            clean_text(value, f"{what} of {task.key}", **({"most": most} if most else {}))
    check_priority(task.priority)
    if len(task.files) > MAX_FILES:
        raise Invalid(f"{task.key} names {len(task.files):,} files; name their folders instead.")
    for path in task.files:
        check_path(clean_text(path, f"A file of {task.key}", most=MAX_PATH))


def _check_right(tx: Tx, wanted: Sequence[Wanted], project_id: str, speaker: str) -> None:
    """A check is run by Corral itself, with the rights of whoever runs Corral."""
    if not speaker.startswith("agent:") or not any(task.check for task in wanted):
        return
    if not settings.value(tx, "tasks.agent_checks", project=project_id) and not (
        agents.get(tx, speaker.removeprefix("agent:")).admin
    ):
        raise Refused(
            "A check is a command that Corral itself runs, and agents may not declare any here; "
            "leave it out, or let a person set tasks.agent_checks for this project.",
            setting="tasks.agent_checks",
        )


def _mailbox(speaker: str) -> str | None:
    try:
        return check_mailbox(speaker)
    except Invalid:
        return None  # it has no mailbox, so it cannot be told


def _known(tx: Tx, project_id: str, needs: Needs) -> dict[str, Standing]:
    """What the project has of the tasks that are named."""
    named = {*needs, *(need for needed in needs.values() for need in needed)}
    found = {
        task.key: task
        for task in tx.all(sql.WITH_KEYS, project=project_id, keys_=encode_rows([*named]))
    }
    taken = [key for key in needs if key in found]
    if taken:
        raise Conflict(
            f"The project has a task {taken[0]} already ({found[taken[0]].id}, "
            f"{found[taken[0]].state}); take another key, or archive that one.",
            keys=taken[:10],
        )
    missing = sorted(named - {*found, *needs})
    if missing:
        who = next(key for key, needed in needs.items() if missing[0] in needed)
        raise Invalid(
            f"{who} depends on {missing[0]!r}, which is no task of this call or of the project; "
            "declare it too, or leave it out.",
            key=who,
            missing=missing[:10],
        )
    return found


def _causes(order: Sequence[str], needs: Needs, known: dict[str, Standing]) -> dict[str, Cause]:
    """Which tasks, new ones and known ones, are broken, and for what."""
    causes = {key: cause_in(task) for key, task in known.items() if task.is_broken}
    for key in order:
        first = next((causes[need] for need in needs[key] if need in causes), None)
        if first is not None:
            causes[key] = first
    return causes


def _block(tx: Tx, ids: dict[str, str], causes: dict[str, Cause]) -> None:
    stuck: dict[Cause, list[str]] = {}
    for key, cause in causes.items():
        if key in ids:
            stuck.setdefault(cause, []).append(ids[key])
    for cause, blocked in stuck.items():
        move_many(tx, sql.TASKS, "block", blocked, cause_id=cause.id, reason=cause.words)
