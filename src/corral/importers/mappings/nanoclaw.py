"""nanoclaw: its central database, and the two files of each session.

The central database is in a `data` folder, beside `v2-sessions/<agent group>/<session>/` with
`inbound.db` and `outbound.db`. Nothing that is imported is active: channels and wirings are
removed, destinations are revoked, letters have ended, and agents have no permissions.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from corral.importers.mappings import target_rows
from corral.importers.mappings.nanoclaw_messages import ACKS, INBOUND, OUTBOUND, PROVIDERS
from corral.importers.mappings.types import (
    EXISTING,
    KEPT,
    KEY,
    SourceFile,
    TableMapping,
    TargetRow,
    ToolMapping,
)
from corral.importers.source.row import SourceRow, make_valid_name

_PROVIDERS = {name: name for name in PROVIDERS}
_MODES = {"shared": "shared", "per-thread": "thread", "agent-shared": "agent"}


def _convert_agent(row: SourceRow) -> Iterable[TargetRow]:
    folder = row.read_text("folder", max_bytes=1_000)
    name = row.read_name("name", f"agent-{make_valid_name(row.key[:12], 'x')}")
    return target_rows.build_agent(
        row,
        name,
        row.read_created_at("created_at"),
        provider=row.read_choice("agent_provider", _PROVIDERS, "") or None,
        workspace=folder,
    )


def _convert_channel(row: SourceRow) -> Iterable[TargetRow]:
    kind = row.read_line("channel_type")
    if kind is None or row.key != kind:
        return  # another row of the same channel creates it
    at = row.read_created_at("created_at")
    yield target_rows.build_removed(
        row,
        "channels",
        row.create_id("chn", at),
        at,
        name=kind,
        kind=kind,
        policy="strict",
        on_unconfirmed="give_up",
        config="{}",
        secrets="{}",
    )


def _convert_place(row: SourceRow) -> Iterable[TargetRow]:
    kind = row.read_line("channel_type")
    channel = row.find_id("messaging_groups.channel_type", kind or "")
    platform_id = row.read_line("platform_id", max_bytes=400)
    if channel is None or platform_id is None:
        row.report_reason("its channel or its chat is missing")
        return
    at = row.read_created_at("created_at")
    yield TargetRow(
        "places",
        {
            "id": row.create_id("plc", at),
            "channel_id": channel,
            "platform_id": platform_id,
            "name": row.read_line("name"),
            "direct": int(not row.read_flag("is_group")),
            "awaits_secret": 0,
            "state": "open",
            "created_at": at,
            "updated_at": at,
        },
    )


def _link_channel(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "messaging_groups.channel_type", row.peek_key("channel_type") or ""


def _find_place(row: SourceRow) -> Iterable[TargetRow]:
    place = row.find_id("messaging_groups", row.read_text("id") or "")
    if place is not None:
        yield TargetRow(EXISTING, {"table": "places", "id": place})


def _link_place(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "messaging_groups", row.peek_key("id") or ""


def _convert_wiring(row: SourceRow) -> Iterable[TargetRow]:
    place, agent = row.find_ref("messaging_group_id"), row.find_ref("agent_group_id")
    if place is None or agent is None:
        row.report_reason("its chat or its agent is missing")
        return
    at = row.read_created_at("created_at")
    yield target_rows.build_removed(
        row,
        "wirings",
        row.create_id("wir", at),
        at,
        place_id=place,
        agent_id=agent,
        trigger="always",
        scope="all",
        unmatched="drop",
        mode=row.read_choice("session_mode", _MODES, "shared"),
        priority=row.read_integer("priority", minimum=-1_000, maximum=1_000) or 0,
    )


def _convert_session(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("created_at")
    place = row.find_ref("messaging_group_id")
    yield target_rows.build_session(
        row,
        at,
        state=row.read_choice("status", {"active": "open", "closed": "closed"}, "open"),
        title=f"nanoclaw {row.key}",
        agent_id=row.find_ref("agent_group_id"),
        provider=row.read_choice("agent_provider", _PROVIDERS, "") or None,
        reply_to=f"place:{place}" if place else None,
        updated_at=row.read_timestamp("last_active") or at,
    )


def _convert_question(row: SourceRow) -> Iterable[TargetRow]:
    session = row.find_ref("session_id")
    if session is None:
        row.report_reason("its session is missing")
        return
    at = row.read_created_at("created_at")
    yield TargetRow(
        "questions",
        {
            "id": row.create_id("qst", at),
            "asker": f"session:{session}",
            "text": f"question {row.key[:80]}; the message that asked it is not in the source",
            "options": "[]",
            "free_text": 1,
            "answerers": "[]",
            "required_votes": 1,
            "votes": "[]",
            "state": "withdrawn",
            "deadline_at": at,
            "created_at": at,
            "ended_at": row.now,
        },
    )


def _find_question(row: SourceRow) -> Iterable[TargetRow]:
    question = row.find_id("pending_questions", row.peek_text("question_id"))
    if question is not None:
        yield TargetRow(EXISTING, {"table": "questions", "id": question})


def _link_question(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "pending_questions", row.peek_text("question_id")


_SESSIONS = TableMapping(
    "sessions",
    ("id",),
    {
        "id": KEY,
        "agent_group_id": "sessions.agent_id",
        "messaging_group_id": "sessions.reply_to",
        "thread_id": KEPT,
        "agent_provider": "sessions.provider",
        "status": "sessions.state",
        "container_status": KEPT,
        "last_active": "sessions.updated_at",
        "created_at": "sessions.created_at",
    },
    _convert_session,
    refs={"agent_group_id": "agent_groups", "messaging_group_id": "messaging_groups"},
)

_CENTRAL = (
    TableMapping(
        "agent_groups",
        ("id",),
        {
            "id": KEY,
            "name": "agents.name",
            "folder": "agent_versions.workspace",
            "is_admin": KEPT,
            "agent_provider": "agent_versions.provider",
            "container_config": KEPT,
            "created_at": "agents.created_at",
        },
        _convert_agent,
    ),
    TableMapping(
        "messaging_groups",
        ("channel_type",),
        {"channel_type": "channels.kind", "created_at": "channels.created_at"},
        _convert_channel,
        alias="messaging_groups.channel_type",
    ),
    TableMapping(
        "messaging_groups",
        ("id",),
        {
            "id": KEY,
            "channel_type": "places.channel_id",
            "platform_id": "places.platform_id",
            "name": "places.name",
            "is_group": "places.direct",
            "admin_user_id": KEPT,
            "created_at": "places.created_at",
        },
        _convert_place,
        links=_link_channel,
    ),
    TableMapping(
        "messaging_groups",
        ("channel_type", "platform_id"),
        {"id": "places.id"},
        _find_place,
        links=_link_place,
        alias="messaging_groups.platform_id",
    ),
    TableMapping(
        "messaging_group_agents",
        ("id",),
        {
            "id": KEY,
            "messaging_group_id": "wirings.place_id",
            "agent_group_id": "wirings.agent_id",
            "trigger_rules": KEPT,
            "response_scope": KEPT,
            "session_mode": "wirings.mode",
            "priority": "wirings.priority",
            "created_at": "wirings.created_at",
        },
        _convert_wiring,
        refs={"messaging_group_id": "messaging_groups", "agent_group_id": "agent_groups"},
    ),
    _SESSIONS,
    TableMapping(
        "pending_questions",
        ("question_id",),
        {
            "question_id": KEY,
            "session_id": "questions.asker",
            "message_out_id": KEPT,
            "platform_id": KEPT,
            "channel_type": KEPT,
            "thread_id": KEPT,
            "created_at": "questions.created_at",
        },
        _convert_question,
        refs={"session_id": "sessions"},
    ),
    TableMapping(
        "pending_questions",
        ("message_out_id",),
        {"question_id": "questions.id"},
        _find_question,
        links=_link_question,
        alias="pending_questions.message_out_id",
    ),
)

_CENTRAL_SIGNATURE = {"agent_groups": ("folder",), "sessions": ("agent_group_id",)}


def _find_database(folder: Path) -> Path:
    """Return the central database in a folder; the folder itself if it is one of a session."""
    for parent in (folder, folder / "data"):
        if (database := parent / "v2.db").exists():
            return database
    return folder


def _find_files(path: Path) -> Iterator[SourceFile]:
    if path.is_dir():
        if any((path / name).exists() for name in ("inbound.db", "outbound.db")):
            yield from _find_session_files(path)
            return
        yield SourceFile(path, _CENTRAL_SIGNATURE, _CENTRAL)  # raises the error for a folder
        return
    yield SourceFile(path, _CENTRAL_SIGNATURE, _CENTRAL)
    for folder in sorted((path.parent / "v2-sessions").glob("*/*/")):
        yield from _find_session_files(folder)


def _find_session_files(folder: Path) -> Iterator[SourceFile]:
    session, group = folder.name, folder.parent.name
    inbound, outbound = folder / "inbound.db", folder / "outbound.db"
    owner = {"id": session, "agent_group_id": group}
    # Acknowledgements first: they determine the states of the incoming messages.
    if outbound.exists():
        yield SourceFile(
            outbound, {"messages_out": ()}, (ACKS,), session, _SESSIONS, owner, is_partial=True
        )
    if inbound.exists():
        yield SourceFile(inbound, {"messages_in": ()}, INBOUND, session, _SESSIONS, owner)
    if outbound.exists():
        seen = (ACKS.name,)
        yield SourceFile(
            outbound, {"messages_out": ()}, OUTBOUND, session, _SESSIONS, owner, seen_tables=seen
        )


TOOL = ToolMapping(
    "nanoclaw",
    "agents in chats, with the two files of each session",
    _CENTRAL_SIGNATURE,
    (*_CENTRAL, *INBOUND, *OUTBOUND, ACKS),
    find_database=_find_database,
    find_files=_find_files,
)
