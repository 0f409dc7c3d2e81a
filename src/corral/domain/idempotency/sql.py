from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.idempotency.model import Answer

BEGIN = Statement("""
    INSERT INTO answers (id, token_id, key, fingerprint, created_at)
    VALUES (:id, :token_id, :key, :fingerprint, :now)
    ON CONFLICT (token_id, key) DO NOTHING RETURNING id
""")

GET = Query(
    Answer,
    """
    SELECT id, fingerprint, body, created_at FROM answers WHERE token_id = :token_id AND key = :key
""",
)

KEEP = Statement("UPDATE answers SET body = :body WHERE token_id = :token_id AND key = :key")

DROP = Statement("DELETE FROM answers WHERE token_id = :token_id AND key = :key AND body IS NULL")

KEPT = Retention(
    "answers", setting="answers.keep_ms", born="created_at", over="created_at < :before"
)
