"""Groups and their members."""

from collections.abc import Sequence

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.groups import sql
from corral.domain.groups.model import (
    ANY_ROLE,
    EVERYONE,
    Group,
    GroupKind,
    GroupMember,
    UnreadGroup,
    build_direct_name,
    build_letter_key,
    check_member,
    check_name,
    check_open,
)
from corral.domain.mail import ops as mail
from corral.domain.mail.model import agent_name_of, mailbox_kind
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.kernel.errors import Ambiguous, Conflict, NotFound, Refused
from corral.kernel.pagination import MAX_LIMIT, Page, iter_all
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text, encode_json

PRUNABLE = sql.PRUNABLE
POSTS_RETENTION, REACTIONS_RETENTION = sql.POSTS_RETENTION, sql.REACTIONS_RETENTION
MAX_ROLES = 20
JOIN_BACKLOG = 20
"""Earlier posts that count as unread for a new member."""
MAX_CLOSED_LETTERS = 1_000
PRUNE_BATCH = 1_000


def create(
    tx: Tx,
    name: str,
    *,
    members: Sequence[str] = (),
    roles: Sequence[str] = (),
    project: str | None = None,
    by: str | None = None,
) -> Group:
    """Create a group. Its creator becomes a member if it is an agent or a person.

    Current and future agents with one of `roles` join automatically; `*` is any role. Raises
    Conflict when an open group of the project has this name.
    """
    check_name(name)
    creator = by or tx.actor
    if len(roles) > MAX_ROLES:
        raise Refused(f"Too many roles: {len(roles)}, the limit is {MAX_ROLES}.")
    names = list(dict.fromkeys(check_text(role, "A role", max_bytes=MAX_NAME) for role in roles))
    new_group = _create(tx, name, GroupKind.GROUP, names, project, creator)
    if new_group is None:
        existing = get(tx, name, project=project)
        raise Conflict(
            f"A group named {name} already exists ({existing.id}). Join it or choose another name.",
            id=existing.id,
        )
    first = [creator] if mailbox_kind(creator) in ("agent", "user") else []
    for member in dict.fromkeys([*first, *members]):
        _add_member(tx, new_group, check_member(member), None)
    _add_agents_by_role(tx, new_group)
    return get(tx, new_group.id)


def ensure_direct(tx: Tx, one: str, other: str) -> Group:
    """Return the direct group of two members; create it if needed."""
    pair = (check_member(one), check_member(other))
    if one == other:
        raise Refused(
            f"{one} cannot send a direct message to itself. Use a note (`corral note add`)."
        )
    name = build_direct_name(*pair)
    new_group = _create(tx, name, GroupKind.DIRECT, [], None, tx.actor)
    if new_group is None:
        return get(tx, name)
    for member in pair:
        _add_member(tx, new_group, member, None)
    return new_group


def ensure_everyone(tx: Tx, *, project: str | None = None) -> Group:
    """Return the group of all agents, for broadcasts; create it if needed."""
    new_group = _create(tx, EVERYONE, GroupKind.EVERYONE, [ANY_ROLE], project, tx.actor)
    if new_group is None:
        return _get_by_name(tx, EVERYONE, project)
    _add_agents_by_role(tx, new_group)
    return new_group


def get(tx: Tx, group: str, *, project: str | None = None) -> Group:
    """Return an open group by name, or any group by its id or a unique prefix of it.

    Without a project, a group of no project comes first; else the name must be unique.
    """
    if group.startswith("grp_"):
        return sql.GROUPS.get(tx, sql.IDS.resolve(tx, group))
    name = check_text(group, "The group", max_bytes=3 * MAX_NAME)
    if project is not None:
        return _get_by_name(tx, name, project)
    matches = tx.all(sql.BY_NAME_IN_ANY_PROJECT, name=name)
    if not matches:
        raise _build_not_found(name)
    if len(matches) > 1 and matches[0].project_id is not None:
        raise Ambiguous(
            f"Several projects have a group {name}. Give the project, or one of these ids: "
            f"{', '.join(match.id for match in matches)}.",
            candidates=[match.id for match in matches],
        )
    return matches[0]


