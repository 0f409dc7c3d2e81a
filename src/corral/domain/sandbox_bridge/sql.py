from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.sandbox_bridge.model import BoxedOutcome

_OUTCOME = """
    session_id, out_id, 'msg_' || message AS message_id, question_id, reason, created_at
"""

ADD = Statement("""
    INSERT INTO boxed_outcomes (id, session_id, out_id, message, question_id, reason, created_at)
    VALUES (:id, :session_id, :out_id, :message, :question_id, :reason, :now)
    ON CONFLICT (session_id, out_id) DO NOTHING RETURNING id
""")

OF_SESSION = Query(
    BoxedOutcome,
    f"SELECT {_OUTCOME} FROM boxed_outcomes WHERE session_id = :session_id ORDER BY out_id"
    " LIMIT :limit",
)

FORGET = Statement("""
    DELETE FROM boxed_outcomes WHERE session_id = :session_id AND out_id = :out_id
""")

KEPT = Retention(
    "boxed_outcomes",
    setting="messages.keep_ms",
    born="created_at",
    over="created_at < :before",
)
