"""The questions: what is going on, how it went, what it cost."""

from collections.abc import Sequence

import msgspec

from corral.db.bulk_transitions import encode_rows
from corral.db.statement import Query
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.insights import sql
from corral.domain.insights.model import (
    By,
    Cost,
    CostBy,
    CrashedRun,
    Glance,
    Named,
    Overview,
    ProjectView,
    RaceGlance,
    Stats,
    TaskCost,
)
from corral.domain.projects import ops as projects
from corral.domain.races import ops as racing
from corral.domain.runs.model import ACTIVE, RunState
from corral.domain.tasks import ops as tasks
from corral.kernel.clock import DAY, day_of
from corral.kernel.errors import Invalid
from corral.kernel.pagination import (
    LAST_ID,
    Page,
    check_limit,
    decode_cursor,
    encode_cursor,
    page_of,
)
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json

# How many of anything an overview shows, and how far it counts the rest.
SHOWN = 20
COUNTED = 1_000
# How many runs of a project in one state are counted; an index alone is read for it.
MOST_COUNTED = 10_000
# Names are asked for by pages, and found among so many projects.
MOST_NAMES = 2_000
MOST_PROJECTS = 200
MOST_DAYS = 366
MOST_COSTS = 20_000

_QUERIES: dict[By, Query[Stats]] = {
    By.PROJECT: sql.BY_PROJECT,
    By.AGENT: sql.BY_AGENT,
    By.MODEL: sql.BY_MODEL,
    By.PROVIDER: sql.BY_PROVIDER,
    By.DAY: sql.BY_DAY,
}


def overview(tx: Tx) -> Overview:
    """What runs, what waits for you, what failed in the last 24 hours, what it cost today."""
    active = _newest(tx, sql.IN_STATE)
    attention = _newest(tx, sql.ATTENTION)
    failed = tx.all(sql.FAILED, since=tx.now - DAY, limit=SHOWN + 1)
    queued = int(tx.value(sql.COUNT_RUNS, state=RunState.QUEUED, limit=COUNTED))
    dead = int(tx.value(sql.COUNT_LETTERS, state="dead", limit=COUNTED))
    doubtful = int(tx.value(sql.COUNT_LETTERS, state="unknown", limit=COUNTED))
    asked = int(tx.value(sql.COUNT_QUESTIONS, now=tx.now, limit=COUNTED))
    proposed = int(tx.value(sql.COUNT_DECISIONS, now=tx.now, limit=COUNTED))
    submitted = int(tx.value(sql.COUNT_SUBMITTED, limit=COUNTED))
    return Overview(
        at=tx.now,
        active=active[:SHOWN],
        attention=attention[:SHOWN],
        queued=queued,
        failed=failed[:SHOWN],
        recent=tx.all(sql.RECENT, limit=SHOWN),
        dead_letters=dead,
        doubtful_letters=doubtful,
        open_questions=asked,
        proposed_decisions=proposed,
        submitted=tx.all(sql.SUBMITTED, limit=SHOWN),
        submitted_tasks=submitted,
        today=charges.total(tx, "all", day=day_of(tx.now)),
        more=max(len(active), len(attention), len(failed)) > SHOWN
        or max(queued, dead, doubtful, asked, proposed, submitted) == COUNTED,
    )


def _newest(tx: Tx, query: Query[Glance]) -> list[Glance]:
    found = [run for state in ACTIVE for run in tx.all(query, state=state, limit=SHOWN + 1)]
    return sorted(found, key=lambda run: run.id, reverse=True)


def project(tx: Tx, dir: str) -> ProjectView:
    """A directory's project with its latest run, how many runs it had, and what it cost."""
    found = projects.by_dir(tx, dir)
    counts = {
        str(state): int(
            tx.value(sql.COUNT_OF_PROJECT, project_id=found.id, state=state, limit=MOST_COUNTED + 1)
        )
        for state in RunState
    }
    states = {state: min(count, MOST_COUNTED) for state, count in counts.items() if count}
    return ProjectView(
        project=found,
        latest_run=tx.one(sql.LATEST, project_id=found.id),
        total_runs=sum(states.values()),
        states=states,
        exact=max(counts.values()) <= MOST_COUNTED,
        total=charges.total(tx, f"project:{found.id}"),
    )


