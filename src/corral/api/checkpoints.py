"""Operations of `store.checkpoints`."""

from corral.api.operation import Resource, read, write
from corral.domain.checkpoints import ops


class Checkpoints(Resource):
    """Checkpoints: the states that an agent framework saves after each step of a program."""

    noun = "checkpoint"

    put = write(ops.put, mode="one", repeatable=True)
    put_writes = write(ops.put_writes, mode="one", repeatable=True)
    get = read(ops.get, mode="one", subject="thread")
    history = read(ops.list_history)
    list = read(ops.list_checkpoints, mode="one")
    heads = read(ops.list_heads, mode="one")
    copy = write(ops.copy, repeatable=True)
    delete = write(ops.delete, repeatable=True)
    delete_of_callers = write(ops.delete_by_callers, repeatable=True)
    trim = write(ops.trim, repeatable=True)
