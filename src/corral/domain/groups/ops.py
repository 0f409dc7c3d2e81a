"""Making groups, and who is in them."""

from collections.abc import Sequence

from corral.db.retention import Key, Piece, Whose
from corral.db.transitions import create as make
from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.groups import sql
from corral.domain.groups.model import (
    ANY_ROLE,
    EVERYONE,
    Group,
    Kind,
    Member,
    Unread,
    check_member,
    check_name,
    check_open,
    letter_key,
    name_of_direct,
)
from corral.domain.mail import ops as mail
from corral.domain.mail.model import agent_of
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.kernel.errors import Ambiguous, Conflict, NotFound, Refused
from corral.kernel.pagination import (
    LAST_ID,
    MAX_LIMIT,
    Page,
    check_limit,
    decode_cursor,
    every,
    page_of,
)
from corral.kernel.text import MAX_NAME, clean_text, encode_json

POSTS_KEPT, REACTIONS_KEPT = sql.POSTS_KEPT, sql.REACTIONS_KEPT
MAX_ROLES = 20
CONTEXT = 20
"""Posts from before it joined that a new member still has to read."""
MOST_LETTERS = 1_000
PIECE = 1_000


def create(
    tx: Tx,
    name: str,
    *,
    members: Sequence[str] = (),
    roles: Sequence[str] = (),
    project: str | None = None,
    by: str | None = None,
) -> Group:
    """Make a group of agents and people; whoever makes it is in it, if it is one of these.

    Agents of these `roles`, those of today and those of later, join by themselves; `*` is any role.
    """
    check_name(name)
    maker = by or tx.actor
    if len(roles) > MAX_ROLES:
        raise Refused(f"{MAX_ROLES} roles can join by themselves, not {len(roles)}.")
    wanted = list(dict.fromkeys(clean_text(role, "A role", most=MAX_NAME) for role in roles))
    made = _make(tx, name, Kind.GROUP, wanted, project, maker)
    if made is None:
        found = get(tx, name, project=project)
        raise Conflict(
            f"There is a group {name} already ({found.id}); join it, or take another name.",
            id=found.id,
        )
    first = [maker] if maker.partition(":")[0] in ("agent", "user") else []
    for member in dict.fromkeys([*first, *members]):
        _add(tx, made, check_member(member), None)
    _gather(tx, made)
    return get(tx, made.id)


def direct(tx: Tx, one: str, other: str) -> Group:
    """The group in which two write to each other; it is made when it is first asked for."""
    pair = (check_member(one), check_member(other))
    if one == other:
        raise Refused(f"{one} needs no group to talk to itself; a note does (`corral note add`).")
    name = name_of_direct(*pair)
    made = _make(tx, name, Kind.DIRECT, [], None, tx.actor)
    if made is None:
        return get(tx, name)
    for member in pair:
        _add(tx, made, member, None)
    return made


def everyone(tx: Tx, *, project: str | None = None) -> Group:
    """The group of all agents, for broadcasts; it is made when it is first asked for."""
    made = _make(tx, EVERYONE, Kind.EVERYONE, [ANY_ROLE], project, tx.actor)
    if made is None:
        return _named(tx, EVERYONE, project)
    _gather(tx, made)
    return made


def get(tx: Tx, group: str, *, project: str | None = None) -> Group:
    """A group by its name, in a project or where only one has it, or by its id."""
    if group.startswith("grp_"):
        return sql.GROUPS.get(tx, sql.IDS.resolve(tx, group))
    name = clean_text(group, "The group", most=3 * MAX_NAME)
    if project is not None:
        return _named(tx, name, project)
    found = tx.all(sql.BY_NAME_ALONE, name=name)
    if not found:
        raise _missing(name)
    if len(found) > 1 and found[0].project_id is not None:
        raise Ambiguous(
            f"Several projects have a group {name}; give the project, or one of "
            f"{', '.join(each.id for each in found)}.",
            candidates=[each.id for each in found],
        )
    return found[0]


