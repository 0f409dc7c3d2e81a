"""SQL of sessions, turns, state values, hand-offs and retrospectives."""

from corral.db.gapless_insert import GaplessInsert
from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import PrunableRows
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.sessions.model import (
    TRANSITIONS,
    Handoff,
    Retro,
    Session,
    StateValue,
    Turn,
    TurnText,
)
from corral.kernel.pagination import LAST_NUMBER

IDS = IdColumn("session", "ses", "sessions")
SESSIONS = StatefulTable(Session, TRANSITIONS, table="sessions", project="project_id")

_COLUMNS = SESSIONS.columns

# -- turns -----------------------------------------------------------------------------------------

_TURN = columns_of(Turn, id="'trn_' || seq")

# `first` is the updated row of the session. The author of an assistant turn defaults to its agent.
_VALUES = {
    "session_id": ":session_id",
    "number": "first.turns",
    "role": ":role",
    "content": ":content",
    "tool_call_id": ":tool_call_id",
    "tool_name": ":tool_name",
    "arguments": "CAST(:arguments AS {json})",
    "result": "CAST(:result AS {json})",
    "is_error": ":is_error",
    "input_tokens": "CAST(:input_tokens AS {integer})",
    "output_tokens": "CAST(:output_tokens AS {integer})",
    "agent_id": "coalesce(CAST(:author AS TEXT),"
    " CASE WHEN :role = 'assistant' THEN first.agent_id END)",
    "run_id": ":run_id",
    "key": ":key",
    "meta": "CAST(:meta AS {json})",
    "at": ":now",
}

_NEXT_NUMBER = (
    "UPDATE sessions SET turns = turns + 1, updated_at = :now"
    " WHERE id = :session_id AND state = 'open'"
)
_RETURNED = "seq, number, agent_id"

APPEND = GaplessInsert(parent=_NEXT_NUMBER, table="turns", values=_VALUES, columns=_RETURNED)

# Most turns have only a role and a content; binding fewer parameters is faster.
_TEXT_COLUMNS = ("session_id", "number", "role", "content", "agent_id", "at")

APPEND_TEXT = GaplessInsert(
    parent=_NEXT_NUMBER,
    table="turns",
    values={**{name: _VALUES[name] for name in _TEXT_COLUMNS}, "is_error": "0"},
    columns=_RETURNED,
)

# Reserves the numbers of several turns at once; each turn is then inserted with its number.
RESERVE_NUMBERS = Query(
    Session,
    f"""
    UPDATE sessions SET turns = turns + :count, updated_at = :now
    WHERE id = :session_id AND state = 'open' RETURNING {_COLUMNS}
""",
)

_WITH_NUMBER = {**_VALUES, "number": ":number", "agent_id": ":author"}

ADD = Query(
    Turn,
    f"INSERT INTO turns ({', '.join(_WITH_NUMBER)}) VALUES ({', '.join(_WITH_NUMBER.values())})"
    f" RETURNING {_TURN}",
)

BY_KEY = Query(Turn, f"SELECT {_TURN} FROM turns WHERE session_id = :session_id AND key = :key")

# The turns within (after, upto] that a session stores itself.
_RANGE = (
    f"SELECT {_TURN} FROM turns"
    " WHERE session_id = :session_id AND number > :after AND number <= :upto"
)

OLDEST_TURNS = Query(Turn, f"{_RANGE} ORDER BY number LIMIT :limit")
NEWEST_TURNS = Query(Turn, f"{_RANGE} ORDER BY number DESC LIMIT :limit")

# A session and the sessions it was forked from, as far as they contain turns after `after`.
LINEAGE = Statement("""
    WITH RECURSIVE lineage (id, parent_id, parent_turn, upto) AS (
        SELECT id, parent_id, parent_turn, turns FROM sessions WHERE id = :id
        UNION ALL
        SELECT above.id, above.parent_id, above.parent_turn,
               CASE WHEN lineage.parent_turn < lineage.upto
                    THEN lineage.parent_turn ELSE lineage.upto END
        FROM lineage JOIN sessions AS above ON above.id = lineage.parent_id
        -- The second condition ends a loop in damaged data.
        WHERE lineage.parent_turn > :after AND above.id <> lineage.id
    )
    SELECT id, parent_turn, upto FROM lineage
""")

# For the search index, in the order of insertion.
TURNS_AFTER = Query(
    TurnText,
    """
    SELECT turns.seq, turns.session_id, turns.number, sessions.project_id, turns.at,
           substr(turns.content, 1, 262144) AS content, turns.tool_name,
           substr(CAST(turns.arguments AS TEXT), 1, 262144) AS arguments,
           substr(CAST(turns.result AS TEXT), 1, 262144) AS result
    FROM turns LEFT JOIN sessions ON sessions.id = turns.session_id
    WHERE turns.seq > :after AND turns.seq <= :upto
    ORDER BY turns.seq LIMIT :limit
""",
)

