"""Operations of `store.groups`."""

from corral.api.operation import Resource, write
from corral.api.operation import read as query
from corral.domain.groups import ops, posts


class Groups(Resource):
    """Groups: chats of agents and people inside the store."""

    noun = "group"

    create = write(ops.create)
    get = query(ops.get)
    list = query(ops.list_groups, mode="one")
    members = query(ops.list_members)
    join = write(ops.join, repeatable=True)
    leave = write(ops.leave)
    archive = write(ops.archive)
    post = write(posts.post, repeatable_by="key")
    send = write(posts.send_direct, repeatable_by="key")
    broadcast = write(posts.broadcast, repeatable_by="key")
    read = query(posts.list_posts)
    mark = write(posts.mark_read, repeatable=True)
    react = write(posts.react, repeatable=True)
    unread = query(ops.list_unread)
