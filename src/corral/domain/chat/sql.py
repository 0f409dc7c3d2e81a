from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable
from corral.domain.chat.model import (
    CHANNEL_MOVES,
    DESTINATION_MOVES,
    MESSAGE_MOVES,
    PLACE_MOVES,
    SENDER_MOVES,
    WIRING_MOVES,
    Channel,
    Destination,
    Message,
    Person,
    Place,
    Sender,
    Talk,
    Wiring,
    fresh_message,
)


def prefixed(table: str, columns: str) -> str:
    """Columns of a table in a statement that reads several."""
    return ", ".join(f"{table}.{name.strip()}" for name in columns.split(","))


# -- channels -------------------------------------------------------------------------------------

_CHANNEL = """id, name, kind, policy, in_doubt, config, secrets, state, cursor, trouble, looked_at,
    created_at, created_by, ended_at"""

CHANNEL_IDS = IdColumn("channel", "chn", "channels")
CHANNELS = StateTable(Channel, CHANNEL_MOVES, table="channels", columns=_CHANNEL)

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
PLACES = StateTable(Place, PLACE_MOVES, table="places", columns=_PLACE)

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

NAME_PLACE = Statement("UPDATE places SET name = :name, updated_at = :now WHERE id = :id")
SET_DIRECT = Statement("UPDATE places SET direct = :direct, updated_at = :now WHERE id = :id")
GUARD_PLACE = Statement("UPDATE places SET guarded = :guarded WHERE id = :id")
SET_PLACE_POLICY = Statement("UPDATE places SET policy = :policy, updated_at = :now WHERE id = :id")

# -- people ---------------------------------------------------------------------------------------

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
SENDERS = StateTable(Sender, SENDER_MOVES, table="senders", columns=_SENDER)

SENDER_BY_PLATFORM = Query(
    Sender,
    f"SELECT {_SENDER} FROM senders WHERE channel_id = :channel_id AND platform_id = :platform_id",
)

ALL_SENDERS = Query(
    Sender, f"SELECT {_SENDER} FROM senders WHERE id > :after ORDER BY id LIMIT :limit"
)

NAME_SENDER = Statement("UPDATE senders SET name = :name, updated_at = :now WHERE id = :id")

# -- wirings --------------------------------------------------------------------------------------

_WIRING = """id, channel_id, place_id, agent_id, trigger, pattern, scope, unheard, mode, priority,
    project_id, state, created_at, created_by, ended_at"""

WIRING_IDS = IdColumn("wiring", "wir", "wirings")
WIRINGS = StateTable(Wiring, WIRING_MOVES, table="wirings", columns=_WIRING)

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
DESTINATIONS = StateTable(
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

MESSAGES = StateTable(
    Message,
    MESSAGE_MOVES,
    table="messages",
    columns=_MESSAGE,
    key="seq",
    number_of="msg",
    fresh=fresh_message,
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

HELD = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE state = 'held' AND (sender_id, seq) > (:sender, :seq)
    ORDER BY sender_id, seq LIMIT :limit
""",
)

QUEUED = Query(
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

SENT_IN_RUN = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE run_id = :run_id AND seq > :after
    ORDER BY seq LIMIT :limit
""",
)

SET_LETTER = Query(
    Message, f"UPDATE messages SET letter = :letter WHERE seq = :seq RETURNING {_MESSAGE}"
)

KEPT = Retention(
    "messages", setting="messages.keep_ms", key="seq", born="created_at", over="ended_at < :before"
)

# -- talks ----------------------------------------------------------------------------------------

_TALK = "session_id, agent_id, place_id, thread, run_id, letters, seen, taken, created_at"

TALK = Query(Talk, f"SELECT {_TALK} FROM talks WHERE session_id = :session_id")

TALK_OF = Query(
    Talk,
    f"""
    SELECT {_TALK} FROM talks
    WHERE agent_id = :agent_id AND place_id = :place_id AND thread = :thread
""",
)

TALKS_OF_PLACE = Query(
    Talk,
    f"""
    SELECT {_TALK} FROM talks WHERE place_id = :place_id AND place_id <> '' LIMIT :limit
""",
)

ADD_TALK = Query(
    Talk,
    f"""
    INSERT INTO talks (session_id, agent_id, place_id, thread, letters, seen, created_at)
    VALUES (:session_id, :agent_id, :place_id, :thread, '[]', 0, :now)
    RETURNING {_TALK}
""",
)

BUSY_TALKS = Query(
    Talk,
    f"SELECT {_TALK} FROM talks WHERE run_id IS NOT NULL AND run_id > :after"
    " ORDER BY run_id LIMIT :limit",
)

IS_USED = Statement("""
    SELECT CASE WHEN EXISTS (SELECT 1 FROM channels) OR EXISTS (SELECT 1 FROM talks)
        THEN 1 ELSE 0 END
""")

COUNT_BUSY = Statement("SELECT count(*) FROM talks WHERE run_id IS NOT NULL")

BEGIN_TURN = Query(
    Talk,
    f"""
    UPDATE talks SET run_id = :run_id, letters = :letters,
        seen = CASE WHEN seen > :seen THEN seen ELSE :seen END
    WHERE session_id = :session_id AND run_id IS NULL
    RETURNING {_TALK}
""",
)

TALK_OF_RUN = Query(Talk, f"SELECT {_TALK} FROM talks WHERE run_id = :run_id")

SET_LETTERS = Query(
    Talk,
    f"""
    UPDATE talks SET letters = :letters, seen = CASE WHEN seen > :seen THEN seen ELSE :seen END
    WHERE session_id = :session_id AND run_id = :run_id
    RETURNING {_TALK}
""",
)

END_TURN = Query(
    Talk,
    f"""
    UPDATE talks SET run_id = NULL, letters = '[]'
    WHERE session_id = :session_id AND run_id = :run_id
    RETURNING {_TALK}
""",
)

DROP_TALK = Statement("""
    DELETE FROM talks WHERE session_id = :session_id AND run_id IS NULL RETURNING session_id
""")

# -- boxed agents --------------------------------------------------------------------------------

TAKE = Query(
    Talk,
    f"UPDATE talks SET taken = :seq"
    f" WHERE session_id = :session_id AND run_id = :run_id AND taken < :seq RETURNING {_TALK}",
)

# -- what arrives ---------------------------------------------------------------------------------

# What is known where an event arrives: its channel, place and sender, whether it came before, and
# whether a question is shown in the place. One look, since every message costs it.
ARRIVAL = Statement(f"""
    SELECT {prefixed("channels", _CHANNEL)}, {prefixed("places", _PLACE)},
        {prefixed("senders", _SENDER)}, messages.seq,
        (SELECT min(1) FROM cards WHERE cards.settled = 0 AND cards.place_id = places.id)
    FROM channels
    LEFT JOIN places ON places.channel_id = channels.id AND places.platform_id = :place
    LEFT JOIN senders ON senders.channel_id = channels.id AND senders.platform_id = :sender
    LEFT JOIN messages ON messages.channel_id = channels.id AND messages.event_id = :event_id
    WHERE channels.id = :channel_id
""")

# Each wiring that covers a place, with what else decides who hears there: the agent's name while it
# can be given work, whether it may have a destination, and its session there, unless that is over.
LISTENERS = Statement(f"""
    SELECT {prefixed("wirings", _WIRING)},
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

CHANNELS_OF = Statement("SELECT id, channel_id FROM places WHERE id {is_listed}")

DESTINATION_TO = Statement("""
    SELECT id FROM destinations WHERE agent_id = :agent AND place_id = :place
""")