def join(tx: Tx, group: str, *, member: str | None = None, project: str | None = None) -> Member:
    """Come into a group, or bring another in; joining twice changes nothing.

    A new member has the latest posts to read, and gets every later one.
    """
    found = _changeable(tx, group, project)
    return _add(tx, found, check_member(member or tx.actor), None)


def leave(tx: Tx, group: str, *, member: str | None = None, project: str | None = None) -> Member:
    """Go out of a group, or take another out; what it had not read yet it gets no more."""
    found = _changeable(tx, group, project)
    return _remove(tx, found, check_member(member or tx.actor))


def archive(tx: Tx, group: str, *, project: str | None = None) -> Group:
    """Close a group: it can still be read, and its name is free again."""
    id = get(tx, group, project=project).id
    archived = move(tx, sql.GROUPS, "archive", id, ended_at=tx.now, updated_at=tx.now)
    tx.run(sql.FORGET_ROLES, group_id=id)
    return archived


def archive_all(tx: Tx, project_id: str) -> None:
    """Close the groups of a project that is being deleted."""
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
    """Open groups, newest first; also archived ones, or all those of a project."""
    (before,) = decode_cursor(after, LAST_ID)
    query = sql.LIST_ALL if all else sql.LIST_OPEN
    narrow = {}
    if project is not None:
        query = sql.LIST_OF_PROJECT
        narrow["project_id"] = projects.find_id(tx, project)
    rows = tx.all(query, before=before, limit=check_limit(limit) + 1, **narrow)
    return page_of(rows, limit, lambda group: (group.id,))


def members(
    tx: Tx,
    group: str,
    *,
    project: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Member]:
    """Who is in a group, by name, and how far each has read."""
    (name,) = decode_cursor(after, "")
    id = get(tx, group, project=project).id
    rows = tx.all(sql.MEMBERS, group_id=id, after=name, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda member: (member.member,))


def unread(
    tx: Tx, *, member: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Unread]:
    """The open groups that one is in, and how many posts of each it has not read."""
    (id,) = decode_cursor(after, "")
    who = check_member(member or tx.actor)
    rows = tx.all(sql.UNREAD, member=who, after=id, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda group: (group.group_id,))


def follow(tx: Tx, agent: Agent) -> None:
    """See that an agent is in the groups of its role, and in none that it joined by another; one
    that is retired leaves all."""
    member = f"agent:{agent.name}"
    active = agent.state is AgentState.ACTIVE
    for known in tx.all(sql.OF_MEMBER, member=member):
        if not active or known.role not in (None, agent.role, ANY_ROLE):
            _remove(tx, sql.GROUPS.get(tx, known.group_id), member)
    if active:
        for group in tx.all(sql.OF_ROLE, role=agent.role or ANY_ROLE):
            _add(tx, group, member, _role_of(group, agent))


def require_member(tx: Tx, group: Group, member: str) -> Member:
    """The member; Refused when it is not in the group."""
    found = tx.one(sql.MEMBER, group_id=group.id, member=member)
    if found is None:
        raise Refused(
            f"{member} is not in {group.name}; join it first (`corral group join {group.name}`).",
            group=group.id,
            member=member,
            reason="not_a_member",
        )
    return found


def close_letters(tx: Tx, group: Group, member: str, *, behind: int, upto: int) -> None:
    """Take the letters of these posts out of a member's mailbox, as far as nobody has them out."""
    numbers = range(max(behind, upto - MOST_LETTERS) + 1, upto + 1)
    mail.close_unread(tx, member, [letter_key(group.id, number) for number in numbers])


def prune(tx: Tx, *, before: int, after: Key | None, count_only: bool, whose: Whose) -> Piece:
    """Forget groups that were archived before a moment, with all that was said in them."""
    if count_only:
        return Piece(int(sql.COUNT_ENDED.value(tx, whose, before=before)), None)
    gone = 0
    for (id,) in (ended := sql.ENDED.run(tx, whose, before=before, limit=20)):
        tx.run(sql.FORGET_REACTIONS, group_id=id, limit=PIECE)
        if len(tx.run(sql.FORGET_POSTS, group_id=id, limit=PIECE)) == PIECE:
            return Piece(gone, id)  # what is long goes over several transactions
        for statement in (sql.FORGET_MEMBERS, sql.FORGET_ROLES, sql.FORGET):
            tx.run(statement, group_id=id)
        tx.note("group", "delete", id)
        gone += 1
    return Piece(gone, ended[-1][0] if ended else None)


