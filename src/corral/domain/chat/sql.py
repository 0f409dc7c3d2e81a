"""SQL of chat, one section for each concept. See `model` for the records."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.chat.model import (
    CHANNEL_TRANSITIONS,
    DESTINATION_TRANSITIONS,
    MESSAGE_TRANSITIONS,
    PLACE_TRANSITIONS,
    SENDER_TRANSITIONS,
    WIRING_TRANSITIONS,
    Channel,
    Conversation,
    Destination,
    Message,
    MessageState,
    Person,
    Place,
    QuestionCard,
    Route,
    Sender,
    Wiring,
)
from corral.kernel.ids import parse_number
from corral.kernel.pagination import LAST_NUMBER

R = TypeVar("R", Channel, Place, Sender, Wiring, Destination)


def _list_oldest_first(table: StatefulTable[R], condition: str = "") -> Listing[R]:
    """Return the list of the rows that meet a condition, oldest first."""
    also = f"{condition} AND " if condition else ""
    query = Query(
        table.record,
        f"SELECT {table.columns} FROM {table.table} WHERE {also}id > :after"
        " ORDER BY id LIMIT :limit",
    )
    return Listing(query, start={"after": ""}, key=lambda record: (record.id,))


# -- channels -------------------------------------------------------------------------------------

_CHANNEL = columns_of(Channel)

CHANNEL_IDS = IdColumn("channel", "chn", "channels")
CHANNELS = StatefulTable(Channel, CHANNEL_TRANSITIONS, table="channels")

CHANNEL_BY_NAME = Query(
    Channel, f"SELECT {_CHANNEL} FROM channels WHERE state = 'active' AND name = :name"
)

ACTIVE_CHANNELS = Listing(
    Query(
        Channel,
        f"SELECT {_CHANNEL} FROM channels WHERE state = 'active' AND name > :after"
        " ORDER BY name LIMIT :limit",
    ),
    start={"after": ""},
    key=lambda channel: (channel.name,),
)

ALL_CHANNELS = _list_oldest_first(CHANNELS)

SET_CURSOR = Statement("UPDATE channels SET cursor = :cursor WHERE id = :id")

SET_HEALTH = Statement("""
    UPDATE channels SET last_error = :last_error, checked_at = :now WHERE id = :id
""")

# -- places ---------------------------------------------------------------------------------------

_PLACE = columns_of(Place)

PLACE_IDS = IdColumn("place", "plc", "places")
PLACES = StatefulTable(Place, PLACE_TRANSITIONS, table="places")

PLACE_BY_PLATFORM = Query(
    Place,
    f"SELECT {_PLACE} FROM places WHERE channel_id = :channel_id AND platform_id = :platform_id",
)

ALL_PLACES = _list_oldest_first(PLACES)

PLACES_OF_CHANNEL = Listing(
    Query(
        Place,
        f"""
        SELECT {_PLACE} FROM places WHERE channel_id = :channel_id AND platform_id > :after
        ORDER BY platform_id LIMIT :limit
        """,
    ),
    start={"after": ""},
    key=lambda place: (place.platform_id,),
)

RENAME_PLACE = Statement("UPDATE places SET name = :name, updated_at = :now WHERE id = :id")
SET_DIRECT = Statement("UPDATE places SET direct = :direct, updated_at = :now WHERE id = :id")
SET_AWAITS_SECRET = Statement("UPDATE places SET awaits_secret = :awaits_secret WHERE id = :id")
SET_PLACE_POLICY = Statement("UPDATE places SET policy = :policy, updated_at = :now WHERE id = :id")

# -- people and their senders ----------------------------------------------------------------------

_PERSON = columns_of(Person)

PERSON = Query(Person, f"SELECT {_PERSON} FROM people WHERE name = :name")

SET_PERSON = Query(
    Person,
    f"""
    INSERT INTO people (name, role, created_at, updated_at) VALUES (:name, :role, :now, :now)
    ON CONFLICT (name) DO UPDATE SET role = :role, updated_at = :now
    RETURNING {_PERSON}
