from corral.db.retention import Retention
from corral.db.statement import Query
from corral.domain.chat.model import Card

_CARD = """question_id, place_id, session_id, 'msg_' || message AS message_id, secret, settled,
    created_at"""

CARD = Query(Card, f"SELECT {_CARD} FROM cards WHERE question_id = :question_id")

CARDS_OF_PLACE = Query(
    Card,
    f"SELECT {_CARD} FROM cards WHERE settled = 0 AND place_id = :place_id LIMIT :limit",
)

# Those whose question is over, or was forgotten since; however many others are still open.
ENDED_CARDS = Query(
    Card,
    f"""
    SELECT {_CARD} FROM cards WHERE settled = 0 AND NOT EXISTS (
        SELECT 1 FROM questions WHERE questions.id = cards.question_id AND questions.state = 'open'
    )
    ORDER BY place_id LIMIT :limit
""",
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
