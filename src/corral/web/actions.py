"""Actions of the pages: each is a form that calls one operation and gets a notice.

An operation that fails raises an error; the middleware renders it.
"""

from typing import Any

import msgspec
from starlette.responses import Response

from corral.domain.settings.model import DEFINITIONS
from corral.kernel.clock import parse_duration
from corral.kernel.errors import Invalid, Refused
from corral.kernel.money import format_usd, parse_usd
from corral.web.channel_actions import CHANNEL_ACTIONS
from corral.web.chat import CHAT_ACTIONS
from corral.web.race_actions import RACE_ACTIONS
from corral.web.request import PageHandler, PageRequest
from corral.web.simple_actions import simple_action
from corral.web.team_actions import TEAM_ACTIONS

REASON = "stopped from the dashboard"


def dispatch_action(request: PageRequest) -> Response:
    """Run the action that the path names; raises Refused for a read-only token."""
    name = f"{request.path_param('noun')}/{request.path_param('verb')}"
    action = ACTIONS.get(name)
    if action is None:
        raise Invalid(f"Unknown action {name}. Reload the page.")
    if not request.can_write:
        raise Refused(f"Token {request.token.name} is read-only. Use a token with full scope.")
    with request.store.report_redactions(request.redacted.extend):
        return action(request)


def start_run(request: PageRequest) -> Response:
    agent, budget, timeout = (
        request.field("agent"),
        request.field("budget"),
        request.field("timeout"),
    )
    run = request.store.runs.start(
        prompt=request.require("prompt", "The prompt"),
        agent=agent,
        project=request.require("project", "The project"),
        approvals=[name for name in (request.field("approvals") or "").split(",") if name],
        budget_micros=parse_usd(budget) if budget else None,
        timeout_ms=parse_duration(timeout) if timeout else None,
    )
    return request.success("Run queued.", redirect_to=f"/runs/{run.id}")


def stop_run(request: PageRequest) -> Response:
    run = request.store.runs.stop(request.require("id", "The run"), reason=REASON)
    return request.success(f"Run {run.name or run.description} is {run.state}.")


def resume_run(request: PageRequest) -> Response:
    run = request.store.runs.resume(
        request.require("id", "The run"), prompt=request.field("prompt")
    )
    return request.success("Run resumed.", redirect_to=f"/runs/{run.id}")


def send_to_run(request: PageRequest) -> Response:
    sent = request.store.runs.send(
        request.require("id", "The run"),
        request.require("text", "The text"),
        dialog=request.field("dialog"),
    )
    how = {
        "typed": "Sent to the terminal.",
        "answered": f"Answered: {sent.option}.",
        "mailed": "Sent to the session's mailbox.",
    }
    return request.success(how[sent.how])


def drop_letter(request: PageRequest) -> Response:
    letter = request.store.mail.drop(
        request.require("id", "The letter"), reason=request.field("reason")
    )
    return request.success(f"Letter {letter.id} dropped.")


def resolve_letter(request: PageRequest) -> Response:
    arrived = request.field("arrived") == "yes"
    letter = request.store.mail.resolve(request.require("id", "The letter"), delivered=arrived)
    return request.success(f"Letter {letter.id} marked as {letter.state}.")


def put_letter(request: PageRequest) -> Response:
    letter = request.store.mail.put(
        request.require("mailbox", "The mailbox"),
        request.require("body", "The text"),
        sender="user:dashboard",
    )
    return request.success(f"Letter {letter.id} sent to {letter.mailbox}.")


def create_schedule(request: PageRequest) -> Response:
    rule = request.require("rule", "The rule")
    trigger: dict[str, Any] = {"cron": rule} if " " in rule else {"every_ms": parse_duration(rule)}
    schedule = request.store.schedules.create(
        request.require("mailbox", "The mailbox"),
        request.require("body", "The text"),
        name=request.field("name"),
        time_zone=request.field("time_zone") or "UTC",
        **trigger,
    )
    return request.success(f"Schedule {schedule.name or schedule.id} created.")


def rename_project(request: PageRequest) -> Response:
    project = request.store.projects.rename(
        request.require("id", "The project"), request.require("name", "The name")
    )
    return request.success(f"Project renamed to {project.name}.")


def edit_agent(request: PageRequest) -> Response:
    """Set all fields; an empty one clears its value."""
    agent = request.store.agents.edit(
        request.require("id", "The agent"),
        role=request.field("role"),
        model=request.field("model"),
        instructions=request.field("instructions"),
    )
    return request.success(f"Agent {agent.name} updated to version {agent.version}.")


def set_setting(request: PageRequest) -> Response:
    name = request.require("name", "The setting")
    setting = request.store.settings.set(
        name, typed_value(name, request.require("value", "The value"))
    )
    return request.success(f"Setting {setting.name} saved.")


