"""The tool by which agents ask the host for what they may not do themselves."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from corral.mcp.call import Call, Told, Wait, Writing

ACTIONS = (
    "create_agent {name, instructions, role?, model?}; schedule_task {text, cron | every_seconds, "
    "time_zone?, script?, name?}: you are woken with the text, a script is run first and can spare "
    "you that; change_task {task, verb: pause, resume, run, cancel}: of your own; destination "
    "{place, name?}: a chat that you want to send to; secret {name, reason}: somebody gives it "
    "elsewhere, and you learn that it is there, never what it is."
)


class RequestAsked(Writing, kw_only=True):
    action: Literal["create_agent", "schedule_task", "change_task", "destination", "secret"]
    arguments: Annotated[dict[str, Any], Meta(description=ACTIONS)]
    wait_seconds: Wait = 0


class Requested(Told, kw_only=True):
    id: str
    state: str
    effect: str
    result: dict[str, Any] | None
    reason: str | None


def request(call: Call, asked: RequestAsked) -> Requested:
    """Ask the host to do something for you that you may not do yourself. It is done at once where
    you were granted it; else people are shown all of it and decide, and you get a letter. Never ask
    anybody to type a secret to you: ask for it here, by its name."""
    me = call.caller
    key = f"mcp:{asked.idempotency_key}" if asked.idempotency_key else None
    room = call.store.requests
    found = room.ask(
        me.agent.id, asked.action, asked.arguments, run=me.run, session=me.session, key=key
    )
    for wait_ms in call.slices(asked.wait_seconds) if asked.wait_seconds else ():
        if found.state != "waiting":
            break
        with call.store.listening() as listener:
            listener.wait(wait_ms / 1_000)
        found = room.get(found.id)
    return Requested(
        next_step=_STEPS.get(found.state, "It was not allowed: take another way, or leave it."),
        id=found.id,
        state=found.state,
        effect=found.effect,
        result=found.result,
        reason=found.reason,
    )


_STEPS = {
    "done": "It is done; go on with it.",
    "waiting": "Somebody must decide. Go on with something else; a letter tells you how it ended.",
}
