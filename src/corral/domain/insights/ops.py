"""Reports: overview, statistics, names and costs."""

from collections.abc import Sequence

import msgspec

from corral.db.statement import Query, encode_rows
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.insights import sql
from corral.domain.insights.model import (
    CostGroup,
    CrashedRun,
    DailyCost,
    NamedItem,
    Overview,
    ProjectView,
    RaceSummary,
    RunSummary,
    Stats,
    StatsGroup,
    TaskCost,
)
from corral.domain.projects import ops as projects
from corral.domain.races import queries as races
from corral.domain.runs.model import ACTIVE, RunState
from corral.domain.tasks import queries as tasks
from corral.kernel.clock import DAY, utc_date
from corral.kernel.errors import Invalid
from corral.kernel.pagination import (
    Page,
    check_limit,
    decode_cursor,
    encode_cursor,
)
from corral.kernel.validation import MAX_NAME, check_choice, check_int, check_text, encode_json

MAX_SHOWN = 20
"""Entries of each list in an overview."""
MAX_COUNTED = 1_000
"""Counts in an overview stop here."""
MAX_COUNTED_RUNS = 10_000
"""Counts of a project's runs in one state stop here; they read only an index."""
MAX_NAMES = 2_000
MAX_PROJECTS = 200
"""How many recent projects `find_by_name` searches."""
MAX_DAYS = 366
MAX_COSTS = 20_000

_QUERIES: dict[StatsGroup, Query[Stats]] = {
    StatsGroup.PROJECT: sql.BY_PROJECT,
    StatsGroup.AGENT: sql.BY_AGENT,
    StatsGroup.MODEL: sql.BY_MODEL,
    StatsGroup.PROVIDER: sql.BY_PROVIDER,
    StatsGroup.DAY: sql.BY_DAY,
}


def get_overview(tx: Tx) -> Overview:
    """Return active runs, what needs attention, failures of 24 hours, and the cost of today."""
    active = _list_newest(tx, sql.IN_STATE)
    attention = _list_newest(tx, sql.ATTENTION)
    failed = tx.all(sql.FAILED, since=tx.now - DAY, limit=MAX_SHOWN + 1)
    queued = int(tx.value(sql.COUNT_RUNS, state=RunState.QUEUED, limit=MAX_COUNTED))
    dead = int(tx.value(sql.COUNT_LETTERS, state="dead", limit=MAX_COUNTED))
    unconfirmed = int(tx.value(sql.COUNT_LETTERS, state="unconfirmed", limit=MAX_COUNTED))
    questions = int(tx.value(sql.COUNT_QUESTIONS, now=tx.now, limit=MAX_COUNTED))
    proposed = int(tx.value(sql.COUNT_DECISIONS, now=tx.now, limit=MAX_COUNTED))
    submitted = int(tx.value(sql.COUNT_SUBMITTED, limit=MAX_COUNTED))
    return Overview(
        at=tx.now,
        active=active[:MAX_SHOWN],
        attention=attention[:MAX_SHOWN],
        queued=queued,
        failed=failed[:MAX_SHOWN],
        recent=tx.all(sql.RECENT, limit=MAX_SHOWN),
        dead_letters=dead,
        unconfirmed_letters=unconfirmed,
        open_questions=questions,
        proposed_decisions=proposed,
        submitted=tx.all(sql.SUBMITTED, limit=MAX_SHOWN),
        submitted_tasks=submitted,
        today=charges.get_total(tx, "all", day=utc_date(tx.now)),
        more=max(len(active), len(attention), len(failed)) > MAX_SHOWN
        or max(queued, dead, unconfirmed, questions, proposed, submitted) == MAX_COUNTED,
    )


def _list_newest(tx: Tx, query: Query[RunSummary]) -> list[RunSummary]:
    runs = [run for state in ACTIVE for run in tx.all(query, state=state, limit=MAX_SHOWN + 1)]
    return sorted(runs, key=lambda run: run.id, reverse=True)


def get_project(tx: Tx, dir: str) -> ProjectView:
    """Return the project of a directory with its latest run, run counts and cost."""
    target = projects.get_by_dir(tx, dir)
    counts = {
        str(state): int(
            tx.value(
                sql.COUNT_OF_PROJECT, project_id=target.id, state=state, limit=MAX_COUNTED_RUNS + 1
            )
        )
        for state in RunState
    }
    states = {state: min(count, MAX_COUNTED_RUNS) for state, count in counts.items() if count}
    return ProjectView(
        project=target,
        latest_run=tx.first(sql.LATEST, project_id=target.id),
        total_runs=sum(states.values()),
        states=states,
        exact=max(counts.values()) <= MAX_COUNTED_RUNS,
        total=charges.get_total(tx, f"project:{target.id}"),
    )


