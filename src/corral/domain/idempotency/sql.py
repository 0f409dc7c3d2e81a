"""SQL of idempotency keys."""

from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.idempotency.model import StoredResponse

BEGIN = Statement("""
    INSERT INTO answers (id, token_id, key, fingerprint, created_at)
    VALUES (:id, :token_id, :key, :fingerprint, :now)
    ON CONFLICT (token_id, key) DO NOTHING RETURNING id
""")

GET = Query(
    StoredResponse,
    """
    SELECT id, fingerprint, body, created_at FROM answers WHERE token_id = :token_id AND key = :key
""",
)

SET_RESPONSE = Statement(
    "UPDATE answers SET body = :body WHERE token_id = :token_id AND key = :key"
)

DELETE_PENDING = Statement(
    "DELETE FROM answers WHERE token_id = :token_id AND key = :key AND body IS NULL"
)

RETENTION = Retention(
    "answers", setting="answers.retention_ms", created="created_at", ended="created_at < :before"
)
