"""Whether the rows of a store fit together: what each belongs to, what is counted, what moved how.

Each look is one snapshot, in which whatever one transaction changes is changed all or not at all.
So nothing is found because somebody writes meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from corral.db.bulk_transitions import encode_rows
from corral.db.statement import Statement
from corral.db.transitions import StateTable
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.insights import integrity_sql as sql
from corral.domain.settings import ops as settings
from corral.kernel.clock import DAY, day_of

PIECE = 50_000


class Wrong(NamedTuple):
    """How many rows are wrong in one way, and what to say of them."""

    check: str
    state: str
    message: str


class Look(NamedTuple):
    """A check of the rows of one table; it finds nothing while that table is empty."""

    table: str
    run: Callable[[Tx], list[Wrong]]


def _shown(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many}"


def _see(table: str, column: str, value: str) -> str:
    return f"`corral db sql \"SELECT * FROM {table} WHERE {column} = '{value}'\"` shows it"


def _look(table: str, statement: Statement, say: Callable[[int, Any], Wrong]) -> Look:
    def run(tx: Tx) -> list[Wrong]:
        count, example = tx.run(statement)[0]
        return [say(int(count), example)] if count else []

    return Look(table, run)


def looks() -> list[Look]:
    """Every check of rows, except that of their states."""
    return [*orphans(), *map(_counted, sql.COUNTS), Look("charges", totals)]


def orphans() -> Iterator[Look]:
    """Rows whose parent is gone: they take room, nobody is shown them, and nothing else is hurt."""

    def gone(table: str, column: str, parent: str) -> Callable[[int, Any], Wrong]:
        return lambda count, example: Wrong(
            "orphans",
            "warning",
            f"{_shown(count, 'row', 'rows')} of {table} with a {column} that is not in {parent}, "
            f"as {example}; {_see(table, column, example)}.",
        )

    for each in sql.BELONGS:
        statement = sql.ORPHANS[f"{each.table}.{each.column}"]
        yield _look(each.table, statement, gone(each.table, each.column, each.parent))
    parents = {"turn": "sessions", "output": "runs", "note": "notes"}
    for kind, statement in sql.PASSAGES.items():
        yield _look("passages", statement, gone("passages", "subject", parents[kind]))
    for table, statement in sql.SCOPES.items():
        yield _look(table, statement, gone(table, "scope", "projects"))
    for kind, statement in sql.LETTERS.items():
        yield _look("letters", statement, _unread(kind))


def _unread(kind: str) -> Callable[[int, Any], Wrong]:
    return lambda count, seq: Wrong(
        "orphans",
        "warning",
        f"{_shown(count, 'letter waits', 'letters wait')} for a {kind} that is not there, as "
        f"let_{seq}; `corral mail drop let_{seq}` gives it up.",
    )


_COUNTED = {
    "sessions": ("session", "sessions", "other turns than it counts", "corral session turns {}"),
    "forks": ("fork", "forks", "no such turn to have come from", "corral session show {}"),
    "groups": ("group", "groups", "posts beyond its count", "corral group read {}"),
    "agents": ("agent", "agents", "no version of the number it is at", "corral agent versions {}"),
    "tasks": ("open task", "open tasks", "a state or counts that its needs contradict",
              "corral task show {}"),
    "outputs": ("output", "outputs", "other bytes in the store than were sealed", "corral show {}"),
}  # fmt: skip


def _counted(name: str) -> Look:
    """What is counted beside what it counts."""

    def run(tx: Tx) -> list[Wrong]:
        given = {}
        if name == "sessions":
            given = {"forgotten": tx.now - min(settings.values(tx, "sessions.keep_ms"))}
        count, example = tx.run(sql.COUNTS[name], **given)[0]
        if not count:
            return []
        one, many, what, command = _COUNTED[name]
        verb = "has" if count == 1 else "have"
        return [
            Wrong(
                "counts",
                "broken",
                f"{_shown(count, one, many)} {verb} {what}, as {example}; look at it with "
                f"`{command.format(example)}`, and restore a back-up if it matters.",
            )
        ]

    return Look("sessions" if name == "forks" else name, run)


# -- money -----------------------------------------------------------------------------------------


def totals(tx: Tx) -> list[Wrong]:
    """What charges add up to: exactly while all of them are there, never less when some went."""
    kept = {
        "kept_since": tx.now - min(settings.values(tx, charges.TOTALS_KEPT.setting)),
        # A total that was forgotten before its charges begins anew at the next one.
        "outlast": int(
            max(settings.values(tx, "charges.keep_ms"))
            <= min(settings.values(tx, charges.TOTALS_KEPT.setting))
        ),
    }
    found: list[tuple[int, str]] = []
    for statement in sql.TOTALS_OF.values():
        count, example = tx.run(statement, **kept)[0]
        found += [(int(count), example)] if count else []
    wrong = sorted(_wrong_totals(tx, **kept))
    found += [(len(wrong), wrong[0][0])] if wrong else []
    return [
        Wrong(
            "totals",
            "broken",
            f"{_shown(count, 'total is', 'totals are')} not what the charges add up to, as that of "
            f"{scope}; {_see('totals', 'scope', scope)}, and a back-up from before has it right.",
        )
        for count, scope in found
    ]


class _Sum(NamedTuple):
    figures: list[int]
    newest: int


def _wrong_totals(tx: Tx, *, kept_since: int, outlast: int) -> Iterator[tuple[str, str]]:
    summed = _summed(tx)
    for scope, day, *figures in tx.run(sql.TOTALS):
        own = summed.pop((scope, day), None)
        if own is None or own.figures == figures:
            continue
        less = any(a < b for a, b in zip(figures, own.figures, strict=True))
        if figures[0] == own.figures[0] or (less and (outlast or not day)):
            yield scope, day
    for (scope, day), own in summed.items():
        if not day or own.newest >= kept_since:
            yield scope, day


def _summed(tx: Tx) -> dict[tuple[str, str], _Sum]:
    """The charges added up anew, by project, agent, model and day."""
    found: dict[tuple[str, str], _Sum] = {}
    after = 0
    while (upto := tx.value(sql.NEXT_CHARGES, after=after, limit=PIECE)) is not None:
        for project, agent, model, day, *figures, newest in tx.run(
            sql.SUMMED, after=after, upto=upto
        ):
            scopes = ["all"] + [
                f"{kind}:{id}"
                for kind, id in (("project", project), ("agent", agent), ("model", model))
                if id
            ]
            for key in ((scope, of) for scope in scopes for of in ("", day_of(day * DAY))):
                before = found.get(key, _Sum([0] * len(figures), 0))
                added = [a + b for a, b in zip(before.figures, figures, strict=True)]
                found[key] = _Sum(added, max(before.newest, newest))
        after = upto
    return found


def charged(tx: Tx) -> dict[tuple[str, str], dict[str, int]]:
    """What the charges that are there add up to, by scope and day, as the totals have it."""
    names = ("charges", *sql.FIGURES)
    return {key: dict(zip(names, each.figures, strict=True)) for key, each in _summed(tx).items()}


# -- states ----------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """One step along a table with states."""

    wrong: list[str]
    """What is said of each row whose state is not the one that its record leads to."""
    rows: int
    last: str | int | None
    """Go on behind this key; None at the end."""


def states(tx: Tx, table: StateTable[Any], after: str | int, limit: int = 500) -> Seen:
    """Whether the next rows are in a state that exists, and that their last event led to.

    A row without events is as somebody brought it, or its events were forgotten.
    """
    rows, told = _statements(table)
    found = tx.run(rows, after=after, limit=limit)
    events = {seq: (verb, data) for seq, verb, data in _told(tx, told, found)}
    wrong = []
    for _, id, state, seq in found:
        wanted = _led_to(table, *events[seq]) if seq in events else None
        if state not in [*table.moves.states]:
            wrong.append(f"{id} is {state}, which no {table.moves.kind} can be")
        elif wanted is not None and wanted != state:
            wrong.append(f"{id} is {state}, and its last event made it {wanted}")
    return Seen(wrong, len(found), found[-1][0] if len(found) == limit else None)


def _told(tx: Tx, statement: Statement, found: Sequence[Any]) -> list[Any]:
    seqs = [row[3] for row in found if row[3] is not None]
    return tx.run(statement, keys_=encode_rows(seqs)) if seqs else []


def _led_to(table: StateTable[Any], verb: str, data: Any) -> str | None:
    moves = table.moves
    if verb == "import":
        said: Any = msgspec.json.decode(data) if data else None
        return said.get("state") if isinstance(said, dict) else None
    return moves.entries[verb] if verb in moves.entries else moves[verb].to


# As a maximum, SQLite would read the whole view for each row; and PostgreSQL is not to look for the
# newest along the numbers of all events.
@cache
def _statements(table: StateTable[Any]) -> tuple[Statement, Statement]:
    moves = table.moves
    verbs = ", ".join(f"'{verb}'" for verb in ("import", *moves.entries, *moves.verbs))
    public = table.public_id.replace(table.key, f"{table.table}.{table.key}")
    return (
        Statement(f"""
            SELECT {table.key}, {public}, state, (
                SELECT told.seq + 0 AS place FROM {{events_of_subject}} AS told
                WHERE told.subject = {public} AND told.kind = '{moves.kind}'
                  AND told.verb IN ({verbs})
                ORDER BY place DESC LIMIT 1)
            FROM {table.table} WHERE {table.key} > :after ORDER BY {table.key} LIMIT :limit
        """),
        Statement("SELECT seq, verb, data FROM events WHERE seq {is_numbered}"),
    )


# -- what there are files of -----------------------------------------------------------------------


class Filed(NamedTuple):
    """A message that has, or had, files."""

    seq: int
    created_at: int
    data: dict[str, Any]


def known_runs(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Those of these ids that are of a run, or of an output whose run is gone."""
    return {id for (id,) in tx.run(sql.KNOWN_RUNS, keys_=encode_rows(ids))}


def known_folders(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Those of these ids that are of a channel or an agent of this store."""
    return {id for (id,) in tx.run(sql.KNOWN_FOLDERS, keys_=encode_rows(ids))}


def messages(tx: Tx, after: int, limit: int = 500) -> list[Filed]:
    """The next messages that have something beside their words."""
    rows = tx.run(sql.MESSAGES, after=after, limit=limit)
    return [Filed(seq, at, msgspec.json.decode(data)) for seq, at, data in rows]


def boxed(tx: Tx, after: str, limit: int = 500) -> list[str]:
    """The next sessions of boxed agents that said something."""
    return [id for (id,) in tx.run(sql.BOXED, after=after, limit=limit)]
