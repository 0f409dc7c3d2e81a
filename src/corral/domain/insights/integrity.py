"""Integrity checks: references, counters, totals and states of the rows.

Each check reads one snapshot, in which every transaction is visible completely or not at all. So
concurrent writes cannot cause false reports.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from corral.db.stateful_table import StatefulTable
from corral.db.statement import Statement, encode_rows
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.insights import integrity_sql as sql
from corral.domain.settings import ops as settings
from corral.kernel.clock import DAY, utc_date

BATCH_SIZE = 50_000


class IntegrityProblem(NamedTuple):
    """A kind of inconsistency, with a message that counts the rows and names one."""

    check: str
    state: str
    message: str


class IntegrityCheck(NamedTuple):
    """A check of one table; it can be skipped while the table is empty."""

    table: str
    run: Callable[[Tx], list[IntegrityProblem]]


def _format_count(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many}"


def _suggest_query(table: str, column: str, value: str) -> str:
    return f"Inspect it with `corral db sql \"SELECT * FROM {table} WHERE {column} = '{value}'\"`"


def _build_check(
    table: str, statement: Statement, report: Callable[[int, Any], IntegrityProblem]
) -> IntegrityCheck:
    def run(tx: Tx) -> list[IntegrityProblem]:
        count, example = tx.run(statement)[0]
        return [report(int(count), example)] if count else []

    return IntegrityCheck(table, run)


def list_checks() -> list[IntegrityCheck]:
    """List all checks, except `check_states`."""
    return [
        *list_orphan_checks(),
        *map(_build_counter_check, sql.COUNTS),
        IntegrityCheck("charges", check_totals),
    ]


def list_orphan_checks() -> Iterator[IntegrityCheck]:
    """Yield the checks for rows whose parent is missing; they waste space but do no other harm."""

    def describe_missing_parent(
        table: str, column: str, parent: str
    ) -> Callable[[int, Any], IntegrityProblem]:
        return lambda count, example: IntegrityProblem(
            "orphans",
            "warning",
            f"{_format_count(count, 'row', 'rows')} of {table} with a {column} that is not in "
            f"{parent}, such as {example}. {_suggest_query(table, column, example)}.",
        )

    for ref in sql.PARENT_REFERENCES:
        statement = sql.ORPHANS[f"{ref.table}.{ref.column}"]
        yield _build_check(
            ref.table, statement, describe_missing_parent(ref.table, ref.column, ref.parent)
        )
    parents = {"turn": "sessions", "output": "runs", "note": "notes"}
    for kind, statement in sql.PASSAGES.items():
        yield _build_check(
            "passages", statement, describe_missing_parent("passages", "subject", parents[kind])
        )
    for table, statement in sql.SCOPES.items():
        yield _build_check(table, statement, describe_missing_parent(table, "scope", "projects"))
    for kind, statement in sql.LETTERS.items():
        yield _build_check("letters", statement, _describe_missing_recipient(kind))


def _describe_missing_recipient(kind: str) -> Callable[[int, Any], IntegrityProblem]:
    return lambda count, seq: IntegrityProblem(
        "orphans",
        "warning",
        f"{_format_count(count, 'letter waits', 'letters wait')} for a {kind} that does not exist, "
        f"such as let_{seq}. Drop it with `corral mail drop let_{seq}`.",
    )


_COUNTER_MESSAGES = {
    "sessions": ("session", "sessions", "a wrong number of turns", "corral session turns {}"),
    "forks": ("fork", "forks", "a missing turn of origin", "corral session show {}"),
    "groups": ("group", "groups", "more posts than it counts", "corral group read {}"),
    "agents": ("agent", "agents", "no row for the current version", "corral agent versions {}"),
    "tasks": ("open task", "open tasks", "a state or counts that contradict its dependencies",
              "corral task show {}"),
    "outputs": ("output", "outputs", "a wrong number of bytes in the store", "corral show {}"),
}  # fmt: skip


def _build_counter_check(name: str) -> IntegrityCheck:
    """Build the check that a counter equals the number of rows that it counts."""

    def run(tx: Tx) -> list[IntegrityProblem]:
        params = {}
        if name == "sessions":
            params = {"forgotten": tx.now - min(settings.list_values(tx, "sessions.retention_ms"))}
        count, example = tx.run(sql.COUNTS[name], **params)[0]
        if not count:
            return []
        one, many, what, command = _COUNTER_MESSAGES[name]
        verb = "has" if count == 1 else "have"
        return [
            IntegrityProblem(
                "counts",
                "broken",
                f"{_format_count(count, one, many)} {verb} {what}, such as {example}. Inspect it "
                f"with `{command.format(example)}`; restore a backup if it matters.",
            )
        ]

    return IntegrityCheck("sessions" if name == "forks" else name, run)


# -- totals ----------------------------------------------------------------------------------------


def check_totals(tx: Tx) -> list[IntegrityProblem]:
    """Check the totals: equal to the sum of their charges, or not less if charges were pruned."""
    params = {
        "kept_since": tx.now - min(settings.list_values(tx, charges.TOTALS_RETENTION.setting)),
        # A total that was pruned before its charges starts again from 0 at the next charge.
        "outlast": int(
            max(settings.list_values(tx, "charges.retention_ms"))
            <= min(settings.list_values(tx, charges.TOTALS_RETENTION.setting))
        ),
    }
    problems: list[tuple[int, str]] = []
    for statement in sql.TOTALS_OF.values():
        count, example = tx.run(statement, **params)[0]
        problems += [(int(count), example)] if count else []
    wrong = sorted(_find_wrong_totals(tx, **params))
    problems += [(len(wrong), wrong[0][0])] if wrong else []
    return [
        IntegrityProblem(
            "totals",
            "broken",
            f"{_format_count(count, 'total is', 'totals are')} not the sum of the charges, "
            f"such as {scope}. {_suggest_query('usage_totals', 'scope', scope)}; an older backup "
            "has the right value.",
        )
        for count, scope in problems
    ]


class _Sum(NamedTuple):
    figures: list[int]
    newest: int


def _find_wrong_totals(tx: Tx, *, kept_since: int, outlast: int) -> Iterator[tuple[str, str]]:
    sums = _sum_charges_by_scope(tx)
    for scope, day, *figures in tx.run(sql.TOTALS):
        own = sums.pop((scope, day), None)
        if own is None or own.figures == figures:
            continue
        less = any(a < b for a, b in zip(figures, own.figures, strict=True))
        if figures[0] == own.figures[0] or (less and (outlast or not day)):
            yield scope, day
    for (scope, day), own in sums.items():
        if not day or own.newest >= kept_since:
            yield scope, day


def _sum_charges_by_scope(tx: Tx) -> dict[tuple[str, str], _Sum]:
    """Sum the charges by scope and day, in batches."""
    sums: dict[tuple[str, str], _Sum] = {}
    after = 0
    while (upto := tx.value(sql.NEXT_CHARGES, after=after, limit=BATCH_SIZE)) is not None:
        for project, agent, model, day, *figures, newest in tx.run(
            sql.SUMMED, after=after, upto=upto
        ):
            scopes = ["all"] + [
                f"{kind}:{id}"
                for kind, id in (("project", project), ("agent", agent), ("model", model))
                if id
            ]
            for key in ((scope, of) for scope in scopes for of in ("", utc_date(day * DAY))):
                before = sums.get(key, _Sum([0] * len(figures), 0))
                added = [a + b for a, b in zip(before.figures, figures, strict=True)]
                sums[key] = _Sum(added, max(before.newest, newest))
        after = upto
    return sums


def build_expected_totals(tx: Tx) -> dict[tuple[str, str], dict[str, int]]:
    """Return the totals that the stored charges add up to, by scope and day."""
    names = ("charges", *sql.FIGURES)
    return {
        key: dict(zip(names, total.figures, strict=True))
        for key, total in _sum_charges_by_scope(tx).items()
    }


# -- states ----------------------------------------------------------------------------------------


class StateCheckResult(NamedTuple):
    """The result of checking one batch of a table with states."""

    wrong: list[str]
    """A message for each row whose state differs from its last event."""
    rows: int
    last: str | int | None
    """The key to continue after; None at the end."""


def check_states(
    tx: Tx, table: StatefulTable[Any], after: str | int, limit: int = 500
) -> StateCheckResult:
    """Check that the next rows are in a valid state, the one that their last event led to.

    A row without events was imported, or its events were pruned.
    """
    select_rows, select_events = _build_statements(table)
    rows = tx.run(select_rows, after=after, limit=limit)
    events = {seq: (verb, data) for seq, verb, data in _read_events(tx, select_events, rows)}
    wrong = []
    for _, id, state, seq in rows:
        expected = _get_state_after(table, *events[seq]) if seq in events else None
        if state not in [*table.transitions.states]:
            wrong.append(f"{id} is {state}, which is not a state of a {table.transitions.kind}")
        elif expected is not None and expected != state:
            wrong.append(f"{id} is {state}, but its last event led to {expected}")
    return StateCheckResult(wrong, len(rows), rows[-1][0] if len(rows) == limit else None)


def _read_events(tx: Tx, statement: Statement, rows: Sequence[Any]) -> list[Any]:
    seqs = [row[3] for row in rows if row[3] is not None]
    return tx.run(statement, keys_=encode_rows(seqs)) if seqs else []


def _get_state_after(table: StatefulTable[Any], verb: str, data: Any) -> str | None:
    transitions = table.transitions
    if verb == "import":
        values: Any = msgspec.json.decode(data) if data else None
        return values.get("state") if isinstance(values, dict) else None
    return (
        transitions.initial_states[verb]
        if verb in transitions.initial_states
        else transitions[verb].to
    )


# ORDER BY … LIMIT 1 instead of max(): for max() SQLite reads the whole view for each row. `seq + 0`
# keeps PostgreSQL from scanning the primary key of all events.
@cache
def _build_statements(table: StatefulTable[Any]) -> tuple[Statement, Statement]:
    transitions = table.transitions
    verbs = ", ".join(
        f"'{verb}'" for verb in ("import", *transitions.initial_states, *transitions.verbs)
    )
    public = table.public_id.replace(table.key, f"{table.table}.{table.key}")
    return (
        Statement(f"""
            SELECT {table.key}, {public}, state, (
                SELECT event.seq + 0 AS place FROM {{events_of_subject}} AS event
                WHERE event.subject = {public} AND event.kind = '{transitions.kind}'
                  AND event.verb IN ({verbs})
                ORDER BY place DESC LIMIT 1)
            FROM {table.table} WHERE {table.key} > :after ORDER BY {table.key} LIMIT :limit
        """),
        Statement("SELECT seq, verb, data FROM events WHERE seq {is_numbered}"),
    )


# -- files -----------------------------------------------------------------------------------------


class MessageWithFiles(NamedTuple):
    """A message with data that may name files."""

    seq: int
    created_at: int
    data: dict[str, Any]


def find_known_runs(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Return the ids among these that belong to a run or an output."""
    return {id for (id,) in tx.run(sql.KNOWN_RUNS, keys_=encode_rows(ids))}


def find_known_folders(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Return the ids among these that belong to a channel or an agent."""
    return {id for (id,) in tx.run(sql.KNOWN_FOLDERS, keys_=encode_rows(ids))}


def list_messages_with_files(tx: Tx, after: int, limit: int = 500) -> list[MessageWithFiles]:
    """List the next messages that have data besides their text."""
    rows = tx.run(sql.MESSAGES, after=after, limit=limit)
    return [MessageWithFiles(seq, at, msgspec.json.decode(data)) for seq, at, data in rows]


def list_sandboxed_sessions(tx: Tx, after: str, limit: int = 500) -> list[str]:
    """List the next open sessions of sandboxed agents that have written messages."""
    return [id for (id,) in tx.run(sql.SANDBOXED_SESSIONS, after=after, limit=limit)]