def list_crashed(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[CrashedRun]:
    """List the crashed runs, newest first, with the directory of their project."""
    return sql.CRASHED.page(tx, after=after, limit=limit)


def list_stats(
    tx: Tx,
    *,
    by: str = "project",
    since_ms: int | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Page[Stats]:
    """List statistics of runs, grouped by project, agent, model, provider or day.

    Each has the number of runs by outcome, the median and 95th percentile of the duration, tokens
    and cost. `since_ms` is how far back to look; without it, all stored runs are counted. Groups
    are ordered by key; runs without a key come first.
    """
    group = check_choice(by, StatsGroup, "The group")
    if since_ms is not None and check_int(since_ms, "The time to look back") < 0:
        raise Invalid(
            "Invalid duration: expected a positive duration such as 7d.", since_ms=since_ms
        )
    # The cursor is the first group of the next page; runs without a group have an empty key.
    (first,) = decode_cursor(after, "")
    rows = tx.all(
        _QUERIES[group],
        since=0 if since_ms is None else tx.now - since_ms,
        first=first,
        limit=check_limit(limit) + 1,
    )
    cursor = encode_cursor(rows[limit].key or "") if len(rows) > limit else None
    return Page([_with_rate(row, group) for row in rows[:limit]], cursor)


def _with_rate(row: Stats, by: StatsGroup) -> Stats:
    counted = row.runs - row.cancelled
    key = utc_date(int(row.key or 0) * DAY) if by is StatsGroup.DAY else row.key
    rate = round(row.completed / counted, 4) if counted else None
    return msgspec.structs.replace(row, key=key, success_rate=rate)


def resolve_names(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """Return readable names by id; unknown ids are left out.

    Works for ids of projects, agents, sessions, runs, channels, places and accounts.
    """
    unique_ids = sorted({*ids})
    if not unique_ids:
        return {}
    if len(unique_ids) > MAX_NAMES:
        raise Invalid(f"Too many ids: {len(unique_ids):,} given, {MAX_NAMES:,} allowed.")
    rows = encode_json(
        [{"id": check_text(id, "The id", max_bytes=MAX_NAME)} for id in unique_ids], "Ids"
    )
    return {named.id: named.label for named in tx.all(sql.NAMES, rows=rows)}


def find_by_name(tx: Tx, text: str, *, limit: int = 20) -> list[NamedItem]:
    """Find runs and agents by the prefix of their name, and recent projects by any part of it."""
    low = check_text(text.strip(), "The text", max_bytes=MAX_NAME)
    bounds = {"low": low, "high": f"{low}\U0010ffff", "limit": check_limit(limit)}
    recent = projects.list_projects(tx, archived=True, limit=MAX_PROJECTS).items
    matching = [
        NamedItem(project.id, project.name)
        for project in recent
        if low.lower() in f"{project.name}\n{project.dir}".lower()
    ]
    items = [*tx.all(sql.AGENTS_NAMED, **bounds), *matching, *tx.all(sql.RUNS_NAMED, **bounds)]
    return items[:limit]


def list_costs(tx: Tx, *, by: str = "project", days: int = 30) -> list[DailyCost]:
    """List the costs of projects, agents or models on each of the last days (UTC), oldest first.

    A day without charges has no row.
    """
    group = check_choice(by, CostGroup, "The group")
    if not 1 <= check_int(days, "The number of days") <= MAX_DAYS:
        raise Invalid(f"Invalid number of days {days}: expected 1 to {MAX_DAYS}.", days=days)
    since = utc_date(tx.now - (days - 1) * DAY)
    # ";" follows ":" in ASCII, so this range is every scope of the kind.
    return tx.all(sql.COSTS, since=since, low=f"{group}:", high=f"{group};", limit=MAX_COSTS)


def list_task_costs(
    tx: Tx, project: str, *, after: str | None = None, limit: int = 50
) -> Page[TaskCost]:
    """List the costs of a project's tasks, each in its last run, in the order of declaration."""
    project_id = projects.get(tx, project).id
    return sql.TASK_COSTS.page(tx, after=after, limit=limit, project=project_id)


def get_task_cost(tx: Tx, task: str) -> TaskCost | None:
    """Return the cost of a task in its last run; None when no run worked on it."""
    return tx.first(sql.COST_OF_TASK, id=tasks.get(tx, task).id, limit=1)


def list_races(
    tx: Tx,
    *,
    project: str | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[RaceSummary]:
    """List races with their latest round and cost, newest first; filtered by project or state."""
    page = races.list_races(tx, project=project, state=state, after=after, limit=limit)
    keys = encode_rows([race.id for race in page.items])
    return Page(tx.all(sql.RACES, keys_=keys) if page.items else [], page.next)
