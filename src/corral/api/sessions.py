from corral.api.operation import Room, read, write
from corral.db.tx import Tx
from corral.domain.sessions import context as given
from corral.domain.sessions import ops, retention, undo
from corral.domain.sessions import retros as sessions_retros


def forget_project(tx: Tx, project_id: str) -> None:
    """Forget the sessions of a project, and what the search knows of them."""
    from corral.domain.search import ops as search

    while found := retention.of_project(tx, project_id):
        for id in found:
            while not search.forget(tx, "turn", id) or not retention.forget(tx, id):
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
    take_back = write(undo.take_back)
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
    record_retro = write(sessions_retros.record_retro)
    retros = read(sessions_retros.retros)
