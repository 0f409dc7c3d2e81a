"""nanoclaw: the two files of a session, each with one writer.

`inbound.db` has the messages for the agent, and the delivery states of its answers; `outbound.db`
has the answers, and the acknowledgements of the agent.
"""

from collections.abc import Iterable, Iterator

from corral.importers.mappings import target_rows
from corral.importers.mappings.nanoclaw_turns import INCOMING_TURNS, OUTGOING_TURNS, QUESTION_TEXTS
from corral.importers.mappings.types import KEPT, KEY, TableMapping, TargetRow
from corral.importers.source.database import encode_key
from corral.importers.source.row import SourceRow

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


def _find_session(row: SourceRow) -> str | None:
    session = row.find_id("sessions", row.owner_key)
    if session is None:
        row.problems.append("its session is missing")
    return session


def _link_session(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "sessions", row.owner_key


def _link_session_and_place(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "sessions", row.owner_key
    yield "messaging_groups.platform_id", _encode_address(row)


def _encode_address(row: SourceRow) -> str:
    return encode_key([row.peek_text("channel_type"), row.peek_text("platform_id")])


def _remember_ack(row: SourceRow) -> Iterable[TargetRow]:
    ack = (row.read_text("status"), row.read_timestamp("status_changed"))
    row.memo["ack", row.read_text("message_id") or ""] = ack
    return ()


def _remember_delivery(row: SourceRow) -> Iterable[TargetRow]:
    state = row.read_choice("status", _OUT, "dead")
    row.memo["delivered", row.read_text("message_out_id") or ""] = (
        state,
        row.read_timestamp("delivered_at"),
    )
    return ()


def _decode_content(row: SourceRow) -> object:
    """Return the content: decoded JSON, or the text itself."""
    text = row.read_text("content", max_bytes=MAX_BODY)
    before = len(row.problems)
    decoded = row.read_json("content", object, None)
    if decoded is None and len(row.problems) > before:
        row.problems[before:] = ["content is not JSON; it is kept as text"]
        return text
    return decoded


def _build_body(row: SourceRow) -> dict[str, object]:
    """Return the body of the letter of a message."""
    return {
        "kind": row.read_line("kind"),
        "seq": row.read_integer("seq"),
        "content": _decode_content(row),
        "platform_id": row.read_line("platform_id", max_bytes=400),
        "channel_type": row.read_line("channel_type"),
        "thread_id": row.read_line("thread_id", max_bytes=400),
    }


def _convert_incoming(row: SourceRow) -> Iterable[TargetRow]:
    session = _find_session(row)
    if session is None:
        return
    at = row.read_created_at("timestamp")
    state = row.read_choice("status", _IN, "expired")
    acked, when = row.memo.get(("ack", row.key), (None, None))
    if acked == "completed" and state == "expired":
        state = "done"
    rule = row.read_line("recurrence")
    due = row.read_timestamp("process_after")
    body = _build_body(row)
    mailbox = f"session:{session}"
    if rule and len(rule.split()) == 5 and state == "expired":
        yield target_rows.build_schedule(
            row,
            mailbox,
            at,
            "paused",
            kind="cron",
            rule=rule,
            body=target_rows.to_json_text(body),
            next_at=due,
            last_error=_WAITED,
        )
        return
    if rule:
        row.keep("recurrence")
    yield target_rows.build_letter(
        row,
        mailbox,
        body,
        at,
        state,
        when,
        due_at=due or at,
        attempts=row.read_integer("tries", minimum=0) or 0,
        last_error=_WAITED if state == "expired" else None,
    )


def _convert_outgoing(row: SourceRow) -> Iterable[TargetRow]:
    session = _find_session(row)
    if session is None:
        return
    at = row.read_created_at("timestamp")
    place = row.find_id("messaging_groups.platform_id", _encode_address(row))
    state, when = row.memo.get(("delivered", row.key), ("expired", None))
    body = _build_body(row) | {"in_reply_to": row.read_line("in_reply_to", max_bytes=400)}
    mailbox = f"place:{place}" if place else f"session:{session}"
    last_error = "nanoclaw had not recorded its delivery" if state == "expired" else None
    yield target_rows.build_letter(
        row,
        mailbox,
        body,
        at,
        state,
        when,
        sender=f"session:{session}",
        due_at=row.read_timestamp("deliver_after") or at,
        last_error=last_error,
    )


def _convert_destination(row: SourceRow) -> Iterable[TargetRow]:
    place = row.find_id("messaging_groups.platform_id", _encode_address(row))
    session = row.find_id("sessions", row.owner_key)
    agent = row.find_id("agent_groups", row.owner_values.get("agent_group_id", ""))
    name = row.read_line("name")
    if place is None or agent is None or name is None or session is None:
        row.report_reason("its chat was not imported")
        return
    yield TargetRow(
        "destinations",
        {
            "id": row.create_id("dst", row.now),
            "agent_id": agent,
            "name": name,
            "place_id": place,
            "state": "revoked",
            "created_at": row.now,
            "created_by": "import",
            "ended_at": row.now,
        },
    )


def _link_agent_and_place(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield from _link_session_and_place(row)
    yield "agent_groups", row.owner_values.get("agent_group_id", "")


def _convert_value(row: SourceRow) -> Iterable[TargetRow]:
    session = _find_session(row)
    name = row.read_line("key")
    if session is None or name is None:
        row.report_reason("it has no name")
        return
    text = row.read_text("value") or ""
    values = {"session_id": session, "name": name, "value": target_rows.to_json_text(text)}
    yield TargetRow("session_state", values | {"updated_at": row.read_created_at("updated_at")})
    if text and (provider := _find_provider(name)):
        yield TargetRow(
            "provider_sessions", {"id": session, "provider": provider, "name": text[:400]}
        )


def _find_provider(key: str) -> str | None:
    """Return the provider of a session id in the session state.

    Old versions have one key, newer ones a key for each provider.
    """
    if key == "sdk_session_id":
        return "claude"
    kind, _, provider = key.partition(":")
    return provider if kind == "continuation" and provider in PROVIDERS else None


_BODY = "letters.body"

ACKS = TableMapping(
    "processing_ack",
    ("message_id",),
    {"message_id": KEY, "status": "letters.state", "status_changed": "letters.ended_at"},
    _remember_ack,
    reason="its state is stored with its message",
)

INBOUND = (
    TableMapping(
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
        _convert_incoming,
        links=_link_session,
    ),
    INCOMING_TURNS,
    TableMapping(
        "delivered",
        ("message_out_id",),
        {
            "message_out_id": KEY,
            "platform_message_id": KEPT,
            "status": "letters.state",
            "delivered_at": "letters.ended_at",
        },
        _remember_delivery,
        reason="its state is stored with its message",
    ),
    TableMapping(
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
        _convert_destination,
        links=_link_agent_and_place,
    ),
    TableMapping(
        "session_routing",
        ("id",),
        {"id": KEY, "channel_type": KEPT, "platform_id": KEPT, "thread_id": KEPT},
        reason="the address of answers is stored with the session",
    ),
)

OUTBOUND = (
    TableMapping(
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
        _convert_outgoing,
        links=_link_session_and_place,
    ),
    OUTGOING_TURNS,
    QUESTION_TEXTS,
    TableMapping(
        "session_state",
        ("key",),
        {
            "key": "session_state.name",
            "value": "session_state.value, sessions.provider_session",
            "updated_at": "session_state.updated_at",
        },
        _convert_value,
        links=_link_session,
    ),
)