def crashed(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[CrashedRun]:
    """Runs that crashed, newest first, with their project's directory."""
    (before,) = decode_cursor(after, LAST_ID)
    rows = tx.all(sql.CRASHED, before=before, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda run: (run.id,))


def stats(
    tx: Tx,
    *,
    by: str = "project",
    since_ms: int | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Page[Stats]:
    """How runs went, by project, agent, model, provider or day: how many ended how, their median
    and 95th percentile of duration, tokens and cost.

    `since_ms` is how far back to look, from now; without it, at all runs that are kept. Groups come
    in the order of their keys, runs that belong to none first.
    """
    if by not in By._value2member_map_:
        raise Invalid(f"{by!r} is none of {', '.join(By)}.", by=by)
    if since_ms is not None and check_int(since_ms, "The time to look back") < 0:
        raise Invalid("Look back into the past: give a duration such as 7d.", since_ms=since_ms)
    # A cursor names the first group of the next page; runs without a group have the empty key.
    (first,) = decode_cursor(after, "")
    rows = tx.all(
        _QUERIES[By(by)],
        since=0 if since_ms is None else tx.now - since_ms,
        first=first,
        limit=check_limit(limit) + 1,
    )
    cursor = encode_cursor(rows[limit].key or "") if len(rows) > limit else None
    return Page([_finished(row, By(by)) for row in rows[:limit]], cursor)


def _finished(row: Stats, by: By) -> Stats:
    judged = row.runs - row.cancelled
    key = day_of(int(row.key or 0) * DAY) if by is By.DAY else row.key
    rate = round(row.completed / judged, 4) if judged else None
    return msgspec.structs.replace(row, key=key, success_rate=rate)


def names(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """What people call the projects, agents, sessions, runs, channels, places and accounts of some
    ids; unknown ones are left out."""
    wanted = sorted({*ids})
    if not wanted:
        return {}
    if len(wanted) > MOST_NAMES:
        raise Invalid(f"Ask for up to {MOST_NAMES:,} names at a time, not {len(wanted):,}.")
    rows = encode_json([{"id": clean_text(id, "The id", most=MAX_NAME)} for id in wanted], "Ids")
    return {named.id: named.label for named in tx.all(sql.NAMES, rows=rows)}


def named(tx: Tx, text: str, *, limit: int = 20) -> list[Named]:
    """Runs and agents whose name begins with a text, and projects, of those that were used last,
    whose name or directory holds it."""
    low = clean_text(text.strip(), "The text", most=MAX_NAME)
    bounds = {"low": low, "high": f"{low}\U0010ffff", "limit": check_limit(limit)}
    recent = projects.list_projects(tx, archived=True, limit=MOST_PROJECTS).items
    holding = [
        Named(project.id, project.name)
        for project in recent
        if low.lower() in f"{project.name}\n{project.dir}".lower()
    ]
    found = [*tx.all(sql.AGENTS_NAMED, **bounds), *holding, *tx.all(sql.RUNS_NAMED, **bounds)]
    return found[:limit]


def costs(tx: Tx, *, by: str = "project", days: int = 30) -> list[Cost]:
    """What projects, agents or models cost on each of the last days (in UTC), oldest first.

    A day on which nothing was charged has no row.
    """
    if by not in CostBy._value2member_map_:
        raise Invalid(f"{by!r} is none of {', '.join(CostBy)}.", by=by)
    if not 1 <= check_int(days, "The number of days") <= MOST_DAYS:
        raise Invalid(f"Look at 1 to {MOST_DAYS} days, not {days}.", days=days)
    since = day_of(tx.now - (days - 1) * DAY)
    # A semicolon is what follows a colon: between the two is every scope of the kind.
    return tx.all(sql.COSTS, since=since, low=f"{by}:", high=f"{by};", limit=MOST_COSTS)


def task_costs(
    tx: Tx, project: str, *, after: str | None = None, limit: int = 50
) -> Page[TaskCost]:
    """What the tasks of a project cost, each in the run that did it last, in the order in which
    they were declared."""
    (id,) = decode_cursor(after, "")
    project_id = projects.get(tx, project).id
    rows = tx.all(sql.TASK_COSTS, project=project_id, after=id, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda cost: (cost.id,))


def task_cost(tx: Tx, task: str) -> TaskCost | None:
    """What one task cost in the run that did it last; None when no run did it."""
    return tx.one(sql.COST_OF_TASK, id=tasks.get(tx, task).id, limit=1)


def races(
    tx: Tx,
    *,
    project: str | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[RaceGlance]:
    """Races, newest first: all, those of a project, or those in a state; each with how its latest
    round stands and what it cost."""
    page = racing.list_races(tx, project=project, state=state, after=after, limit=limit)
    keys = encode_rows([race.id for race in page.items])
    return Page(tx.all(sql.RACES, keys_=keys) if page.items else [], page.next)