HIGHEST_SEQ = Statement("SELECT max(seq) FROM turns")

# -- lists -----------------------------------------------------------------------------------------

LIST_OPEN = SESSIONS.newest_first("state = 'open'")
LIST_ALL = SESSIONS.newest_first()
LIST_OPEN_OF_PROJECT = SESSIONS.newest_first("state = 'open' AND project_id = :project_id")
LIST_ALL_OF_PROJECT = SESSIONS.newest_first("project_id = :project_id")
LIST_OPEN_OF_AGENT = SESSIONS.newest_first("state = 'open' AND agent_id = :agent_id")
LIST_ALL_OF_AGENT = SESSIONS.newest_first("agent_id = :agent_id")

BY_PROVIDER = Query(
    Session,
    f"""
    SELECT {_COLUMNS} FROM sessions
    WHERE provider_session = :provider_session AND provider = :provider
    ORDER BY id DESC LIMIT 1
""",
)

# -- updates --------------------------------------------------------------------------------------

RENAME = Query(
    Session,
    f"UPDATE sessions SET title = :title, updated_at = :now WHERE id = :id RETURNING {_COLUMNS}",
)

SET_PROVIDER_SESSION = Query(
    Session,
    f"""
    UPDATE sessions SET provider = :provider, provider_session = :provider_session,
        updated_at = :now
    WHERE id = :id RETURNING {_COLUMNS}
""",
)

# Does not change a session of another provider.
FILL_PROVIDER_SESSION = Statement("""
    UPDATE sessions SET provider = :provider, provider_session = :name
    WHERE id = :id AND provider_session IS NULL AND (provider IS NULL OR provider = :provider)
""")

# Renumber turns by time in two steps: negative numbers first, because (session_id, number) is
# unique.
NEGATE_NUMBERS = Statement("""
    UPDATE turns SET number = -number WHERE session_id = :session_id AND number > :after
""")
NUMBER_BY_TIME = Statement("""
    UPDATE turns SET number = :after + ordered.position
    FROM (
        SELECT seq, row_number() OVER (ORDER BY at, seq) AS position
        FROM turns WHERE session_id = :session_id AND number < 0
    ) AS ordered
    WHERE turns.seq = ordered.seq
""")

SET_CLEARED_TURN = Query(
    Session,
    f"""
    UPDATE sessions SET cleared_turn = turns, updated_at = :now
    WHERE id = :id RETURNING {_COLUMNS}
""",
)

_STATE = columns_of(StateValue)

STATE = Query(
    StateValue,
    f"SELECT {_STATE} FROM session_state WHERE session_id = :session_id ORDER BY name LIMIT :limit",
)

STATE_VALUE = Query(
    StateValue,
    f"SELECT {_STATE} FROM session_state WHERE session_id = :session_id AND name = :name",
)

COUNT_STATE = Statement("SELECT count(*) FROM session_state WHERE session_id = :session_id")

SET_STATE = Query(
    StateValue,
    f"""
    INSERT INTO session_state (session_id, name, value, updated_at)
    VALUES (:session_id, :name, :value, :now)
    ON CONFLICT (session_id, name) DO UPDATE
    SET value = excluded.value, updated_at = excluded.updated_at
    RETURNING {_STATE}
""",
)

DELETE_STATE_VALUE = Statement(
    "DELETE FROM session_state WHERE session_id = :session_id AND name = :name RETURNING name"
)

DELETE_STATE = Statement("DELETE FROM session_state WHERE session_id = :session_id")

# -- hand-offs and retrospectives -----------------------------------------------------------------

_HANDOFF = columns_of(Handoff)

LAST_HANDOFF = Statement("SELECT max(number) FROM handoffs WHERE session_id = :session_id")

ADD_HANDOFF = Query(
    Handoff,
    f"""
    INSERT INTO handoffs ({_HANDOFF})
    VALUES (:session_id, :number, :from_agent_id, :to_agent_id, :policy, :last_n, :note, :summary,
            :at_turn, :from_turn, :run_id, :created_at)
    RETURNING {_HANDOFF}
""",
)

HANDOFF = Query(
    Handoff,
    f"SELECT {_HANDOFF} FROM handoffs WHERE session_id = :session_id AND number = :number",
)

HANDOFFS = Listing(
    Query(
        Handoff,
        f"""
        SELECT {_HANDOFF} FROM handoffs WHERE session_id = :session_id AND number > :after
        ORDER BY number LIMIT :limit
    """,
    ),
    start={"after": 0},
    key=lambda handoff: (handoff.number,),
)

