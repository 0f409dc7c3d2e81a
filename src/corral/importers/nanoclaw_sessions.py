"""nanoclaw: the two files of a session, of which each has one writer.

`inbound.db` has what came to the agent, and what became of its answers; `outbound.db` has those
answers, and what it has seen to.
"""

from collections.abc import Iterable, Iterator

from corral.importers import records
from corral.importers.mapping import KEPT, KEY, Table, Thing
from corral.importers.nanoclaw_turns import INCOMING_TURNS, OUTGOING_TURNS, QUESTION_TEXTS
from corral.importers.row import Row
from corral.importers.source.database import key_of

_IN = {
    "pending": "expired",
    "paused": "expired",
    "completed": "done",
    "failed": "dead",
}
_OUT = {"delivered": "done", "failed": "dead"}
PROVIDERS = ("claude", "codex", "opencode", "copilot", "gemini", "qwen")
_WAITED = "it was still waiting when it was imported from nanoclaw"
MAX_BODY = 1 << 20


def _session_of(row: Row) -> str | None:
    found = row.id_of("sessions", row.inside)
    if found is None:
        row.troubles.append("its session is not there")
    return found


def _own_session(row: Row) -> Iterator[tuple[str, str]]:
    yield "sessions", row.inside


def _own_session_and_place(row: Row) -> Iterator[tuple[str, str]]:
    yield "sessions", row.inside
    yield "messaging_groups.platform_id", _address_of(row)


def _address_of(row: Row) -> str:
    return key_of([row.plain_text("channel_type"), row.plain_text("platform_id")])


def _ack(row: Row) -> Iterable[Thing]:
    told = (row.text("status"), row.moment("status_changed"))
    row.memo["ack", row.text("message_id") or ""] = told
    return ()


def _delivery(row: Row) -> Iterable[Thing]:
    state = row.choice("status", _OUT, "dead")
    row.memo["delivered", row.text("message_out_id") or ""] = (state, row.moment("delivered_at"))
    return ()


def _content(row: Row) -> object:
    """The content as it is meant: mostly JSON, else the text itself."""
    text = row.text("content", most=MAX_BODY)
    before = len(row.troubles)
    found = row.json("content", object, None)
    if found is None and len(row.troubles) > before:
        row.troubles[before:] = ["content is no JSON; it is kept as text"]
        return text
    return found


def _incoming(row: Row) -> Iterable[Thing]:
    session = _session_of(row)
    if session is None:
        return
    at = row.born("timestamp")
    state = row.choice("status", _IN, "expired")
    acked, when = row.memo.get(("ack", row.key), (None, None))
    if acked == "completed" and state == "expired":
        state = "done"
    rule = row.line("recurrence")
    due = row.moment("process_after")
    body = {
        "kind": row.line("kind"),
        "seq": row.whole("seq"),
        "content": _content(row),
        "platform_id": row.line("platform_id", most=400),
        "channel_type": row.line("channel_type"),
        "thread_id": row.line("thread_id", most=400),
    }
    mailbox = f"session:{session}"
    if rule and len(rule.split()) == 5 and state == "expired":
        yield records.schedule(
            row,
            mailbox,
            at,
            "paused",
            kind="cron",
            rule=rule,
            body=records.json_of(body),
            next_at=due,
            last_error=_WAITED,
        )
        return
    if rule:
        row.keep("recurrence")
    yield records.letter(
        row,
        mailbox,
        body,
        at,
        state,
        when,
        due_at=due or at,
        attempts=row.whole("tries", least=0) or 0,
        last_error=_WAITED if state == "expired" else None,
    )


def _outgoing(row: Row) -> Iterable[Thing]:
    session = _session_of(row)
    if session is None:
        return
    at = row.born("timestamp")
    kind = row.line("channel_type")
    target = row.line("platform_id", most=400)
    place = row.id_of("messaging_groups.platform_id", _address_of(row))
    state, when = row.memo.get(("delivered", row.key), ("expired", None))
    body = {
        "kind": row.line("kind"),
        "seq": row.whole("seq"),
        "content": _content(row),
        "platform_id": target,
        "channel_type": kind,
        "thread_id": row.line("thread_id", most=400),
        "in_reply_to": row.line("in_reply_to", most=400),
    }
    mailbox = f"place:{place}" if place else f"session:{session}"
    last_error = "nanoclaw had not told that it was delivered" if state == "expired" else None
    yield records.letter(
        row,
        mailbox,
        body,
        at,
        state,
        when,
        sender=f"session:{session}",
        due_at=row.moment("deliver_after") or at,
        last_error=last_error,
    )


