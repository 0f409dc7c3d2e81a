"""SQL of idempotency keys."""

from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.idempotency.model import StoredResponse

BEGIN = Statement("""
    INSERT INTO idempotency_keys (id, token_id, key, fingerprint, created_at)
    VALUES (:id, :token_id, :key, :fingerprint, :now)
    ON CONFLICT (token_id, key) DO NOTHING RETURNING id
""")

GET = Query(
    StoredResponse,
    """
    SELECT id, fingerprint, response, created_at FROM idempotency_keys
    WHERE token_id = :token_id AND key = :key
""",
)

SET_RESPONSE = Statement(
    "UPDATE idempotency_keys SET response = :response WHERE token_id = :token_id AND key = :key"
)

DELETE_PENDING = Statement(
    "DELETE FROM idempotency_keys WHERE token_id = :token_id AND key = :key AND response IS NULL"
)

RETENTION = Retention(
    "idempotency_keys",
    setting="idempotency.retention_ms",
    created="created_at",
    ended="created_at < :before",
)
