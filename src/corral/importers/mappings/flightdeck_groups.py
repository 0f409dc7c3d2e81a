"""flightdeck: groups of agents, and their memory."""

from collections.abc import Iterable, Iterator
from typing import Any

from corral.importers.mappings import target_rows
from corral.importers.mappings.flightdeck_agents import (
    build_mailbox,
    has_complete_id,
    resolve_mailbox,
)
from corral.importers.mappings.types import KEPT, KEY, TableMapping, TargetRow
from corral.importers.source.row import SourceRow

MAX_EMOJI = 64
MAX_KEY = 200


def _convert_group(row: SourceRow) -> Iterable[TargetRow]:
    name = row.read_name("name", "group")
    roles = row.read_json("roles", list[str], [])
    yield target_rows.build_group(
        row,
        name,
        row.read_created_at("created_at"),
        project_id=row.find_ref("project_id"),
        roles=target_rows.to_json_text(roles),
        created_by=resolve_mailbox(row, "lead_id"),
    )


def _link_group(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "chat_groups", row.build_key("group_name", "lead_id")


def _find_group(row: SourceRow) -> str | None:
    group = row.find_id("chat_groups", row.build_key("group_name", "lead_id"))
    if group is None:
        row.problems.append("its group is missing")
    return group


def _convert_member(row: SourceRow) -> Iterable[TargetRow]:
    group = _find_group(row)
    if group is None:
        return
    member = resolve_mailbox(row, "agent_id")
    values = {"group_id": group, "name": member, "read_number": 0}
    yield TargetRow("group_members", values | {"joined_at": row.read_created_at("added_at")})


def _convert_post(row: SourceRow) -> Iterable[TargetRow]:
    group = _find_group(row)
    if group is None:
        return
    at = row.read_created_at("timestamp")
    id = row.create_id("pst", at)
    author = resolve_mailbox(row, "from_agent_id")
    text = row.read_text("content") or ""
    yield TargetRow(
        "posts", {"id": id, "group_id": group, "author": author, "text": text, "at": at}
    )
    for emoji, members in row.read_json("reactions", dict[str, list[str]], {}).items():
        if len(emoji) > MAX_EMOJI:
            row.keep("reactions", f"has an emoji of more than {MAX_EMOJI} characters; it was cut")
        for member in members:
            address = build_mailbox(member)
            if not has_complete_id(address, member):
                row.keep("reactions")
            yield TargetRow(
                "reactions",
                {"post_id": id, "emoji": emoji[:MAX_EMOJI], "member": address, "at": at},
            )


def _convert_memory(row: SourceRow) -> Iterable[TargetRow]:
    yield target_rows.build_note(
        row,
        resolve_mailbox(row, "agent_id"),
        row.read_created_at("created_at"),
        text=row.read_text_or("value", "(nothing)"),
        category="expertise",
        key=row.read_line("key"),
        source=resolve_mailbox(row, "lead_id"),
    )


def _build_project_note(row: SourceRow, **columns: Any) -> Iterable[TargetRow]:
    """Build a note of a project. Without its project it is not imported: it is not for everyone."""
    project = row.find_ref("project_id")
    if project is None and row.peek_text("project_id"):
        row.report_reason("its project is missing")
        return
    category = row.read_line("category") or "general"
    name = row.read_line("key")
    if name is None:
        row.problems.append("key is missing; the key of the row is used")
        name = row.key
    if len(f"{category}/{name}") > MAX_KEY:
        row.keep("category")
        row.keep("key", "is too long; it was cut")
    yield target_rows.build_note(
        row,
        f"project:{project}" if project else "everyone",
        row.read_created_at("created_at"),
        project_id=project,
        category=category,
        key=f"{category}/{name}"[:MAX_KEY],
        **columns,
    )


def _convert_lesson(row: SourceRow) -> Iterable[TargetRow]:
    return _build_project_note(
        row,
        text=row.read_text_or("value", "(nothing)"),
        source=resolve_mailbox(row, "source"),
        uses=row.read_integer("use_count", minimum=0) or 0,
        used_at=row.read_timestamp("last_used_at"),
    )


def _convert_knowledge(row: SourceRow) -> Iterable[TargetRow]:
    confidence = row.read_json("metadata", dict[str, object], {}).get("confidence")
    known = isinstance(confidence, int | float) and 0 <= confidence <= 1
    return _build_project_note(
        row,
        text=row.read_text_or("content", "(nothing)"),
        confidence=round(float(str(confidence)) * 100) if known else 50,
    )


_PROJECT = {"project_id": "projects"}

TABLES = (
    TableMapping(
        "chat_groups",
        ("name", "lead_id"),
        {
            "name": "groups.name",
            "lead_id": "groups.created_by",
            "project_id": "groups.project_id",
            "roles": "groups.roles",
            "archived": KEPT,
            "created_at": "groups.created_at",
        },
        _convert_group,
        refs=_PROJECT,
    ),
    TableMapping(
        "chat_group_members",
        ("group_name", "lead_id", "agent_id"),
        {
            "group_name": "group_members.group_id",
            "lead_id": "group_members.group_id",
            "agent_id": "group_members.name",
            "added_at": "group_members.joined_at",
        },
        _convert_member,
        links=_link_group,
    ),
    TableMapping(
        "chat_group_messages",
        ("id",),
        {
            "id": KEY,
            "group_name": "posts.group_id",
            "lead_id": "posts.group_id",
            "from_agent_id": "posts.author",
            "from_role": KEPT,
            "content": "posts.text",
            "reactions": "reactions.emoji",
            "timestamp": "posts.at",
        },
        _convert_post,
        links=_link_group,
    ),
    TableMapping(
        "agent_memory",
        ("id",),
        {
            "id": KEY,
            "lead_id": "notes.source",
            "agent_id": "notes.scope",
            "key": "notes.key",
            "value": "notes.text",
            "created_at": "notes.created_at",
        },
        _convert_memory,
    ),
    TableMapping(
        "collective_memory",
        ("id",),
        {
            "id": KEY,
            "category": "notes.category",
            "key": "notes.key",
            "value": "notes.text",
            "source": "notes.source",
            "project_id": "notes.project_id",
            "created_at": "notes.created_at",
            "last_used_at": "notes.used_at",
            "use_count": "notes.uses",
        },
        _convert_lesson,
        refs=_PROJECT,
    ),
    TableMapping(
        "knowledge",
        ("id",),
        {
            "id": KEY,
            "project_id": "notes.project_id",
            "category": "notes.category",
            "key": "notes.key",
            "content": "notes.text",
            "metadata": KEPT,
            "created_at": "notes.created_at",
            "updated_at": KEPT,
        },
        _convert_knowledge,
        refs=_PROJECT,
    ),
)
