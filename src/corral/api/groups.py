"""Operations of `store.groups`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, write
from corral.api.operation import read as query
from corral.domain.groups import ops, posts


class Groups(Resource):
    """Groups: chats of agents and people inside the store."""

    noun = "group"
    subjects = ("group",)

    create = write(ops.create, actor=("by",))
    get = query(ops.get, agent=rules.only_group_member)
    list = query(ops.list_groups, mode="one")
    members = query(ops.list_members, agent=rules.only_group_member)
    join = write(ops.join, repeatable=True)
    leave = write(ops.leave, actor=("member",), agent=rules.as_member)
    archive = write(ops.archive)
    post = write(posts.post, repeatable_by="key", actor=("author",), agent=rules.as_author)
    send = write(posts.send_direct, repeatable_by="key", actor=("author",), agent=rules.as_author)
    broadcast = write(
        posts.broadcast, repeatable_by="key", actor=("author",), agent=rules.as_author
    )
    read = query(posts.list_posts, actor=("member",), agent=rules.as_member)
    mark = write(posts.mark_read, repeatable=True, actor=("member",), agent=rules.as_member)
    react = write(posts.react, repeatable=True, actor=("member",), agent=rules.as_member)
    unread = query(ops.list_unread, actor=("member",), agent=rules.as_member)
