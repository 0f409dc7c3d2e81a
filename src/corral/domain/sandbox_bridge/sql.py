"""SQL of the outcomes that a sandbox's file does not show yet (table boxed_outcomes)."""

from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.sandbox_bridge.model import SandboxOutcome

_OUTCOME = """
    session_id, out_id, 'msg_' || message AS message_id, question_id, reason, created_at
"""

# Returns no row when the message has an outcome already.
ADD_OUTCOME = Statement("""
    INSERT INTO boxed_outcomes (id, session_id, out_id, message, question_id, reason, created_at)
    VALUES (:id, :session_id, :out_id, :message, :question_id, :reason, :now)
    ON CONFLICT (session_id, out_id) DO NOTHING RETURNING id
""")

OUTCOMES_OF_SESSION = Query(
    SandboxOutcome,
    f"SELECT {_OUTCOME} FROM boxed_outcomes WHERE session_id = :session_id ORDER BY out_id"
    " LIMIT :limit",
)

DELETE_OUTCOME = Statement("""
    DELETE FROM boxed_outcomes WHERE session_id = :session_id AND out_id = :out_id
""")

RETENTION = Retention(
    "boxed_outcomes",
    setting="messages.retention_ms",
    created="created_at",
    ended="created_at < :before",
)