# The agent that had the session at a turn: the sender of the next hand-off.
AGENT_AT_TURN = Statement("""
    SELECT from_agent_id FROM handoffs WHERE session_id = :session_id AND at_turn > :turn
    ORDER BY number LIMIT 1
""")

_RETRO = columns_of(Retro)

LAST_RETRO = Statement("SELECT max(number) FROM retros WHERE session_id = :session_id")

ADD_RETRO = Query(
    Retro,
    f"""
    INSERT INTO retros ({_RETRO}) VALUES (:session_id, :number, :body, :now) RETURNING {_RETRO}
""",
)

RETROS = Listing(
    Query(
        Retro,
        f"""
        SELECT {_RETRO} FROM retros WHERE session_id = :session_id AND number < :before
        ORDER BY number DESC LIMIT :limit
    """,
    ),
    start={"before": LAST_NUMBER},
    key=lambda retro: (retro.number,),
)

# -- retention -------------------------------------------------------------------------------------


def _has_mail(session: str) -> str:
    """Return the condition that a session has undelivered letters; it is not deleted then."""
    return f"""(EXISTS (
        SELECT 1 FROM letters WHERE mailbox = 'session:' || {session}.id AND state = 'waiting'
    ) OR EXISTS (
        SELECT 1 FROM letters
        WHERE mailbox = 'session:' || {session}.id AND state = 'unconfirmed'))"""


PRUNABLE = PrunableRows(
    "sessions",
    setting="sessions.retention_ms",
    ended={
        "closed_at": f"""
            closed_at < :before
            -- A fork still shows the turns of this session.
            AND NOT EXISTS (SELECT 1 FROM sessions AS fork WHERE fork.parent_id = sessions.id)
            AND NOT {_has_mail("sessions")}"""
    },
    # Includes sessions whose forks are prunable too: the forks are deleted first.
    count_ended=f"""
        closed_at < :before AND NOT {_has_mail("sessions")} AND NOT EXISTS (
            WITH RECURSIVE below (id, closed_at) AS (
                SELECT fork.id, fork.closed_at FROM sessions AS fork
                WHERE fork.parent_id = sessions.id
                UNION
                SELECT fork.id, fork.closed_at
                FROM below JOIN sessions AS fork ON fork.parent_id = below.id
            )
            SELECT 1 FROM below
            WHERE below.closed_at IS NULL OR below.closed_at >= :before OR {_has_mail("below")}
        )""",
    batch=5,
)

OF_PROJECT = Statement("""
    SELECT id FROM sessions
    WHERE project_id = :project_id
      AND NOT EXISTS (SELECT 1 FROM sessions AS fork WHERE fork.parent_id = sessions.id)
    ORDER BY id DESC LIMIT :limit
""")

FORKS = Statement("SELECT id FROM sessions WHERE parent_id = :id LIMIT 1")

# The turn with the highest seq stays as an empty row, so that its seq is not reused.
BLANK_HIGHEST_TURN = Statement("""
    UPDATE turns SET session_id = '', number = seq, role = 'system', content = '',
        tool_call_id = NULL, tool_name = NULL, arguments = NULL, result = NULL, is_error = 0,
        input_tokens = NULL, output_tokens = NULL, agent_id = NULL, run_id = NULL, key = NULL,
        meta = NULL
    WHERE seq = (SELECT max(seq) FROM turns) AND session_id = :session_id
""")

DELETE_BLANK_TURNS = Statement("""
    DELETE FROM turns WHERE session_id = '' AND seq < (SELECT max(seq) FROM turns)
""")

DELETE_TURNS = Statement("""
    DELETE FROM turns
    WHERE session_id = :session_id AND number <= (
        SELECT max(number) FROM (
            SELECT number FROM turns WHERE session_id = :session_id ORDER BY number LIMIT :limit
        ) AS oldest
    )
    RETURNING seq
""")

DELETE_HANDOFFS = Statement("DELETE FROM handoffs WHERE session_id = :session_id")
DELETE_RETROS = Statement("DELETE FROM retros WHERE session_id = :session_id")
DELETE = Query(Session, f"DELETE FROM sessions WHERE id = :id RETURNING {_COLUMNS}")

FIRST_OWN_TURN = Statement("""
    SELECT 1 FROM turns WHERE session_id = :session_id AND number = :number
""")

# Reserves numbers for imported turns, which have times of their own.
RESERVE_IMPORTED_NUMBERS = Statement("""
    UPDATE sessions
    SET turns = turns + :count,
        updated_at = CASE WHEN updated_at < :at THEN :at ELSE updated_at END
    WHERE id = :id RETURNING turns
""")

SET_SUCCESSOR = Statement("UPDATE sessions SET replaced_by = :successor WHERE id = :id")
