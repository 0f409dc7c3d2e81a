"""SQL of chat, one section for each concept. See `model` for the records."""

from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.db.transitions import StatefulTable
from corral.domain.chat.model import (
    CHANNEL_MOVES,
    DESTINATION_MOVES,
    MESSAGE_MOVES,
    PLACE_MOVES,
    SENDER_MOVES,
    WIRING_MOVES,
    Card,
    Channel,
    Conversation,
    Destination,
    Message,
    Person,
    Place,
    Sender,
    Wiring,
    build_message,
)


def qualify(table: str, columns: str) -> str:
    """Prefix each column with its table, for statements that join several."""
    return ", ".join(f"{table}.{name.strip()}" for name in columns.split(","))


# -- channels -------------------------------------------------------------------------------------

_CHANNEL = """id, name, kind, policy, in_doubt, config, secrets, state, cursor, trouble, looked_at,
    created_at, created_by, ended_at"""

CHANNEL_IDS = IdColumn("channel", "chn", "channels")
CHANNELS = StatefulTable(Channel, CHANNEL_MOVES, table="channels", columns=_CHANNEL)

CHANNEL_BY_NAME = Query(
    Channel, f"SELECT {_CHANNEL} FROM channels WHERE state = 'active' AND name = :name"
)

ACTIVE_CHANNELS = Query(
    Channel,
    f"SELECT {_CHANNEL} FROM channels WHERE state = 'active' AND name > :after"
    " ORDER BY name LIMIT :limit",
)

ALL_CHANNELS = Query(
    Channel, f"SELECT {_CHANNEL} FROM channels WHERE id > :after ORDER BY id LIMIT :limit"
)

SET_CURSOR = Statement("UPDATE channels SET cursor = :cursor WHERE id = :id")

SET_TROUBLE = Statement("""
    UPDATE channels SET trouble = :trouble, looked_at = :now WHERE id = :id
""")

# -- places ---------------------------------------------------------------------------------------

_PLACE = (
    """id, channel_id, platform_id, name, direct, policy, guarded, state, created_at, updated_at"""
)

PLACE_IDS = IdColumn("place", "plc", "places")
PLACES = StatefulTable(Place, PLACE_MOVES, table="places", columns=_PLACE)

PLACE_BY_PLATFORM = Query(
    Place,
    f"SELECT {_PLACE} FROM places WHERE channel_id = :channel_id AND platform_id = :platform_id",
)

ALL_PLACES = Query(Place, f"SELECT {_PLACE} FROM places WHERE id > :after ORDER BY id LIMIT :limit")

PLACES_OF_CHANNEL = Query(
    Place,
    f"""
    SELECT {_PLACE} FROM places WHERE channel_id = :channel_id AND platform_id > :after
    ORDER BY platform_id LIMIT :limit
""",
)

RENAME_PLACE = Statement("UPDATE places SET name = :name, updated_at = :now WHERE id = :id")
SET_DIRECT = Statement("UPDATE places SET direct = :direct, updated_at = :now WHERE id = :id")
SET_PLACE_GUARDED = Statement("UPDATE places SET guarded = :guarded WHERE id = :id")
SET_PLACE_POLICY = Statement("UPDATE places SET policy = :policy, updated_at = :now WHERE id = :id")

# -- people and their accounts ---------------------------------------------------------------------

_PERSON = "name, role, created_at, updated_at"

PERSON = Query(Person, f"SELECT {_PERSON} FROM people WHERE name = :name")

SET_PERSON = Query(
    Person,
    f"""
    INSERT INTO people (name, role, created_at, updated_at) VALUES (:name, :role, :now, :now)
    ON CONFLICT (name) DO UPDATE SET role = :role, updated_at = :now
    RETURNING {_PERSON}
""",
)

PEOPLE = Query(
    Person, f"SELECT {_PERSON} FROM people WHERE name > :after ORDER BY name LIMIT :limit"
)

_SENDER = "id, channel_id, platform_id, name, person, state, created_at, updated_at"

SENDER_IDS = IdColumn("sender", "snd", "senders")
SENDERS = StatefulTable(Sender, SENDER_MOVES, table="senders", columns=_SENDER)