""",
)

PEOPLE = Listing(
    Query(Person, f"SELECT {_PERSON} FROM people WHERE name > :after ORDER BY name LIMIT :limit"),
    start={"after": ""},
    key=lambda person: (person.name,),
)

_SENDER = columns_of(Sender)

SENDER_IDS = IdColumn("sender", "snd", "senders")
SENDERS = StatefulTable(Sender, SENDER_TRANSITIONS, table="senders")

SENDER_BY_PLATFORM = Query(
    Sender,
    f"SELECT {_SENDER} FROM senders WHERE channel_id = :channel_id AND platform_id = :platform_id",
)

ALL_SENDERS = _list_oldest_first(SENDERS)

RENAME_SENDER = Statement("UPDATE senders SET name = :name, updated_at = :now WHERE id = :id")

# -- wirings --------------------------------------------------------------------------------------

WIRING_IDS = IdColumn("wiring", "wir", "wirings")
WIRINGS = StatefulTable(Wiring, WIRING_TRANSITIONS, table="wirings")

# A wiring without a place covers all places of its channel.
WIRINGS_OF_PLACE = Query(
    Wiring,
    f"""
    SELECT {columns_of(Wiring)} FROM wirings WHERE state = 'active' AND channel_id = :channel_id
      AND coalesce(place_id, '') IN ('', :place_id)
    LIMIT :limit
""",
)

ACTIVE_WIRINGS = _list_oldest_first(WIRINGS, "state = 'active'")
ALL_WIRINGS = _list_oldest_first(WIRINGS)

# -- destinations ---------------------------------------------------------------------------------

_DESTINATION = columns_of(Destination)

DESTINATION_IDS = IdColumn("destination", "dst", "destinations")
DESTINATIONS = StatefulTable(Destination, DESTINATION_TRANSITIONS, table="destinations")

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

DESTINATIONS_OF_AGENT = Listing(
    Query(
        Destination,
        f"""
        SELECT {_DESTINATION} FROM destinations
        WHERE state = 'granted' AND agent_id = :agent_id AND name > :after
        ORDER BY name LIMIT :limit
        """,
    ),
    start={"after": ""},
    key=lambda destination: (destination.name,),
)

ALL_DESTINATIONS = _list_oldest_first(DESTINATIONS)

# -- messages -------------------------------------------------------------------------------------

_MESSAGE = columns_of(Message, id="'msg_' || seq", letter_id="'let_' || letter_id")


def build_message_key(message: Message) -> tuple[int]:
    """Return the sort key of a message: its number."""
    return (parse_number("msg", message.id),)


_decode_ids = msgspec.json.Decoder(list[str]).decode
_decode_routes = msgspec.json.Decoder(list[Route]).decode


def build_message(number: int, values: Mapping[str, Any], state: MessageState) -> Message:
    """Build the record of a row that was just inserted, without reading it back."""
    data = values.get("data")
    return Message(
        id=f"msg_{number}",
        channel_id=values["channel_id"],
        place_id=values["place_id"],
        thread=values.get("thread"),
        direction=values["direction"],
        kind=values["kind"],
        event_id=values["event_id"],
        platform_ids=_decode_ids(values["platform_ids"]),
        reply_to=values.get("reply_to"),
        sender_id=values.get("sender_id"),
        agent_id=values.get("agent_id"),
        run_id=values.get("run_id"),
        text=values["text"],
        data=msgspec.json.decode(data) if data is not None else None,
        state=state,
        reason=values.get("reason"),
        routes=_decode_routes(values["routes"]),
        letter_id=None,
        at=values["at"],
        created_at=values["created_at"],
        ended_at=values.get("ended_at"),
    )


MESSAGES = StatefulTable(
    Message,
    MESSAGE_TRANSITIONS,
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

MESSAGES_OF_PLACE = Listing(
    Query(
        Message,
        f"""
        SELECT {_MESSAGE} FROM messages WHERE place_id = :place_id AND seq < :before
        ORDER BY seq DESC LIMIT :limit
        """,
    ),
    start={"before": LAST_NUMBER},
    key=build_message_key,
)

ALL_MESSAGES = Listing(
    Query(
        Message,
        f"SELECT {_MESSAGE} FROM messages WHERE seq < :before ORDER BY seq DESC LIMIT :limit",
    ),
    start={"before": LAST_NUMBER},
    key=build_message_key,
)


def _list_held(column: str) -> Query[Message]:
    return Query(
        Message,
        f"SELECT {_MESSAGE} FROM messages WHERE state = 'held' AND {column} = :{column}"
        " ORDER BY seq LIMIT :limit",
    )


HELD_OF_SENDER = _list_held("sender_id")
HELD_OF_PLACE = _list_held("place_id")

HELD_OF_CHANNEL = Query(
    Message,
    f"""
    SELECT {_MESSAGE} FROM messages WHERE state = 'held'
      AND place_id IN (SELECT id FROM places WHERE channel_id = :channel_id)
    ORDER BY seq LIMIT :limit
