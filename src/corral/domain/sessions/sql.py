from corral.db.lookup import IdColumn
from corral.db.numbered import Numbered
from corral.db.retention import Scoped
from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable
from corral.domain.sessions.model import MOVES, Handoff, Passage, Retro, Session, StateValue, Turn

_COLUMNS = (
    "id, title, project_id, agent_id, provider, provider_session, state, turns, cleared_turn,"
    " handoff, parent_id, parent_turn, reply_to, created_at, updated_at, closed_at"
)

IDS = IdColumn("session", "ses", "sessions")
SESSIONS = StateTable(Session, MOVES, table="sessions", columns=_COLUMNS, project="project_id")

# -- turns -----------------------------------------------------------------------------------------

_TURN = (
    "'trn_' || seq AS id, session_id, number, role, content, tool_call_id, tool_name, arguments,"
    " result, is_error, input_tokens, output_tokens, agent_id, run_id, key, meta, at"
)

# Words of the assistant are those of the agent that has the session, unless another is named.
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

_COUNT_UP = (
    "UPDATE sessions SET turns = turns + 1, updated_at = :now"
    " WHERE id = :session_id AND state = 'open'"
)
_ADDED = "seq, number, agent_id"

APPEND = Numbered(first=_COUNT_UP, table="turns", values=_VALUES, columns=_ADDED)

# Most turns are words and nothing else; what is not given need not be handed over.
_WORDS = ("session_id", "number", "role", "content", "agent_id", "at")

APPEND_WORDS = Numbered(
    first=_COUNT_UP,
    table="turns",
    values={**{name: _VALUES[name] for name in _WORDS}, "is_error": "0"},
    columns=_ADDED,
)

# Room for several turns at once; then each is added with its number.
MAKE_ROOM = Query(
    Session,
    f"""
    UPDATE sessions SET turns = turns + :count, updated_at = :now
    WHERE id = :session_id AND state = 'open' RETURNING {_COLUMNS}
""",
)

_GIVEN = {**_VALUES, "number": ":number", "agent_id": ":author"}

ADD = Query(
    Turn,
    f"INSERT INTO turns ({', '.join(_GIVEN)}) VALUES ({', '.join(_GIVEN.values())})"
    f" RETURNING {_TURN}",
)

BY_KEY = Query(Turn, f"SELECT {_TURN} FROM turns WHERE session_id = :session_id AND key = :key")

# A session's own turns within (after, upto]: a fork's begin behind those that it inherited.
_STRETCH = (
    f"SELECT {_TURN} FROM turns"
    " WHERE session_id = :session_id AND number > :after AND number <= :upto"
)

OLDEST_TURNS = Query(Turn, f"{_STRETCH} ORDER BY number LIMIT :limit")
NEWEST_TURNS = Query(Turn, f"{_STRETCH} ORDER BY number DESC LIMIT :limit")

# From a session up to those it was forked from, as far as turns behind `after` come from there.
LINE = Statement("""
    WITH RECURSIVE line (id, parent_id, parent_turn, upto) AS (
        SELECT id, parent_id, parent_turn, turns FROM sessions WHERE id = :id
        UNION ALL
        SELECT above.id, above.parent_id, above.parent_turn,
               CASE WHEN line.parent_turn < line.upto THEN line.parent_turn ELSE line.upto END
        FROM line JOIN sessions AS above ON above.id = line.parent_id
        WHERE line.parent_turn > :after AND above.id <> line.id
    )
    SELECT id, parent_turn, upto FROM line
""")

