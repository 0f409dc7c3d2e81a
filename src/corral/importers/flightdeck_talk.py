"""flightdeck: what its agents said to each other in groups, and what they remembered."""

from collections.abc import Iterable, Iterator
from typing import Any

from corral.importers import records
from corral.importers.flightdeck_crew import mailbox, mailbox_of, names_whole
from corral.importers.mapping import KEPT, KEY, Table, Thing
from corral.importers.row import Row

MAX_SIGN = 64
MAX_KEY = 200


def _group(row: Row) -> Iterable[Thing]:
    name = row.name("name", "group")
    roles = row.json("roles", list[str], [])
    yield records.group(
        row,
        name,
        row.born("created_at"),
        project_id=row.ref("project_id"),
        roles=records.json_of(roles),
        created_by=mailbox(row, "lead_id"),
    )


def _of_group(row: Row) -> Iterator[tuple[str, str]]:
    yield "chat_groups", row.key_of("group_name", "lead_id")


def _group_of(row: Row) -> str | None:
    found = row.id_of("chat_groups", row.key_of("group_name", "lead_id"))
    if found is None:
        row.troubles.append("its group is not there")
    return found


def _member(row: Row) -> Iterable[Thing]:
    group = _group_of(row)
    if group is None:
        return
    member = mailbox(row, "agent_id")
    values = {"group_id": group, "member": member, "read_number": 0}
    yield Thing("members", values | {"joined_at": row.born("added_at")})


def _post(row: Row) -> Iterable[Thing]:
    group = _group_of(row)
    if group is None:
        return
    at = row.born("timestamp")
    id = row.new_id("pst", at)
    author = mailbox(row, "from_agent_id")
    words = row.text("content") or ""
    yield Thing("posts", {"id": id, "group_id": group, "author": author, "text": words, "at": at})
    for sign, members in row.json("reactions", dict[str, list[str]], {}).items():
        if len(sign) > MAX_SIGN:
            row.keep("reactions", f"has a sign of more than {MAX_SIGN} characters; it was cut")
        for member in members:
            who = mailbox_of(member)
            if not names_whole(who, member):
                row.keep("reactions")
            yield Thing(
                "reactions", {"post_id": id, "sign": sign[:MAX_SIGN], "member": who, "at": at}
            )


def _memory(row: Row) -> Iterable[Thing]:
    yield records.note(
        row,
        mailbox(row, "agent_id"),
        row.born("created_at"),
        text=row.words("value", "(nothing)"),
        category="expertise",
        key=row.line("key"),
        source=mailbox(row, "lead_id"),
    )


def _of_project(row: Row, **columns: Any) -> Iterable[Thing]:
    """A note of a project; of one that is not there it is a note of nobody, not of everyone."""
    project = row.ref("project_id")
    if project is None and row.plain_text("project_id"):
        row.explain("its project is not there")
        return
    category = row.line("category") or "general"
    own = row.line("key")
    if own is None:
        row.troubles.append("key is missing; that of the row is used")
        own = row.key
    if len(f"{category}/{own}") > MAX_KEY:
        row.keep("category")
        row.keep("key", "is too long; it was cut")
    yield records.note(
        row,
        f"project:{project}" if project else "everyone",
        row.born("created_at"),
        project_id=project,
        category=category,
        key=f"{category}/{own}"[:MAX_KEY],
        **columns,
    )


def _lesson(row: Row) -> Iterable[Thing]:
    return _of_project(
        row,
        text=row.words("value", "(nothing)"),
        source=mailbox(row, "source"),
        uses=row.whole("use_count", least=0) or 0,
        used_at=row.moment("last_used_at"),
    )


def _knowledge(row: Row) -> Iterable[Thing]:
    sure = row.json("metadata", dict[str, object], {}).get("confidence")
    known = isinstance(sure, int | float) and 0 <= sure <= 1
    return _of_project(
        row,
        text=row.words("content", "(nothing)"),
        confidence=round(float(str(sure)) * 100) if known else 50,
    )


_PROJECT = {"project_id": "projects"}

TABLES = (
    Table(
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
        _group,
        refs=_PROJECT,
    ),
    Table(
        "chat_group_members",
        ("group_name", "lead_id", "agent_id"),
        {
            "group_name": "members.group_id",
            "lead_id": "members.group_id",
            "agent_id": "members.member",
            "added_at": "members.joined_at",
        },
        _member,
        links=_of_group,
    ),
    Table(
        "chat_group_messages",
        ("id",),
        {
            "id": KEY,
            "group_name": "posts.group_id",
            "lead_id": "posts.group_id",
            "from_agent_id": "posts.author",
            "from_role": KEPT,
            "content": "posts.text",
            "reactions": "reactions.sign",
            "timestamp": "posts.at",
        },
        _post,
        links=_of_group,
    ),
    Table(
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
        _memory,
    ),
    Table(
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
        _lesson,
        refs=_PROJECT,
    ),
    Table(
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
        _knowledge,
        refs=_PROJECT,
    ),
)