def join(
    tx: Tx, group: str, *, member: str | None = None, project: str | None = None
) -> GroupMember:
    """Add the caller, or `member`, to a group. Idempotent.

    The latest posts count as unread for a new member; it gets every later post as a letter.
    """
    target = _get_joinable(tx, group, project)
    return _add_member(tx, target, check_member(member or tx.actor), None)


def leave(
    tx: Tx, group: str, *, member: str | None = None, project: str | None = None
) -> GroupMember:
    """Remove the caller, or `member`, from a group, and close its unread letters."""
    target = _get_joinable(tx, group, project)
    return _remove_member(tx, target, check_member(member or tx.actor))


def archive(tx: Tx, group: str, *, project: str | None = None) -> Group:
    """Archive a group: it becomes read-only and its name is free again."""
    id = get(tx, group, project=project).id
    archived = transition(tx, sql.GROUPS, "archive", id, ended_at=tx.now, updated_at=tx.now)
    tx.run(sql.DELETE_ROLES, group_id=id)
    return archived


def release_project(tx: Tx, project_id: str) -> None:
    """Archive the groups of a project that is being deleted."""
    for (id,) in tx.run(sql.OPEN_OF_PROJECT, project_id=project_id):
        archive(tx, id)


def list_groups(
    tx: Tx,
    *,
    project: str | None = None,
    all: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Group]:
    """List open groups, newest first; with `all`, including archived ones; or all of a project."""
    if project is not None:
        project_id = projects.find_id(tx, project)
        return sql.LIST_OF_PROJECT.page(tx, after=after, limit=limit, project_id=project_id)
    return (sql.LIST_ALL if all else sql.LIST_OPEN).page(tx, after=after, limit=limit)


