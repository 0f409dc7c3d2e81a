"""Tools: progress, plan."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corral.mcp.call import ToolCall, ToolResult, WriteArguments
from corral.mcp.tools.tasks import LEASE_WITHOUT_RUN_MS, find_task


class ProgressArguments(WriteArguments, kw_only=True):
    summary: Annotated[str, Meta(min_length=1, description="One or two sentences.")]
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    task: Annotated[str | None, Meta(description="Key of the task that it is about.")] = None


class ProgressResult(ToolResult, kw_only=True):
    summary: str
    percent: int | None


def report_progress(call: ToolCall, arguments: ProgressArguments) -> ProgressResult | msgspec.Raw:
    """Report your progress to those who wait for you. Naming your task also renews its lease. A
    progress report does not complete a task: call task_submit."""
    task = find_task(call, arguments.task) if arguments.task else None
    if task is not None and task.state == "running":
        lease_ms = None if call.caller.run else LEASE_WITHOUT_RUN_MS
        call.store.tasks.renew(task.id, agent=call.caller.name, lease_ms=lease_ms)

    def to_result(report: Any) -> ProgressResult:
        return ProgressResult(
            next_step="Reported. Continue.", summary=report.summary, percent=report.percent
        )

    return call.perform(
        "progress.report",
        arguments,
        to_result,
        summary=arguments.summary,
        agent=call.caller.name,
        percent=arguments.percent,
        task=task.id if task else None,
        run=call.caller.run,
        project=call.caller.project_id,
    )


class PlanStepArguments(msgspec.Struct, forbid_unknown_fields=True):
    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


class PlanArguments(WriteArguments, kw_only=True):
    steps: Annotated[list[PlanStepArguments], Meta(min_length=1, max_length=200)]


class PlanResult(ToolResult, kw_only=True):
    steps: int


def set_plan(call: ToolCall, arguments: PlanArguments) -> PlanResult | msgspec.Raw:
    """Publish your plan, step by step. It replaces your previous plan; others and your next run can
    read it."""
    return call.perform(
        "plans.set",
        arguments,
        lambda plan: PlanResult(next_step="Published. Continue.", steps=len(plan.entries)),
        steps=arguments.steps,
        agent=call.caller.name,
        run=call.caller.run,
        project_id=call.caller.project_id,
    )