SENDER_BY_PLATFORM = Query(
    Sender,
    f"SELECT {_SENDER} FROM senders WHERE channel_id = :channel_id AND platform_id = :platform_id",
)

ALL_SENDERS = Query(
    Sender, f"SELECT {_SENDER} FROM senders WHERE id > :after ORDER BY id LIMIT :limit"
)

RENAME_SENDER = Statement("UPDATE senders SET name = :name, updated_at = :now WHERE id = :id")

# -- wirings --------------------------------------------------------------------------------------

_WIRING = """id, channel_id, place_id, agent_id, trigger, pattern, scope, unheard, mode, priority,
    project_id, state, created_at, created_by, ended_at"""

WIRING_IDS = IdColumn("wiring", "wir", "wirings")
WIRINGS = StatefulTable(Wiring, WIRING_MOVES, table="wirings", columns=_WIRING)

# A wiring without a place covers all places of its channel.
WIRINGS_OF_PLACE = Query(
    Wiring,
    f"""
    SELECT {_WIRING} FROM wirings WHERE state = 'active' AND channel_id = :channel_id
      AND coalesce(place_id, '') IN ('', :place_id)
    LIMIT :limit
""",
)

ACTIVE_WIRINGS = Query(
    Wiring,
    f"""
    SELECT {_WIRING} FROM wirings WHERE state = 'active' AND id > :after ORDER BY id LIMIT :limit
""",
)

ALL_WIRINGS = Query(
    Wiring, f"SELECT {_WIRING} FROM wirings WHERE id > :after ORDER BY id LIMIT :limit"
)

# -- destinations ---------------------------------------------------------------------------------

_DESTINATION = "id, agent_id, name, place_id, state, created_at, created_by, ended_at"

DESTINATION_IDS = IdColumn("destination", "dst", "destinations")
DESTINATIONS = StatefulTable(
    Destination, DESTINATION_MOVES, table="destinations", columns=_DESTINATION
)

DESTINATION_OF = Query(
    Destination,
    f"SELECT {_DESTINATION} FROM destinations WHERE agent_id = :agent_id AND place_id = :place_id",
)

DESTINATION_BY_NAME = Query(
    Destination,
    f"""
    SELECT {_DESTINATION} FROM destinations
    WHERE state = 'granted' AND agent_id = :agent_id AND name = :name
""",
)

DESTINATIONS_OF_AGENT = Query(
    Destination,
    f"""
    SELECT {_DESTINATION} FROM destinations
    WHERE state = 'granted' AND agent_id = :agent_id AND name > :after ORDER BY name LIMIT :limit
""",
)

ALL_DESTINATIONS = Query(
    Destination,
    f"SELECT {_DESTINATION} FROM destinations WHERE id > :after ORDER BY id LIMIT :limit",
)

# -- messages -------------------------------------------------------------------------------------

_MESSAGE = """'msg_' || seq AS id, channel_id, place_id, thread, direction, kind, event_id,
    platform_ids, reply_to, sender_id, agent_id, run_id, text, data, state, reason, routes,
    'let_' || letter AS letter_id, at, created_at, ended_at"""

MESSAGES = StatefulTable(
    Message,
    MESSAGE_MOVES,
    table="messages",
    columns=_MESSAGE,
    key="seq",
    id_prefix="msg",
    make_record=build_message,
)

MESSAGE_BY_EVENT = Query(
    Message,
    f"SELECT {_MESSAGE} FROM messages WHERE channel_id = :channel_id AND event_id = :event_id",
)

NUMBERS_BY_EVENT = Statement("""
    SELECT event_id, seq FROM messages WHERE channel_id = :channel_id AND event_id {is_listed}
""")

MESSAGES_OF_PLACE = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE place_id = :place_id AND seq < :before
    ORDER BY seq DESC LIMIT :limit
""",
)

ALL_MESSAGES = Query(
    Message, f"SELECT {_MESSAGE} FROM messages WHERE seq < :before ORDER BY seq DESC LIMIT :limit"
)


def _held(column: str) -> Query[Message]:
    return Query(
        Message,
        f"SELECT {_MESSAGE} FROM messages WHERE state = 'held' AND {column} = :{column}"
        " ORDER BY seq LIMIT :limit",
    )


HELD_OF_SENDER = _held("sender_id")
HELD_OF_PLACE = _held("place_id")

HELD_OF_CHANNEL = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE state = 'held'
      AND place_id IN (SELECT id FROM places WHERE channel_id = :channel_id)
    ORDER BY seq LIMIT :limit
""",
)