# For the index of words, in the order in which they arrived.
BEHIND = Query(
    Passage,
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

NEWEST_NUMBER = Statement("SELECT max(seq) FROM turns")

# -- lists -----------------------------------------------------------------------------------------

_NEWEST = "id < :before ORDER BY id DESC LIMIT :limit"
_OF_ALL = f"SELECT {_COLUMNS} FROM sessions WHERE"

LIST_OPEN = Query(Session, f"{_OF_ALL} state = 'open' AND {_NEWEST}")
LIST_ALL = Query(Session, f"{_OF_ALL} {_NEWEST}")
LIST_OPEN_OF_PROJECT = Query(
    Session, f"{_OF_ALL} state = 'open' AND project_id = :project_id AND {_NEWEST}"
)
LIST_ALL_OF_PROJECT = Query(Session, f"{_OF_ALL} project_id = :project_id AND {_NEWEST}")
LIST_OPEN_OF_AGENT = Query(
    Session, f"{_OF_ALL} state = 'open' AND agent_id = :agent_id AND {_NEWEST}"
)
LIST_ALL_OF_AGENT = Query(Session, f"{_OF_ALL} agent_id = :agent_id AND {_NEWEST}")

BY_PROVIDER = Query(
    Session,
    f"""
    {_OF_ALL} provider_session = :provider_session AND provider = :provider
    ORDER BY id DESC LIMIT 1
""",
)

# -- what changes besides the state ---------------------------------------------------------------

RENAME = Query(
    Session,
    f"UPDATE sessions SET title = :title, updated_at = :now WHERE id = :id RETURNING {_COLUMNS}",
)

POINT_TO_PROVIDER = Query(
    Session,
    f"""
    UPDATE sessions SET provider = :provider, provider_session = :provider_session,
        updated_at = :now
    WHERE id = :id RETURNING {_COLUMNS}
""",
)

# A session that names another provider is not changed.
NAME_PROVIDER_SESSION = Statement("""
    UPDATE sessions SET provider = :provider, provider_session = :name
    WHERE id = :id AND provider_session IS NULL AND (provider IS NULL OR provider = :provider)
""")

UNNUMBER = Statement("""
    UPDATE turns SET number = -number WHERE session_id = :session_id AND number > :after
""")
NUMBER_BY_TIME = Statement("""
    UPDATE turns SET number = :after + ordered.place
    FROM (
        SELECT seq, row_number() OVER (ORDER BY at, seq) AS place
        FROM turns WHERE session_id = :session_id AND number < 0
    ) AS ordered
    WHERE turns.seq = ordered.seq
""")

CLEARED = Query(
    Session,
    f"""
    UPDATE sessions SET cleared_turn = turns, updated_at = :now
    WHERE id = :id RETURNING {_COLUMNS}
""",
)

_STATE = "name, value, updated_at"

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

FORGET_STATE_VALUE = Statement(
    "DELETE FROM session_state WHERE session_id = :session_id AND name = :name RETURNING name"
)

FORGET_STATE = Statement("DELETE FROM session_state WHERE session_id = :session_id")

# -- hand-offs and retrospectives -----------------------------------------------------------------

_HANDOFF = (
    "session_id, number, from_agent_id, to_agent_id, policy, last_n, note, summary, at_turn,"
    " from_turn, run_id, created_at"
)

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

HANDOFFS = Query(
    Handoff,
    f"""
    SELECT {_HANDOFF} FROM handoffs WHERE session_id = :session_id AND number > :after
    ORDER BY number LIMIT :limit
""",
)

# Who had the session at a turn is who gave it away next.
GIVEN_AWAY = Statement("""
    SELECT from_agent_id FROM handoffs WHERE session_id = :session_id AND at_turn > :turn
    ORDER BY number LIMIT 1
""")

_RETRO = "session_id, number, body, created_at"

LAST_RETRO = Statement("SELECT max(number) FROM retros WHERE session_id = :session_id")

ADD_RETRO = Query(
    Retro,
    f"""
    INSERT INTO retros ({_RETRO}) VALUES (:session_id, :number, :body, :now) RETURNING {_RETRO}
""",
)

RETROS = Query(
    Retro,
    f"""
    SELECT {_RETRO} FROM retros WHERE session_id = :session_id AND number < :before
    ORDER BY number DESC LIMIT :limit
""",
)

# -- forgetting ------------------------------------------------------------------------------------


# A session with mail that nobody has read is not over, whenever it was closed.
def _unread(session: str) -> str:
    return f"""(EXISTS (
        SELECT 1 FROM letters WHERE mailbox = 'session:' || {session}.id AND state = 'waiting'
    ) OR EXISTS (
        SELECT 1 FROM letters WHERE mailbox = 'session:' || {session}.id AND state = 'unknown'))"""


# Not one that a fork still shows the turns of, nor one that somebody reopens at this moment.
PRUNABLE = Scoped(f"""
    SELECT id FROM sessions
    WHERE closed_at < :before AND {{whose}}
      AND NOT EXISTS (SELECT 1 FROM sessions AS fork WHERE fork.parent_id = sessions.id)
      AND NOT {_unread("sessions")}
    ORDER BY closed_at, id LIMIT :limit {{skip_locked}}
""")

# As many as go in the end, when forks that are old too have gone before what they came from.
COUNT_PRUNABLE = Scoped(f"""
    SELECT count(*) FROM sessions
    WHERE closed_at < :before AND {{whose}} AND NOT {_unread("sessions")} AND NOT EXISTS (
        WITH RECURSIVE below (id, closed_at) AS (
            SELECT fork.id, fork.closed_at FROM sessions AS fork
            WHERE fork.parent_id = sessions.id
            UNION
            SELECT fork.id, fork.closed_at
            FROM below JOIN sessions AS fork ON fork.parent_id = below.id
        )
        SELECT 1 FROM below
        WHERE below.closed_at IS NULL OR below.closed_at >= :before OR {_unread("below")}
    )
""")

OF_PROJECT = Statement("""
    SELECT id FROM sessions
    WHERE project_id = :project_id
      AND NOT EXISTS (SELECT 1 FROM sessions AS fork WHERE fork.parent_id = sessions.id)
    ORDER BY id DESC LIMIT :limit
""")

FORKS = Statement("SELECT id FROM sessions WHERE parent_id = :id LIMIT 1")

# The newest turn of the store stays, empty: its number must not be given out again.
KEEP_PLACE = Statement("""
    UPDATE turns SET session_id = '', number = seq, role = 'system', content = '',
        tool_call_id = NULL, tool_name = NULL, arguments = NULL, result = NULL, is_error = 0,
        input_tokens = NULL, output_tokens = NULL, agent_id = NULL, run_id = NULL, key = NULL,
        meta = NULL
    WHERE seq = (SELECT max(seq) FROM turns) AND session_id = :session_id
""")

GIVE_UP_PLACES = Statement("""
    DELETE FROM turns WHERE session_id = '' AND seq < (SELECT max(seq) FROM turns)
""")

FORGET_TURNS = Statement("""
    DELETE FROM turns
    WHERE session_id = :session_id AND number <= (
        SELECT max(number) FROM (
            SELECT number FROM turns WHERE session_id = :session_id ORDER BY number LIMIT :limit
        ) AS oldest
    )
    RETURNING seq
""")

FORGET_HANDOFFS = Statement("DELETE FROM handoffs WHERE session_id = :session_id")
FORGET_RETROS = Statement("DELETE FROM retros WHERE session_id = :session_id")
FORGET = Query(Session, f"DELETE FROM sessions WHERE id = :id RETURNING {_COLUMNS}")

FIRST_OWN_TURN = Statement("""
    SELECT 1 FROM turns WHERE session_id = :session_id AND number = :number
""")

# Room for turns of another program, which were said at other times than now.
MAKE_ROOM_IN_PAST = Statement("""
    UPDATE sessions
    SET turns = turns + :count,
        updated_at = CASE WHEN updated_at < :at THEN :at ELSE updated_at END
    WHERE id = :id RETURNING turns
""")

SET_SUCCESSOR = Statement("UPDATE sessions SET replaced_by = :successor WHERE id = :id")
