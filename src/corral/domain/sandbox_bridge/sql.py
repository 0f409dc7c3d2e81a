"""SQL of the outcomes that a sandbox's file does not show yet (table sandbox_outcomes)."""

from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.sandbox_bridge.model import SandboxOutcome

_OUTCOME = """
    session_id, out_id, 'msg_' || message_id AS message_id, question_id, reason, created_at
"""

# Returns no row when the message has an outcome already.
ADD_OUTCOME = Statement("""
    INSERT INTO sandbox_outcomes (id, session_id, out_id, message_id, question_id, reason,
        created_at)
    VALUES (:id, :session_id, :out_id, :message_id, :question_id, :reason, :now)
    ON CONFLICT (session_id, out_id) DO NOTHING RETURNING id
""")

OUTCOMES_OF_SESSION = Query(
    SandboxOutcome,
    f"SELECT {_OUTCOME} FROM sandbox_outcomes WHERE session_id = :session_id ORDER BY out_id"
    " LIMIT :limit",
)

DELETE_OUTCOME = Statement("""
    DELETE FROM sandbox_outcomes WHERE session_id = :session_id AND out_id = :out_id
""")

RETENTION = Retention(
    "sandbox_outcomes",
    setting="messages.retention_ms",
    created="created_at",
    ended="created_at < :before",
)
