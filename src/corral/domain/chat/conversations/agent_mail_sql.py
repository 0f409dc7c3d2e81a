from corral.db.retention import Retention
from corral.db.statement import Query
from corral.domain.mail.model import Exchange

_EXCHANGE = "letter_id, correlation_id, hops, answers, agent_id, reply_to, read_by, created_at"

EXCHANGE = Query(Exchange, f"SELECT {_EXCHANGE} FROM exchanges WHERE letter_id = :letter_id")

# As long as its letter, which may wait for longer than a letter is kept.
EXCHANGES_KEPT = Retention(
    "exchanges",
    setting="mail.keep_ms",
    key="letter_id",
    born=None,
    over="""created_at < :before AND NOT EXISTS (
        SELECT 1 FROM letters WHERE seq = CAST(substr(letter_id, 5) AS {integer})
        AND (ended_at IS NULL OR ended_at >= :before))""",
)
