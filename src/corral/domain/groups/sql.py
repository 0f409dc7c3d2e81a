"""SQL of groups, members, posts and reactions."""

from corral.db.gapless_insert import GaplessInsert
from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import PrunableRows, Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.groups.model import (
    TRANSITIONS,
    Group,
    GroupMember,
    Reaction,
    StoredPost,
    UnreadGroup,
)
from corral.kernel.pagination import LAST_NUMBER

IDS = IdColumn("group", "grp", "groups")
GROUPS = StatefulTable(Group, TRANSITIONS, table="groups", project="project_id")

_COLUMNS = GROUPS.columns

# -- groups ---------------------------------------------------------------------------------------

# Open names are unique within a project, and among groups without a project.
BY_NAME = Query(
    Group,
    f"""
    SELECT {_COLUMNS} FROM groups
    WHERE state = 'open' AND name = :name AND coalesce(project_id, '') = :project_id
""",
)

# Groups without a project come first. The limit is for the candidates of an error message.
BY_NAME_IN_ANY_PROJECT = Query(
    Group,
    f"""
    SELECT {_COLUMNS} FROM groups WHERE state = 'open' AND name = :name
    ORDER BY coalesce(project_id, '') LIMIT 5
""",
)

LIST_OPEN = GROUPS.newest_first("state = 'open'")
LIST_ALL = GROUPS.newest_first()
LIST_OF_PROJECT = GROUPS.newest_first("project_id = :project_id")

OPEN_OF_PROJECT = Statement(
    "SELECT id FROM groups WHERE project_id = :project_id AND state = 'open' ORDER BY id"
)

# Never moves back: a transaction that began earlier may commit later.
_NOW = "CASE WHEN updated_at > :now THEN updated_at ELSE :now END"
TOUCH = Statement(f"UPDATE groups SET updated_at = {_NOW} WHERE id = :id")

ADD_ROLE = Statement("INSERT INTO group_roles (role, group_id) VALUES (:role, :group_id)")

GROUPS_OF_ROLE = Query(
    Group,
    f"""
    SELECT {_COLUMNS} FROM groups WHERE state = 'open' AND id IN (
        SELECT group_id FROM group_roles WHERE role IN (:role, '*')
    )
    ORDER BY id
""",
)

DELETE_ROLES = Statement("DELETE FROM group_roles WHERE group_id = :group_id")

# -- members --------------------------------------------------------------------------------------

_MEMBER = columns_of(GroupMember)

ADD_MEMBER = Query(
    GroupMember,
    f"""
    INSERT INTO group_members ({_MEMBER}) VALUES (:group_id, :member, :role, :read_number, :now)
    ON CONFLICT (group_id, name) DO NOTHING
    RETURNING {_MEMBER}
""",
)

MEMBER = Query(
    GroupMember,
    f"SELECT {_MEMBER} FROM group_members WHERE group_id = :group_id AND name = :member",
)

MEMBERS = Listing(
    Query(
        GroupMember,
        f"""
        SELECT {_MEMBER} FROM group_members WHERE group_id = :group_id AND name > :after
        ORDER BY name LIMIT :limit
    """,
    ),
    start={"after": ""},
    key=lambda member: (member.name,),
)

COUNT_MEMBERS = Statement("SELECT count(*) FROM group_members WHERE group_id = :group_id")

MEMBERSHIPS = Query(GroupMember, f"SELECT {_MEMBER} FROM group_members WHERE name = :member")

REMOVE_MEMBER = Query(
    GroupMember,
    f"DELETE FROM group_members WHERE group_id = :group_id AND name = :member RETURNING {_MEMBER}",
)

DELETE_MEMBERS = Statement("DELETE FROM group_members WHERE group_id = :group_id")

MARK_READ = Query(
    GroupMember,
    f"""
    UPDATE group_members SET read_number = :number
    WHERE group_id = :group_id AND name = :member AND read_number < :number
    RETURNING {_MEMBER}
""",
)

# The author has read its own post, if it had read all earlier ones.
MARK_OWN_READ = Statement("""
    UPDATE group_members SET read_number = :number
    WHERE group_id = :group_id AND name = :member AND read_number = :number - 1
""")

