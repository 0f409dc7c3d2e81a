from corral.db.tx import Tx
from corral.library.operation import Room, read, write
from corral.rooms.sessions import context as given
from corral.rooms.sessions import forgetting, looking, ops, standing


def forget_project(tx: Tx, project_id: str) -> None:
    """Forget the sessions of a project, and what the search knows of them."""
    from corral.rooms.search import ops as search

    while found := forgetting.of_project(tx, project_id):
        for id in found:
            while not search.forget(tx, "turn", id) or not forgetting.forget(tx, id):
                pass


class Sessions(Room):
    """Conversations of agents, turn by turn."""

    noun = "session"

    open = write(ops.open_session)
    get = read(ops.get, mode="one")
    by_provider = read(ops.by_provider, mode="one")
    list = read(ops.list_sessions)
    append = write(ops.append, mode="one", repeatable_by="key")
    append_many = write(ops.append_many)
    take_back = write(standing.take_back)
    turns = read(ops.turns)
    last = read(ops.last)
    state = read(ops.state)
    set_state = write(ops.set_state, repeatable=True)
    clear = write(given.clear, repeatable=True)
    set_provider_session = write(ops.set_provider_session, repeatable=True)
    handoff = write(given.handoff)
    handoffs = read(given.handoffs)
    context = read(given.context)
    fork = write(given.fork)
    rename = write(ops.rename, repeatable=True)
    close = write(ops.close)
    reopen = write(ops.reopen)
    record_retro = write(looking.record_retro)
    retros = read(looking.retros)