""",
)

# Ordered by sender, then by arrival.
HELD_MESSAGES = Listing(
    Query(
        Message,
        f"""
        SELECT {_MESSAGE} FROM messages
        WHERE state = 'held' AND (sender_id, seq) > (:sender_id, :seq)
        ORDER BY sender_id, seq LIMIT :limit
        """,
    ),
    start={"sender_id": "", "seq": 0},
    key=lambda message: (str(message.sender_id), *build_message_key(message)),
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
    Message, f"UPDATE messages SET letter_id = :letter_id WHERE seq = :seq RETURNING {_MESSAGE}"
)

MESSAGES_RETENTION = Retention(
    "messages",
    setting="messages.retention_ms",
    key="seq",
    created="created_at",
    ended="ended_at < :before",
)

# -- conversations --------------------------------------------------------------------------------

_CONVERSATION = columns_of(Conversation)

CONVERSATION = Query(
    Conversation, f"SELECT {_CONVERSATION} FROM conversations WHERE session_id = :session_id"
)

CONVERSATION_BY_KEY = Query(
    Conversation,
    f"""
    SELECT {_CONVERSATION} FROM conversations
    WHERE agent_id = :agent_id AND place_id = :place_id AND thread = :thread
""",
)

# Conversations without a single place have the empty one.
CONVERSATIONS_OF_PLACE = Query(
    Conversation,
    f"""
    SELECT {_CONVERSATION} FROM conversations
    WHERE place_id = :place_id AND place_id <> ''  -- uses the partial index
    LIMIT :limit
""",
)

ADD_CONVERSATION = Query(
    Conversation,
    f"""
    INSERT INTO conversations (session_id, agent_id, place_id, thread, claimed_letters, seen_seq,
        created_at)
    VALUES (:session_id, :agent_id, :place_id, :thread, '[]', 0, :now)
    RETURNING {_CONVERSATION}
""",
)

BUSY_CONVERSATIONS = Query(
    Conversation,
    f"SELECT {_CONVERSATION} FROM conversations WHERE run_id IS NOT NULL AND run_id > :after"
    " ORDER BY run_id LIMIT :limit",
)

# Whether chat has any work: a channel, or a session that letters wake.
IS_USED = Statement("""
    SELECT CASE WHEN EXISTS (SELECT 1 FROM channels) OR EXISTS (SELECT 1 FROM conversations)
        THEN 1 ELSE 0 END
""")

COUNT_BUSY_CONVERSATIONS = Statement("SELECT count(*) FROM conversations WHERE run_id IS NOT NULL")

# Compare-and-set: returns no row while another run has the session. `seen_seq` only grows.
BEGIN_CHAT_TURN = Query(
    Conversation,
    f"""
    UPDATE conversations SET run_id = :run_id, claimed_letters = :claimed_letters,
        seen_seq = CASE WHEN seen_seq > :seen_seq THEN seen_seq ELSE :seen_seq END
    WHERE session_id = :session_id AND run_id IS NULL
    RETURNING {_CONVERSATION}
""",
)

CONVERSATION_OF_RUN = Query(
    Conversation, f"SELECT {_CONVERSATION} FROM conversations WHERE run_id = :run_id"
)

# Only for the current run; `seen_seq` only grows.
CONTINUE_CHAT_TURN = Query(
    Conversation,
    f"""
    UPDATE conversations SET claimed_letters = :claimed_letters,
        seen_seq = CASE WHEN seen_seq > :seen_seq THEN seen_seq ELSE :seen_seq END
    WHERE session_id = :session_id AND run_id = :run_id
    RETURNING {_CONVERSATION}
""",
)

# Returns no row when another process has ended the chat turn.
END_CHAT_TURN = Query(
    Conversation,
    f"""
    UPDATE conversations SET run_id = NULL, claimed_letters = '[]'
    WHERE session_id = :session_id AND run_id = :run_id
    RETURNING {_CONVERSATION}