def _make(
    tx: Tx, name: str, kind: Kind, roles: list[str], project: str | None, maker: str
) -> Group | None:
    made = make(
        tx,
        sql.GROUPS,
        {
            "id": tx.new_id("grp"),
            "name": name,
            "project_id": clean_text(project, "The project", most=MAX_NAME) if project else None,
            "kind": kind,
            "roles": encode_json(roles, "The roles"),
            "posts": 0,
            "created_by": clean_text(maker, "Who makes it", most=MAX_NAME),
            "created_at": tx.now,
            "updated_at": tx.now,
        },
        unless="(name, coalesce(project_id, '')) WHERE state = 'open'",
        note={"name": name, "kind": kind},
    )
    if made is not None:
        for role in roles:
            tx.run(sql.ADD_ROLE, role=role, group_id=made.id)
    return made


def _gather(tx: Tx, group: Group) -> None:
    """Bring in the agents that have one of the group's roles now."""
    for agent in every(agents.list_agents, tx, limit=MAX_LIMIT) if group.roles else ():
        if role := _role_of(group, agent):
            _add(tx, group, f"agent:{agent.name}", role)


def _role_of(group: Group, agent: Agent) -> str | None:
    """The role by which an agent joins a group, if it does."""
    if agent.role in group.roles:
        return agent.role
    return ANY_ROLE if ANY_ROLE in group.roles else None


def _add(tx: Tx, group: Group, member: str, role: str | None) -> Member:
    known = tx.one(sql.MEMBER, group_id=group.id, member=member)
    if known is not None:
        return known
    name = agent_of(member)
    if name is not None and agents.get(tx, name).state is not AgentState.ACTIVE:
        raise Refused(f"{name} is retired; restore it, or take another.", member=member)
    # Two that count at the same moment would both find room for one more.
    tx.serialize(f"members:{group.id}")
    most = settings.value(tx, "groups.max_members", project=group.project_id)
    if tx.value(sql.COUNT_MEMBERS, group_id=group.id) >= most:
        raise Refused(
            f"{group.name} has {most} members, and more are not allowed; let one leave first, or "
            "raise groups.max_members.",
            group=group.id,
            limit=most,
        )
    seen = max(sql.GROUPS.get(tx, group.id).posts - CONTEXT, 0)
    added = tx.one(
        sql.ADD_MEMBER,
        group_id=group.id,
        member=member,
        role=role,
        read_number=seen,
        now=tx.now,
    )
    if added is None:
        return require_member(tx, group, member)
    tx.run(sql.TOUCH, id=group.id, now=tx.now)
    tx.note(
        "group",
        "join",
        group.id,
        project_id=group.project_id,
        data={"member": member, "role": role},
    )
    return added


def _remove(tx: Tx, group: Group, member: str) -> Member:
    gone = tx.one(sql.REMOVE_MEMBER, group_id=group.id, member=member)
    if gone is None:
        raise NotFound(f"{member} is not in {group.name}.", group=group.id, member=member)
    close_letters(tx, group, member, behind=gone.read_number, upto=group.posts)
    tx.run(sql.TOUCH, id=group.id, now=tx.now)
    tx.note("group", "leave", group.id, project_id=group.project_id, data={"member": member})
    return gone


def _changeable(tx: Tx, group: str, project: str | None) -> Group:
    found = get(tx, group, project=project)
    check_open(found)
    if found.kind is Kind.DIRECT:
        raise Refused(f"{found.name} is between these two; make a group for more of you.")
    return found


def _named(tx: Tx, name: str, project: str | None) -> Group:
    found = tx.one(sql.BY_NAME, name=name, project_id=project or "")
    if found is None:
        raise _missing(name)
    return found


def _missing(name: str) -> NotFound:
    return NotFound(f"There is no open group {name!r}; `corral group list` shows all.", name=name)
