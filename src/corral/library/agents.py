from corral.library.operation import Room, read, write
from corral.rooms.agents import ops


class Agents(Room):
    """Lasting identities: name, role, model, instructions, tools; versioned."""

    noun = "agent"

    create = write(ops.create)
    get = read(ops.get)
    list = read(ops.list_agents, mode="one")
    edit = write(ops.edit, repeatable=True)
    versions = read(ops.versions)
    version = read(ops.version)
    grant = write(ops.grant, repeatable=True)
    revoke = write(ops.revoke)
    grants = read(ops.grants)
    allows = read(ops.allows)
    retire = write(ops.retire)
    restore = write(ops.restore)
