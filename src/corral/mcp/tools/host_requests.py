"""Tool: request, for actions that an agent may not perform itself."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from corral.mcp.call import ToolCall, ToolResult, WaitSeconds, WriteArguments

ACTIONS = (
    "create_agent {name, instructions, role?, model?}; schedule_prompt {text, cron | "
    "every_seconds, time_zone?, script?, name?}: wakes you with the text; a script runs first and "
    "can skip the wake-up; change_prompt {schedule, verb: pause, resume, run, cancel}: changes one "
    "of your schedules; destination {place, name?}: lets you send to a chat; secret {name, "
    "reason}: a person stores the secret, and you get a message that it exists, without its value."
)


class RequestArguments(WriteArguments, kw_only=True):
    action: Literal["create_agent", "schedule_prompt", "change_prompt", "destination", "secret"]
    arguments: Annotated[dict[str, Any], Meta(description=ACTIONS)]
    wait_seconds: WaitSeconds = 0


class RequestResult(ToolResult, kw_only=True):
    id: str
    state: str
    effect: str
    result: dict[str, Any] | None
    reason: str | None


def ask_host(call: ToolCall, arguments: RequestArguments) -> RequestResult:
    """Ask the host to perform an action that you may not perform yourself. It is performed at once
    if you have the grant; otherwise people see the full request and decide, and you get a message.
    Never ask anyone to send you a secret: request it here by name."""
    caller, requests = call.caller, call.store.host_requests
    key = f"mcp:{arguments.idempotency_key}" if arguments.idempotency_key else None
    record = requests.ask(
        caller.agent.id,
        arguments.action,
        arguments.arguments,
        run=caller.run,
        session=caller.session,
        key=key,
    )
    for wait_ms in call.wait_slices(arguments.wait_seconds) if arguments.wait_seconds else ():
        if record.state != "waiting":
            break
        with call.store.listening() as listener:
            listener.wait(wait_ms / 1_000)
        record = requests.get(record.id)
    return RequestResult(
        next_step=_NEXT_STEPS.get(
            record.state, "The request was refused. Find another way, or leave it."
        ),
        id=record.id,
        state=record.state,
        effect=record.effect,
        result=record.result,
        reason=record.reason,
    )


_NEXT_STEPS = {
    "done": "The request was performed. Continue.",
    "waiting": "A person must decide. Continue with other work; you get a message with the "
    "decision.",
}