# Ordered by account, then by arrival.
HELD_MESSAGES = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE state = 'held' AND (sender_id, seq) > (:sender, :seq)
    ORDER BY sender_id, seq LIMIT :limit
""",
)

QUEUED_MESSAGES = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE state = 'queued' AND seq > :after
    ORDER BY seq LIMIT :limit
""",
)

QUEUED_OF_PLACE = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE state = 'queued' AND place_id = :place_id
    ORDER BY seq LIMIT :limit
""",
)

MESSAGES_OF_RUN = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE run_id = :run_id AND seq > :after
    ORDER BY seq LIMIT :limit
""",
)

SET_LETTER = Query(
    Message, f"UPDATE messages SET letter = :letter WHERE seq = :seq RETURNING {_MESSAGE}"
)

MESSAGES_RETENTION = Retention(
    "messages",
    setting="messages.retention_ms",
    key="seq",
    created="created_at",
    ended="ended_at < :before",
)

# -- conversations (table talks) -------------------------------------------------------------------

_CONVERSATION = "session_id, agent_id, place_id, thread, run_id, letters, seen, taken, created_at"

CONVERSATION = Query(
    Conversation, f"SELECT {_CONVERSATION} FROM talks WHERE session_id = :session_id"
)

CONVERSATION_BY_ADDRESS = Query(
    Conversation,
    f"""
    SELECT {_CONVERSATION} FROM talks
    WHERE agent_id = :agent_id AND place_id = :place_id AND thread = :thread
""",
)

# Conversations without a single place have the empty one.
CONVERSATIONS_OF_PLACE = Query(
    Conversation,
    f"""
    SELECT {_CONVERSATION} FROM talks WHERE place_id = :place_id AND place_id <> '' LIMIT :limit
""",
)

ADD_CONVERSATION = Query(
    Conversation,
    f"""
    INSERT INTO talks (session_id, agent_id, place_id, thread, letters, seen, created_at)
    VALUES (:session_id, :agent_id, :place_id, :thread, '[]', 0, :now)
    RETURNING {_CONVERSATION}
""",
)

BUSY_CONVERSATIONS = Query(
    Conversation,
    f"SELECT {_CONVERSATION} FROM talks WHERE run_id IS NOT NULL AND run_id > :after"
    " ORDER BY run_id LIMIT :limit",
)

# Whether the gateway has any work: a channel, or a session that letters wake.
IS_USED = Statement("""
    SELECT CASE WHEN EXISTS (SELECT 1 FROM channels) OR EXISTS (SELECT 1 FROM talks)
        THEN 1 ELSE 0 END
""")

COUNT_BUSY_CONVERSATIONS = Statement("SELECT count(*) FROM talks WHERE run_id IS NOT NULL")

# Compare-and-set: returns no row while another run has the session. `seen` only grows.
BEGIN_TURN = Query(
    Conversation,
    f"""
    UPDATE talks SET run_id = :run_id, letters = :letters,
        seen = CASE WHEN seen > :seen THEN seen ELSE :seen END
    WHERE session_id = :session_id AND run_id IS NULL
    RETURNING {_CONVERSATION}
""",
)

CONVERSATION_OF_RUN = Query(
    Conversation, f"SELECT {_CONVERSATION} FROM talks WHERE run_id = :run_id"
)

# Only for the current run; `seen` only grows.
SET_LETTERS = Query(
    Conversation,
    f"""
    UPDATE talks SET letters = :letters, seen = CASE WHEN seen > :seen THEN seen ELSE :seen END
    WHERE session_id = :session_id AND run_id = :run_id
    RETURNING {_CONVERSATION}
""",
)

# Returns no row when another process has ended the turn.
END_TURN = Query(
    Conversation,
    f"""
    UPDATE talks SET run_id = NULL, letters = '[]'
    WHERE session_id = :session_id AND run_id = :run_id
    RETURNING {_CONVERSATION}
""",
)