def _destination(row: Row) -> Iterable[Thing]:
    place = row.id_of("messaging_groups.platform_id", _address_of(row))
    session = row.id_of("sessions", row.inside)
    agent = row.id_of("agent_groups", row.around.get("agent_group_id", ""))
    name = row.line("name")
    if place is None or agent is None or name is None or session is None:
        row.explain("it names a chat that does not exist here")
        return
    yield Thing(
        "destinations",
        {
            "id": row.new_id("dst", row.now),
            "agent_id": agent,
            "name": name,
            "place_id": place,
            "state": "revoked",
            "created_at": row.now,
            "created_by": "import",
            "ended_at": row.now,
        },
    )


def _own_agent_and_place(row: Row) -> Iterator[tuple[str, str]]:
    yield from _own_session_and_place(row)
    yield "agent_groups", row.around.get("agent_group_id", "")


def _value(row: Row) -> Iterable[Thing]:
    session = _session_of(row)
    name = row.line("key")
    if session is None or name is None:
        row.explain("it has no name")
        return
    text = row.text("value") or ""
    values = {"session_id": session, "name": name, "value": records.json_of(text)}
    yield Thing("session_state", values | {"updated_at": row.born("updated_at")})
    if text and (provider := _provider_of(name)):
        yield Thing("provider_sessions", {"id": session, "provider": provider, "name": text[:400]})


def _provider_of(key: str) -> str | None:
    """Return the provider whose session id a key of the session state holds. Old versions have one
    key, newer ones a key for each provider."""
    if key == "sdk_session_id":
        return "claude"
    kind, _, provider = key.partition(":")
    return provider if kind == "continuation" and provider in PROVIDERS else None


_BODY = "letters.body"

ACKS = Table(
    "processing_ack",
    ("message_id",),
    {"message_id": KEY, "status": "letters.state", "status_changed": "letters.ended_at"},
    _ack,
    why="it says how the message that it names ended, and is stored with that",
)

INBOUND = (
    Table(
        "messages_in",
        ("id",),
        {
            "id": KEY,
            "seq": _BODY,
            "kind": _BODY,
            "timestamp": "letters.created_at",
            "status": "letters.state",
            "process_after": "letters.due_at, schedules.next_at",
            "recurrence": "schedules.rule",
            "tries": "letters.attempts",
            "platform_id": _BODY,
            "channel_type": _BODY,
            "thread_id": _BODY,
            "content": _BODY,
        },
        _incoming,
        links=_own_session,
    ),
    INCOMING_TURNS,
    Table(
        "delivered",
        ("message_out_id",),
        {
            "message_out_id": KEY,
            "platform_message_id": KEPT,
            "status": "letters.state",
            "delivered_at": "letters.ended_at",
        },
        _delivery,
        why="it says how the message that it names ended, and is stored with that",
    ),
    Table(
        "destinations",
        ("name",),
        {
            "name": "destinations.name",
            "display_name": KEPT,
            "type": KEPT,
            "channel_type": "destinations.place_id",
            "platform_id": "destinations.place_id",
            "agent_group_id": KEPT,
        },
        _destination,
        links=_own_agent_and_place,
    ),
    Table(
        "session_routing",
        ("id",),
        {"id": KEY, "channel_type": KEPT, "platform_id": KEPT, "thread_id": KEPT},
        why="the place of the session's answers is stored with the session",
    ),
)

OUTBOUND = (
    Table(
        "messages_out",
        ("id",),
        {
            "id": KEY,
            "seq": _BODY,
            "in_reply_to": _BODY,
            "timestamp": "letters.created_at",
            "deliver_after": "letters.due_at",
            "recurrence": KEPT,
            "kind": _BODY,
            "platform_id": _BODY,
            "channel_type": _BODY,
            "thread_id": _BODY,
            "content": _BODY,
        },
        _outgoing,
        links=_own_session_and_place,
    ),
    OUTGOING_TURNS,
    QUESTION_TEXTS,
    Table(
        "session_state",
        ("key",),
        {
            "key": "session_state.name",
            "value": "session_state.value, sessions.provider_session",
            "updated_at": "session_state.updated_at",
        },
        _value,
        links=_own_session,
    ),
)
