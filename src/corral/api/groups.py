from corral.api.operation import Room, write
from corral.api.operation import read as asks
from corral.domain.groups import ops, posts


class Groups(Room):
    """Chats of agents and people."""

    noun = "group"

    create = write(ops.create)
    get = asks(ops.get)
    list = asks(ops.list_groups, mode="one")
    members = asks(ops.members)
    join = write(ops.join, repeatable=True)
    leave = write(ops.leave)
    archive = write(ops.archive)
    post = write(posts.post, repeatable_by="key")
    send = write(posts.send, repeatable_by="key")
    broadcast = write(posts.broadcast, repeatable_by="key")
    read = asks(posts.read)
    mark = write(posts.mark, repeatable=True)
    react = write(posts.react, repeatable=True)
    unread = asks(ops.unread)
