"""Tools: delegate, result."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corral.kernel.errors import Invalid
from corral.mcp.call import ToolCall, ToolResult, WriteArguments
from corral.mcp.tools.tasks import find_task


class DelegateArguments(WriteArguments, kw_only=True):
    to: Annotated[str, Meta(description="The agent's name.")]
    text: Annotated[
        str | None, Meta(description="What the agent should do. Give this or task.")
    ] = None
    task: Annotated[
        str | None,
        Meta(description="Key of a task to assign to the agent. Give this or text."),
    ] = None
    context: Annotated[str | None, Meta(description="Background the agent needs.")] = None
    within_minutes: Annotated[int, Meta(ge=1, le=525_600)] | None = None


class DelegateResult(ToolResult, kw_only=True):
    delegation: str
    state: str


def delegate(call: ToolCall, arguments: DelegateArguments) -> DelegateResult | msgspec.Raw:
    """Delegate work, or a task, to one agent. The result, or a notice that none arrived in time,
    comes to your inbox."""
    if (arguments.text is None) == (arguments.task is None):
        raise Invalid("Give exactly one of text and task.", reason="text_or_task")
    parameters: dict[str, Any] = {
        "to": arguments.to,
        "context": arguments.context,
        "deadline_at": call.store.now() + arguments.within_minutes * 60_000
        if arguments.within_minutes
        else None,
        "agent": call.caller.name,
    }

    def to_result(delegation: Any) -> DelegateResult:
        step = "The agent was notified. Continue; the result comes to your inbox."
        return DelegateResult(next_step=step, delegation=delegation.id, state=delegation.state)

    if arguments.task is not None:
        task = find_task(call, arguments.task).id
        return call.perform("tasks.delegate", arguments, to_result, task=task, **parameters)
    return call.perform(
        "delegations.delegate",
        arguments,
        to_result,
        text=arguments.text,
        project_id=call.caller.project_id,
        **parameters,
    )


class ResultArguments(WriteArguments, kw_only=True):
    delegation: Annotated[str, Meta(description="Id of the delegation, from the message.")]
    result: Annotated[Any, Meta(description="Text or JSON. Give this or failed.")] = None
    failed: Annotated[str | None, Meta(description="Why the work cannot be done.")] = None


def report_result(call: ToolCall, arguments: ResultArguments) -> DelegateResult | msgspec.Raw:
    """Return the result of work that was delegated to you, or explain why it cannot be done. The
    delegator gets it as a message. For a delegated task call task_submit instead."""
    parameters = {"delegation": arguments.delegation, "agent": call.caller.name}

    def to_result(delegation: Any) -> DelegateResult:
        return DelegateResult(
            next_step="The result was delivered. Read inbox, or claim the next task.",
            delegation=delegation.id,
            state=delegation.state,
        )

    if arguments.failed:
        return call.perform(
            "delegations.fail", arguments, to_result, reason=arguments.failed, **parameters
        )
    return call.perform(
        "delegations.finish", arguments, to_result, result=arguments.result, **parameters
    )
