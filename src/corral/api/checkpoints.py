from corral.api.operation import Room, read, write
from corral.domain.checkpoints import ops


class Checkpoints(Room):
    """States of programs that a framework runs step by step."""

    noun = "checkpoint"

    put = write(ops.put, mode="one", repeatable=True)
    put_writes = write(ops.put_writes, mode="one", repeatable=True)
    get = read(ops.get, mode="one")
    history = read(ops.history)
    list = read(ops.list_checkpoints, mode="one")
    heads = read(ops.heads, mode="one")
    copy = write(ops.copy, repeatable=True)
    delete = write(ops.delete, repeatable=True)
    delete_of_callers = write(ops.delete_of_callers, repeatable=True)
    trim = write(ops.trim, repeatable=True)
