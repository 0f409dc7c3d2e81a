from corral.library.operation import Room, write
from corral.library.operation import read as asks
from corral.rooms.groups import ops, posting


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
    post = write(posting.post, repeatable_by="key")
    send = write(posting.send, repeatable_by="key")
    broadcast = write(posting.broadcast, repeatable_by="key")
    read = asks(posting.read)
    mark = write(posting.mark, repeatable=True)
    react = write(posting.react, repeatable=True)
    unread = asks(ops.unread)
