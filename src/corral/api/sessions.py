"""Operations of `store.sessions`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, read, write
from corral.domain.sessions import context as session_context
from corral.domain.sessions import ops, undo
from corral.domain.sessions import retros as session_retros


class Sessions(Resource):
    """Sessions: the conversations of agents, turn by turn.

    Turns are numbered from 1 without gaps and never change; `undo` marks turns as withdrawn.
    """

    noun = "session"
    subjects = ("session",)

    open = write(ops.open_session)
    get = read(ops.get, mode="one", agent=rules.only_own_session)
    by_provider = read(ops.find_by_provider, mode="one")
    list = read(ops.list_sessions, agent=rules.as_agent, agent_or_project="agent")
    append = write(
        ops.append,
        mode="one",
        repeatable_by="key",
        actor=("agent",),
        in_run="change_session",
        agent=rules.as_turn_author,
        objects={"run": "runs"},
    )
    append_many = write(ops.append_many, in_run="change_session")
    undo = write(undo.undo_last_turn, in_run="change_session")
    turns = read(ops.list_turns, agent=rules.only_own_session)
    last = read(ops.list_latest_turns)
    state = read(ops.get_state, agent=rules.only_own_session)
    set_state = write(
        ops.set_state, repeatable=True, in_run="change_session", agent=rules.only_own_session
    )
    clear = write(session_context.clear, repeatable=True, in_run="change_session")
    set_provider_session = write(ops.set_provider_session, repeatable=True, in_run="change_session")
    handoff = write(session_context.hand_off, in_run="change_session")
    handoffs = read(session_context.list_handoffs)
    context = read(session_context.get_context, agent=rules.only_own_session)
    fork = write(session_context.fork)
    rename = write(ops.rename, repeatable=True, in_run="change_session")
    close = write(ops.close, in_run="change_session")
    reopen = write(ops.reopen, in_run="change_session")
    record_retro = write(session_retros.record_retro, in_run="change_session")
    retros = read(session_retros.list_retros)
