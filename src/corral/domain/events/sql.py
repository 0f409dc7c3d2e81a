"""SQL of the event log."""

from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.events.model import Event

_COLUMNS = (
    "'evt_' || seq AS id, {feed_cursor} AS cursor, at, actor, kind, verb, subject, project_id,"
    " data, run_id AS run"
)


def _select_events(where: str, order: str) -> Query[Event]:
    return Query(
        Event, f"SELECT {_COLUMNS} FROM events WHERE {where} ORDER BY {order} LIMIT :limit"
    )


def _select_of_subject(where: str, order: str) -> Query[Event]:
    # SQLite merges the two parts of its view without sorting only if the ORDER BY column is
    # selected unchanged.
    return Query(
        Event,
        f"""SELECT {_COLUMNS} FROM (
            SELECT * FROM {{events_of_subject}} WHERE subject = :subject AND {where}
            ORDER BY {order} LIMIT :limit
        ) AS page ORDER BY {order}""",
    )


_OF_PROJECT = "project_id = :project_id AND"

AFTER = _select_events("{feed_after}", "{feed_key}")
AFTER_BY_SUBJECT = _select_of_subject("{feed_after}", "{feed_key}")
AFTER_BY_PROJECT = _select_events(f"{_OF_PROJECT} {{feed_after}}", "{feed_key}")

NEWEST = _select_events("{feed_settled}", "{feed_key_desc}")
NEWEST_BY_SUBJECT = _select_of_subject("{feed_settled}", "{feed_key_desc}")
NEWEST_BY_PROJECT = _select_events(f"{_OF_PROJECT} {{feed_settled}}", "{feed_key_desc}")

BEFORE = _select_events("{feed_before}", "{feed_key_desc}")
BEFORE_BY_SUBJECT = _select_of_subject("{feed_before}", "{feed_key_desc}")
BEFORE_BY_PROJECT = _select_events(f"{_OF_PROJECT} {{feed_before}}", "{feed_key_desc}")

HELD_BACK = Statement("SELECT 1 FROM events WHERE {feed_held_back} LIMIT 1")

RETENTION = Retention(
    "events",
    setting="events.retention_ms",
    key="seq",
    created="at",
    ended="at < :before",
    project="project_id",
    imported="imported_at",
)