def unset_setting(request: PageRequest) -> Response:
    setting = request.store.settings.unset(request.require("name", "The setting"))
    return request.success(f"Setting {setting.name} reset to its default.")


def typed_value(name: str, text: str) -> Any:
    """Parse the value of a setting: durations as 30d, lists with commas, else JSON or text."""
    known = DEFINITIONS.get(name)
    if known is not None and known.type == list[int]:
        return [_number(name, part.strip()) for part in text.split(",")]
    if name.endswith("_ms") or (known is not None and known.type is int):
        return _number(name, text)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


def _number(name: str, text: str) -> int:
    if name.endswith("_ms") and not text.isdigit():
        return parse_duration(text)
    try:
        return int(text)
    except ValueError:
        raise Invalid(
            f"Invalid number {text!r} for {name}: expected digits, such as 10.", value=text
        ) from None


def set_budget(request: PageRequest) -> Response:
    limit = parse_usd(request.require("limit", "The amount"))
    budget = request.store.budgets.set(
        request.require("scope", "The scope"), limit, period=request.field("period") or "total"
    )
    return request.success(f"Budget of {budget.scope} set to {format_usd(budget.limit_micros)}.")


def remove_budget(request: PageRequest) -> Response:
    scope = request.require("scope", "The scope")
    request.store.budgets.remove(scope, period=request.field("period") or "total")
    return request.success(f"Budget of {scope} removed.")


def _display_name(record: Any) -> str:
    """Return the name of a schedule, or the id of the message that it sent."""
    return str(getattr(record, "name", None) or record.id)


ACTIONS: dict[str, PageHandler] = {
    "runs/start": start_run,
    "runs/stop": stop_run,
    "runs/resume": resume_run,
    "runs/send": send_to_run,
    "runs/delete": simple_action(
        lambda store: store.runs.delete,
        "run",
        lambda run: f"Run {run.id} deleted.",
        redirect_to="/runs",
    ),
    "mail/put": put_letter,
    "mail/resend": simple_action(
        lambda store: store.mail.resend,
        "message",
        lambda letter: f"Letter {letter.id} sent to {letter.mailbox} again.",
    ),
    "mail/drop": drop_letter,
    "mail/resolve": resolve_letter,
    "schedules/create": create_schedule,
    "schedules/pause": simple_action(
        lambda store: store.schedules.pause,
        "schedule",
        lambda schedule: f"Schedule {_display_name(schedule)} paused.",
    ),
    "schedules/resume": simple_action(
        lambda store: store.schedules.resume,
        "schedule",
        lambda schedule: f"Schedule {_display_name(schedule)} resumed.",
    ),
    "schedules/run": simple_action(
        lambda store: store.schedules.run,
        "schedule",
        lambda result: f"Schedule run: {_display_name(result)}.",
    ),
    "schedules/delete": simple_action(
        lambda store: store.schedules.delete,
        "schedule",
        lambda schedule: f"Schedule {_display_name(schedule)} deleted.",
    ),
    "timers/cancel": simple_action(
        lambda store: store.timers.cancel, "timer", lambda timer: f"Timer {timer.id} cancelled."
    ),
    "projects/archive": simple_action(
        lambda store: store.projects.archive,
        "project",
        lambda project: f"Project {project.name} archived.",
    ),
    "projects/rename": rename_project,
    "agents/retire": simple_action(
        lambda store: store.agents.retire, "agent", lambda agent: f"Agent {agent.name} retired."
    ),
    "agents/restore": simple_action(
        lambda store: store.agents.restore, "agent", lambda agent: f"Agent {agent.name} restored."
    ),
    "agents/edit": edit_agent,
    "sessions/close": simple_action(
        lambda store: store.sessions.close,
        "session",
        lambda session: f"Session {session.title or session.id} closed.",
    ),
    "sessions/reopen": simple_action(
        lambda store: store.sessions.reopen,
        "session",
        lambda session: f"Session {session.title or session.id} reopened.",
    ),
    "settings/set": set_setting,
    "settings/unset": unset_setting,
    "budgets/set": set_budget,
    "budgets/remove": remove_budget,
    "alerts/remove": simple_action(
        lambda store: store.alerts.remove, "alert", lambda _: "Alert removed."
    ),
    "alerts/test": simple_action(
        lambda store: store.alerts.test,
        "alert",
        lambda letter: f"Test alert sent to {letter.mailbox} ({letter.id}).",
    ),
    **CHANNEL_ACTIONS,
    **CHAT_ACTIONS,
    **RACE_ACTIONS,
    **TEAM_ACTIONS,
}