# A conversation with a run is kept: the run still has to end its turn.
DELETE_IDLE_CONVERSATION = Statement("""
    DELETE FROM talks WHERE session_id = :session_id AND run_id IS NULL RETURNING session_id
""")

# Only forward, and only for the current run: a message of a sandboxed agent is ingested once.
ADVANCE_INGESTED = Query(
    Conversation,
    f"""
    UPDATE talks SET taken = :seq
    WHERE session_id = :session_id AND run_id = :run_id AND taken < :seq
    RETURNING {_CONVERSATION}
""",
)

# -- cards ----------------------------------------------------------------------------------------

_CARD = """question_id, place_id, session_id, 'msg_' || message AS message_id, secret, settled,
    created_at"""

CARD = Query(Card, f"SELECT {_CARD} FROM cards WHERE question_id = :question_id")

OPEN_CARDS_OF_PLACE = Query(
    Card,
    f"SELECT {_CARD} FROM cards WHERE settled = 0 AND place_id = :place_id LIMIT :limit",
)

# Unsettled cards whose question has ended. A question that retention deleted counts as ended. The
# filter is in SQL, so that any number of open questions cannot fill the limit.
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

# Returns no row when another transaction has settled the card.
SETTLE_CARD = Query(
    Card,
    "UPDATE cards SET settled = 1 WHERE question_id = :question_id AND settled = 0"
    f" RETURNING {_CARD}",
)

CARDS_RETENTION = Retention(
    "cards",
    setting="messages.retention_ms",
    key="question_id",
    created="created_at",
    ended="settled = 1 AND created_at < :before",
)

# -- routing: everything about an inbound event in two statements ---------------------------------

# The channel, place and sender of an event, each NULL until it is recorded; the number of the
# message if the event was stored before; and whether the place shows an open question. One
# statement, because every inbound message needs it.
EVENT_CONTEXT = Statement(f"""
    SELECT {qualify("channels", _CHANNEL)}, {qualify("places", _PLACE)},
        {qualify("senders", _SENDER)}, messages.seq,
        (SELECT min(1) FROM cards WHERE cards.settled = 0 AND cards.place_id = places.id)
    FROM channels
    LEFT JOIN places ON places.channel_id = channels.id AND places.platform_id = :place
    LEFT JOIN senders ON senders.channel_id = channels.id AND senders.platform_id = :sender
    LEFT JOIN messages ON messages.channel_id = channels.id AND messages.event_id = :event_id
    WHERE channels.id = :channel_id
""")

# The wirings that cover a place, and for each:
# - the agent's name, NULL when it is retired and cannot be given work;
# - its destination in any state, because a revoked one is not granted again;
# - its session, NULL when one must be opened. A closed session counts while a run uses it. The join
#   with `talks` uses the key of `router.conversation_key`.
# A wiring without a place covers all places of its channel.
LISTENERS_OF_PLACE = Statement(f"""
    SELECT {qualify("wirings", _WIRING)},
        CASE WHEN agents.state = 'active' THEN agents.name END,
        destinations.id,
        CASE WHEN talks.run_id IS NOT NULL OR sessions.state = 'open' THEN talks.session_id END
    FROM wirings
    LEFT JOIN agents ON agents.id = wirings.agent_id
    LEFT JOIN destinations
        ON destinations.agent_id = wirings.agent_id AND destinations.place_id = :place_id
    LEFT JOIN talks ON talks.agent_id = wirings.agent_id
        AND talks.place_id = CASE wirings.mode WHEN 'agent' THEN '' ELSE :place_id END
        AND talks.thread = CASE wirings.mode WHEN 'thread' THEN :thread ELSE '' END
    LEFT JOIN sessions ON sessions.id = talks.session_id
    WHERE wirings.state = 'active' AND wirings.channel_id = :channel_id
      AND coalesce(wirings.place_id, '') IN ('', :place_id)
    LIMIT :limit
""")

# -- imports --------------------------------------------------------------------------------------

CHANNEL_IDS_OF_PLACES = Statement("SELECT id, channel_id FROM places WHERE id {is_listed}")

DESTINATION_ID = Statement("""
    SELECT id FROM destinations WHERE agent_id = :agent AND place_id = :place
""")
