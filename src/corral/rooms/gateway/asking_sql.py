from corral.db.lookup import IdColumn
from corral.db.moves import StateTable
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.rooms.gateway.model import Card
from corral.rooms.gateway.wishes import REQUEST_MOVES, Request
from corral.rooms.mail.model import Exchange

# -- cards ----------------------------------------------------------------------------------------

_CARD = """question_id, place_id, session_id, 'msg_' || message AS message_id, secret, settled,
    created_at"""

CARD = Query(Card, f"SELECT {_CARD} FROM cards WHERE question_id = :question_id")

CARDS_OF_PLACE = Query(
    Card,
    f"SELECT {_CARD} FROM cards WHERE settled = 0 AND place_id = :place_id LIMIT :limit",
)

OPEN_CARDS = Query(
    Card,
    f"SELECT {_CARD} FROM cards WHERE settled = 0 AND place_id >= :after"
    " ORDER BY place_id LIMIT :limit",
)

ADD_CARD = Query(
    Card,
    f"""
    INSERT INTO cards (question_id, place_id, session_id, message, secret, settled, created_at)
    VALUES (:question_id, :place_id, :session_id, :message, :secret, 0, :now)
    ON CONFLICT (question_id) DO NOTHING
    RETURNING {_CARD}
""",
)

SETTLE_CARD = Query(
    Card,
    "UPDATE cards SET settled = 1 WHERE question_id = :question_id AND settled = 0"
    f" RETURNING {_CARD}",
)

CARDS_KEPT = Retention(
    "cards",
    setting="messages.keep_ms",
    key="question_id",
    born="created_at",
    over="settled = 1 AND created_at < :before",
)

# -- requests -------------------------------------------------------------------------------------

_REQUEST = """id, agent_id, run_id, session_id, key, action, arguments, effect, question_id, state,
    decided_by, result, reason, created_at, ended_at"""

REQUEST_IDS = IdColumn("request", "req", "requests")
REQUESTS = StateTable(Request, REQUEST_MOVES, table="requests", columns=_REQUEST)

_OWN_KEY = "WHERE agent_id = :agent_id AND key = :key"
REQUEST_BY_KEY = Query(Request, f"SELECT {_REQUEST} FROM requests {_OWN_KEY}")

ALL_REQUESTS = REQUESTS.newest()
REQUESTS_OF_AGENT = REQUESTS.newest("agent_id = :agent_id")

WAITING_REQUESTS = Query(
    Request,
    f"SELECT {_REQUEST} FROM requests WHERE state = 'waiting' AND action = :action AND id > :after"
    " ORDER BY id LIMIT :limit",
)

_WAITS = "agent_id = :agent_id AND state = 'waiting'"
COUNT_WAITING = Statement(f"SELECT count(*) FROM requests WHERE {_WAITS}")

SET_QUESTION = Query(
    Request, f"UPDATE requests SET question_id = :question_id WHERE id = :id RETURNING {_REQUEST}"
)

REQUESTS_KEPT = Retention(
    "requests", setting="messages.keep_ms", born="created_at", over="ended_at < :before"
)

# -- exchanges ------------------------------------------------------------------------------------

_EXCHANGE = "letter_id, correlation_id, hops, answers, agent_id, reply_to, read_by, created_at"

EXCHANGE = Query(Exchange, f"SELECT {_EXCHANGE} FROM exchanges WHERE letter_id = :letter_id")

READ_EXCHANGES = Query(
    Exchange,
    f"SELECT {_EXCHANGE} FROM exchanges WHERE read_by = :run_id ORDER BY hops DESC LIMIT 1",
)

ADD_EXCHANGE = Query(
    Exchange,
    "INSERT INTO exchanges"
    " (letter_id, correlation_id, hops, answers, agent_id, reply_to, created_at)"
    " VALUES (:letter_id, :correlation_id, :hops, :answers, :agent_id, :reply_to, :now)"
    f" ON CONFLICT (letter_id) DO NOTHING RETURNING {_EXCHANGE}",
)

READ_EXCHANGE = Query(
    Exchange,
    f"UPDATE exchanges SET read_by = :run_id WHERE letter_id = :letter_id RETURNING {_EXCHANGE}",
)

EXCHANGES_KEPT = Retention(
    "exchanges", setting="mail.keep_ms", key="letter_id", born=None, over="created_at < :before"
)
