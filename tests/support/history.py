"""A store that has been used for long: tens of thousands of rows, most of them history."""

import psycopg

import corral
from corral.db.statement import Statement

LETTERS = 30_000
BACKLOG = 4_000
MANY = 4_000

_SERIES = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"

_LETTER = (
    "INSERT INTO letters (mailbox, sender, key, body, rank, state, due_at, line_at, expires_at,"
    " owner, fence, attempts, created_at, ended_at)"
)

# Everything is written in one go, by one statement each, in words that both engines know.
_FILL = [
    # History: ended letters, in the busy mailboxes and in many others.
    f"""{_LETTER}
    {_SERIES.format(count=LETTERS)}
    SELECT CASE i % 20 WHEN 0 THEN 'agent:busy' WHEN 1 THEN 'queue:busy'
           ELSE 'agent:a' || (i % 97) END,
        NULL, CASE i % 5 WHEN 0 THEN 'k-' || i END, '"x"', -(i % 3),
        CASE i % 50 WHEN 0 THEN 'dead' WHEN 1 THEN 'refused' WHEN 2 THEN 'expired' ELSE 'done' END,
        {{now}} - 1000 - i, {{now}} - 1000 - i, NULL, 'o', 1, 1, {{now}} - 2000 - i, {{now}} - i
    FROM n""",
    # A backlog that is due, and one for tomorrow; some of it has an end.
    f"""{_LETTER}
    {_SERIES.format(count=BACKLOG)}
    SELECT CASE i % 2 WHEN 0 THEN 'agent:busy' ELSE 'queue:busy' END, NULL,
        'open-' || i, '"x"', -(i % 3), 'waiting',
        {{now}} + CASE i % 4 WHEN 0 THEN -i WHEN 1 THEN -i ELSE 86400000 + i END,
        {{now}} + CASE i % 4 WHEN 0 THEN -i WHEN 1 THEN -i ELSE 86400000 + i END,
        CASE i % 10 WHEN 0 THEN {{now}} + i - 20 END, NULL, 0, 0, {{now}} - i, NULL
    FROM n""",
    f"""INSERT INTO schedules (id, name, project_id, mailbox, body, priority, kind, rule, time_zone,
        anchor_at, misfire, overlap, state, next_at, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'sch_' || substr(i || 'x0000000000000000000000000', 1, 26),
        NULL, CASE i % 7 WHEN 0 THEN 'prj_' || (i % 100) END, 'agent:a' || (i % 97), '"x"', 0,
        CASE i % 2 WHEN 0 THEN 'once' ELSE 'every' END,
        CASE i % 2 WHEN 0 THEN '' ELSE '60000' END, 'UTC', {{now}} + i, 'latest', 'allow',
        CASE i % 4 WHEN 0 THEN 'active' WHEN 1 THEN 'paused' WHEN 2 THEN 'finished'
            ELSE 'cancelled' END,
        CASE i % 4 WHEN 0 THEN {{now}} + i - 20 END, {{now}} - i,
        CASE WHEN i % 4 > 1 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO projects (id, dir, name, state, created_at, updated_at, last_run_at)
    {_SERIES.format(count=MANY)}
    SELECT 'prj_' || substr(i || 'x0000000000000000000000000', 1, 26),
        '/srv/' || i, 'p' || i, CASE i % 20 WHEN 0 THEN 'archived' ELSE 'active' END,
        {{now}} - i, {{now}} - i, CASE i % 2 WHEN 0 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO nodes (id, name, boot_id, state, owner, fence, lease_until, slots, labels,
        joined_at, seen_at)
    {_SERIES.format(count=MANY)}
    SELECT 'nod_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'host' || (i % 50), 'boot' || i, CASE i % 40 WHEN 0 THEN 'up' ELSE 'left' END, 'd', 1,
        {{now}} + i, 1, '[]', {{now}} - i, {{now}} - i
    FROM n""",
    f"""INSERT INTO leaders (name, owner, fence, lease_until)
    {_SERIES.format(count=MANY)} SELECT 'loop' || i, 'd', 1, {{now}} + i FROM n""",
    f"""INSERT INTO settings (scope, name, value, updated_at, updated_by)
    {_SERIES.format(count=MANY)}
    SELECT 'agent:a' || i, 'mail.max_attempts', '3', {{now}}, 'user:x' FROM n""",
    f"""INSERT INTO secrets (name, reference, updated_at, updated_by)
    {_SERIES.format(count=MANY)} SELECT 's' || i, 'env:X', {{now}}, 'user:x' FROM n""",
]


_EVENTS = """INSERT INTO events (at, actor, kind, verb, subject, project_id, data)
    SELECT {now} - i, 'user:x', 'letter', 'put',
        CASE i % 100 WHEN 0 THEN 'let_7' ELSE 'let_' || i END,
        CASE i % 4 WHEN 0 THEN 'prj_' || (i % 200) END, NULL
    FROM n"""

# The feed of PostgreSQL goes by transactions, so its past must have many of them.
_EVENTS_IN_PIECES = """DO $$ BEGIN
    FOR piece IN 0..999 LOOP
        WITH n (i) AS (SELECT generate_series(piece * 30 + 1, piece * 30 + 30))
        {insert};
        COMMIT;
    END LOOP;
END $$"""


def fill(url: str, now: int) -> None:
    """Give a fresh store its long past."""
    with corral.open(url, actor="user:x") as store, store.transaction() as tx:
        for text in _FILL:
            tx.run(Statement(text.replace("{now}", str(now))))
        events = _EVENTS.replace("{now}", str(now))
        if store.db.engine == "sqlite":
            series = _SERIES.format(count=LETTERS)
            tx.run(Statement(events.replace("SELECT", f"{series} SELECT", 1)))
            return
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(_EVENTS_IN_PIECES.replace("{insert}", events).encode())
        server.execute("ANALYZE")