def list_members(
    tx: Tx,
    group: str,
    *,
    project: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[GroupMember]:
    """List the members of a group by name, each with the number of the last post it has read."""
    group_id = get(tx, group, project=project).id
    return sql.MEMBERS.page(tx, after=after, limit=limit, group_id=group_id)


def list_unread(
    tx: Tx, *, member: str | None = None, after: str | None = None, limit: int = 50
) -> Page[UnreadGroup]:
    """List the open groups of a member with their numbers of unread posts."""
    reader = check_member(member or tx.actor)
    return sql.UNREAD.page(tx, after=after, limit=limit, member=reader)


def sync_memberships(tx: Tx, agent: Agent) -> None:
    """Update an agent's memberships after a change of its role or state.

    It joins the groups of its role and leaves those that it joined by another role. A retired agent
    leaves all groups.
    """
    member = f"agent:{agent.name}"
    active = agent.state is AgentState.ACTIVE
    for membership in tx.all(sql.MEMBERSHIPS, member=member):
        if not active or membership.role not in (None, agent.role, ANY_ROLE):
            _remove_member(tx, sql.GROUPS.get(tx, membership.group_id), member)
    if active:
        for group in tx.all(sql.GROUPS_OF_ROLE, role=agent.role or ANY_ROLE):
            _add_member(tx, group, member, _find_role(group, agent))


def require_member(tx: Tx, group: Group, member: str) -> GroupMember:
    """Return a member of a group; raises Refused when it is not in the group."""
    target = tx.first(sql.MEMBER, group_id=group.id, member=member)
    if target is None:
        raise Refused(
            f"{member} is not in {group.name}. Join it first (`corral group join {group.name}`).",
            group=group.id,
            member=member,
            reason="not_a_member",
        )
    return target


def close_letters(tx: Tx, group: Group, member: str, *, behind: int, upto: int) -> None:
    """Close the unclaimed letters of posts in a member's mailbox."""
    numbers = range(max(behind, upto - MAX_CLOSED_LETTERS) + 1, upto + 1)
    mail.ack_unclaimed(tx, member, [build_letter_key(group.id, number) for number in numbers])


def delete_groups(tx: Tx, ids: Sequence[str]) -> int:
    """Delete groups with their posts and members; returns how many.

    Stops at a group with many posts: the next call continues with it, in another transaction.
    """
    for deleted, id in enumerate(ids):
        tx.run(sql.DELETE_REACTIONS, group_id=id, limit=PRUNE_BATCH)
        if len(tx.run(sql.DELETE_POSTS, group_id=id, limit=PRUNE_BATCH)) == PRUNE_BATCH:
            return deleted
        for statement in (sql.DELETE_MEMBERS, sql.DELETE_ROLES, sql.DELETE_GROUP):
            tx.run(statement, group_id=id)
        tx.emit("group", "delete", id)
    return len(ids)


def _create(
    tx: Tx, name: str, kind: GroupKind, roles: list[str], project: str | None, creator: str
) -> Group | None:
    group = create_if_absent(
        tx,
        sql.GROUPS,
        {
            "id": tx.new_id("grp"),
            "name": name,
            "project_id": check_optional_text(project, "The project", max_bytes=MAX_NAME),
            "kind": kind,
            "roles": encode_json(roles, "The roles"),
            "posts": 0,
            "created_by": check_text(creator, "The creator", max_bytes=MAX_NAME),
            "created_at": tx.now,
            "updated_at": tx.now,
        },
        on_conflict="(name, coalesce(project_id, '')) WHERE state = 'open'",
        event_data={"name": name, "kind": kind},
    )
    if group is not None:
        for role in roles:
            tx.run(sql.ADD_ROLE, role=role, group_id=group.id)
    return group


def _add_agents_by_role(tx: Tx, group: Group) -> None:
    """Add the agents that have one of the group's roles now."""
    for agent in iter_all(agents.list_agents, tx, limit=MAX_LIMIT) if group.roles else ():
        if role := _find_role(group, agent):
            _add_member(tx, group, f"agent:{agent.name}", role)


def _find_role(group: Group, agent: Agent) -> str | None:
    """Return the role by which an agent joins a group, or None."""
    if agent.role in group.roles:
        return agent.role
    return ANY_ROLE if ANY_ROLE in group.roles else None


def _add_member(tx: Tx, group: Group, member: str, role: str | None) -> GroupMember:
    membership = tx.first(sql.MEMBER, group_id=group.id, member=member)
    if membership is not None:
        return membership
    name = agent_name_of(member)
    if name is not None:
        agents.get_active(tx, name)
    # Serialized: concurrent joins would all pass the limit.
    tx.serialize(f"members:{group.id}")
    limit = settings.get_value(tx, "groups.max_members", project=group.project_id)
    if tx.value(sql.COUNT_MEMBERS, group_id=group.id) >= limit:
        raise Refused(
            f"{group.name} has {limit} members, which is the limit. Remove one first, or raise "
            "groups.max_members.",
            group=group.id,
            limit=limit,
        )
    read_number = max(sql.GROUPS.get(tx, group.id).posts - JOIN_BACKLOG, 0)
    added = tx.first(
        sql.ADD_MEMBER,
        group_id=group.id,
        member=member,
        role=role,
        read_number=read_number,
        now=tx.now,
    )
    if added is None:
        return require_member(tx, group, member)
    tx.run(sql.TOUCH, id=group.id, now=tx.now)
    tx.emit(
        "group",
        "join",
        group.id,
        project_id=group.project_id,
        data={"member": member, "role": role},
    )
    return added


def _remove_member(tx: Tx, group: Group, member: str) -> GroupMember:
    removed = tx.first(sql.REMOVE_MEMBER, group_id=group.id, member=member)
    if removed is None:
        raise NotFound(f"{member} is not in {group.name}.", group=group.id, member=member)
    close_letters(tx, group, member, behind=removed.read_number, upto=group.posts)
    tx.run(sql.TOUCH, id=group.id, now=tx.now)
    tx.emit("group", "leave", group.id, project_id=group.project_id, data={"member": member})
    return removed


def _get_joinable(tx: Tx, group: str, project: str | None) -> Group:
    target = get(tx, group, project=project)
    check_open(target)
    if target.kind is GroupKind.DIRECT:
        raise Refused(f"{target.name} is a direct group of two. Create a group for more members.")
    return target


def _get_by_name(tx: Tx, name: str, project: str | None) -> Group:
    target = tx.first(sql.BY_NAME, name=name, project_id=project or "")
    if target is None:
        raise _build_not_found(name)
    return target


def _build_not_found(name: str) -> NotFound:
    return NotFound(f"No open group {name!r}. List groups with `corral group list`.", name=name)