UNREAD = Listing(
    Query(
        UnreadGroup,
        """
        SELECT groups.id AS group_id, groups.name, project_id, kind, posts,
            posts - read_number AS unread
        FROM group_members JOIN groups ON groups.id = group_members.group_id
        WHERE group_members.name = :member AND group_members.group_id > :after AND state = 'open'
        ORDER BY group_members.group_id LIMIT :limit
    """,
    ),
    start={"after": ""},
    key=lambda group: (group.group_id,),
)

# -- posts ----------------------------------------------------------------------------------------

_POST = columns_of(StoredPost)

POST = GaplessInsert(
    parent=f"UPDATE groups SET posts = posts + 1, updated_at = {_NOW}"
    " WHERE id = :group_id AND state = 'open'",
    table="posts",
    values={
        "id": ":id",
        "group_id": ":group_id",
        "number": "first.posts",
        "author": ":author",
        "text": ":text",
        "reply_to": ":reply_to",
        "key": ":key",
        "at": "first.updated_at",
    },
    columns="number, at",
)

BY_KEY = Query(
    StoredPost,
    f"SELECT {_POST} FROM posts WHERE group_id = :group_id AND author = :author AND key = :key",
)

BY_NUMBER = Query(
    StoredPost, f"SELECT {_POST} FROM posts WHERE group_id = :group_id AND number = :number"
)

POSTS_AFTER = Listing(
    Query(
        StoredPost,
        f"""
        SELECT {_POST} FROM posts WHERE group_id = :group_id AND number > :position
        ORDER BY number LIMIT :limit
    """,
    ),
    start={"position": 0},
    key=lambda post: (post.number,),
)

POSTS_BEFORE = Listing(
    Query(
        StoredPost,
        f"""
        SELECT {_POST} FROM posts WHERE group_id = :group_id AND number < :before
        ORDER BY number DESC LIMIT :limit
    """,
    ),
    start={"before": LAST_NUMBER},
    key=lambda post: (post.number,),
)

DELETE_POSTS = Statement("""
    DELETE FROM posts WHERE id IN (
        SELECT id FROM posts WHERE group_id = :group_id ORDER BY number LIMIT :limit)
    RETURNING id
""")

# -- reactions ------------------------------------------------------------------------------------

_REACTION = columns_of(Reaction)

REACTIONS = Query(Reaction, f"SELECT {_REACTION} FROM reactions WHERE post_id {{is_listed}}")

REACT = Statement("""
    INSERT INTO reactions (post_id, emoji, member, at) VALUES (:post_id, :emoji, :member, :now)
    ON CONFLICT (post_id, emoji, member) DO NOTHING
    RETURNING 1
""")

UNREACT = Statement("""
    DELETE FROM reactions WHERE post_id = :post_id AND emoji = :emoji AND member = :member
    RETURNING 1
""")

COUNT_EMOJIS = Statement("""
    SELECT count(*) FROM (
        SELECT DISTINCT emoji FROM reactions WHERE post_id = :post_id AND emoji <> :emoji
    ) AS emojis
""")

# -- retention ------------------------------------------------------------------------------------

PRUNABLE = PrunableRows(
    "groups",
    setting="groups.retention_ms",
    ended={"ended_at": "ended_at IS NOT NULL AND ended_at < :before"},
    batch=20,
)

DELETE_REACTIONS = Statement("""
    DELETE FROM reactions WHERE post_id IN (
        SELECT id FROM posts WHERE group_id = :group_id ORDER BY number LIMIT :limit)
""")

DELETE_GROUP = Statement("DELETE FROM groups WHERE id = :group_id")

POSTS_RETENTION = Retention(
    "posts",
    setting="groups.retention_ms",
    created="at",
    ended="at < :before",
    project="(SELECT groups.project_id FROM groups WHERE groups.id = posts.group_id)",
    imported="imported_at",
)

# Reactions expire with their post, whose time decides; a reaction without a post by its own.
_POSTED_AT = "coalesce((SELECT posts.at FROM posts WHERE posts.id = reactions.post_id), at)"
REACTIONS_RETENTION = Retention(
    "reactions",
    setting="groups.retention_ms",
    key="post_id",
    created=_POSTED_AT,
    ended=f"{_POSTED_AT} < :before",
    project="""(
        SELECT groups.project_id FROM posts JOIN groups ON groups.id = posts.group_id
        WHERE posts.id = reactions.post_id)""",
    imported="imported_at",
)

# For imports: reserves post numbers.
RESERVE_NUMBERS = Statement(
    "UPDATE groups SET posts = posts + :count WHERE id = :id RETURNING posts"
)