""",
)

# A conversation with a run is kept: the run still has to end its chat turn.
DELETE_IDLE_CONVERSATION = Statement("""
    DELETE FROM conversations WHERE session_id = :session_id AND run_id IS NULL RETURNING session_id
""")

# Only forward, and only for the current run: a message of a sandboxed agent is ingested once.
ADVANCE_INGESTED = Query(
    Conversation,
    f"""
    UPDATE conversations SET ingested_seq = :seq
    WHERE session_id = :session_id AND run_id = :run_id AND ingested_seq < :seq
    RETURNING {_CONVERSATION}
""",
)

# -- cards ----------------------------------------------------------------------------------------

_CARD = columns_of(QuestionCard, message_id="'msg_' || message_id")

CARD = Query(QuestionCard, f"SELECT {_CARD} FROM question_cards WHERE question_id = :question_id")

OPEN_CARDS_OF_PLACE = Query(
    QuestionCard,
    f"SELECT {_CARD} FROM question_cards WHERE closed = 0 AND place_id = :place_id LIMIT :limit",
)

# Open cards whose question has ended. A question that retention deleted counts as ended. The
# filter is in SQL, so that any number of open questions cannot fill the limit.
ENDED_CARDS = Query(
    QuestionCard,
    f"""
    SELECT {_CARD} FROM question_cards WHERE closed = 0 AND NOT EXISTS (
        SELECT 1 FROM questions
        WHERE questions.id = question_cards.question_id AND questions.state = 'open'
    )
    ORDER BY place_id LIMIT :limit
""",
)

ADD_CARD = Query(
    QuestionCard,
    f"""
    INSERT INTO question_cards (question_id, place_id, session_id, message_id, secret, closed,
        created_at)
    VALUES (:question_id, :place_id, :session_id, :message_id, :secret, 0, :now)
    ON CONFLICT (question_id) DO NOTHING
    RETURNING {_CARD}
""",
)

# Returns no row when another transaction has closed it.
CLOSE_CARD = Query(
    QuestionCard,
    "UPDATE question_cards SET closed = 1 WHERE question_id = :question_id AND closed = 0"
    f" RETURNING {_CARD}",
)

CARDS_RETENTION = Retention(
    "question_cards",
    setting="messages.retention_ms",
    key="question_id",
    created="created_at",
    ended="closed = 1 AND created_at < :before",
)

# -- routing: everything about an inbound event in two statements ---------------------------------

# The channel, place and sender of an event, each NULL until it is recorded; the number of the
# message if the event was stored before; and whether the place shows an open question. One
# statement, because every inbound message needs it.
EVENT_CONTEXT = Statement(f"""
    SELECT {columns_of(Channel, "channels")}, {columns_of(Place, "places")},
        {columns_of(Sender, "senders")}, messages.seq,
        (SELECT min(1) FROM question_cards
            WHERE question_cards.closed = 0 AND question_cards.place_id = places.id)
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
#   with `conversations` uses the key of `Wiring.build_conversation_key`.
# A wiring without a place covers all places of its channel.
LISTENERS_OF_PLACE = Statement(f"""
    SELECT {columns_of(Wiring, "wirings")},
        CASE WHEN agents.state = 'active' THEN agents.name END,
        destinations.id,
        CASE WHEN conversations.run_id IS NOT NULL OR sessions.state = 'open'
            THEN conversations.session_id END
    FROM wirings
    LEFT JOIN agents ON agents.id = wirings.agent_id
    LEFT JOIN destinations
        ON destinations.agent_id = wirings.agent_id AND destinations.place_id = :place_id
    LEFT JOIN conversations ON conversations.agent_id = wirings.agent_id
        AND conversations.place_id = CASE wirings.mode WHEN 'agent' THEN '' ELSE :place_id END
        AND conversations.thread = CASE wirings.mode WHEN 'thread' THEN :thread ELSE '' END
    LEFT JOIN sessions ON sessions.id = conversations.session_id
    WHERE wirings.state = 'active' AND wirings.channel_id = :channel_id
      AND coalesce(wirings.place_id, '') IN ('', :place_id)
    LIMIT :limit
""")

# -- imports --------------------------------------------------------------------------------------

CHANNEL_IDS_OF_PLACES = Statement("SELECT id, channel_id FROM places WHERE id {is_listed}")

DESTINATION_ID = Statement("""
    SELECT id FROM destinations WHERE agent_id = :agent AND place_id = :place
""")
