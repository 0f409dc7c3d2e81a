"""What people do on the pages: each a form that calls one operation, and is told how it went.

An operation that refuses says so in its own words; the guard turns them into the answer.
"""

from typing import Any

import msgspec
from starlette.responses import Response

from corral.domain.settings.model import KNOWN
from corral.kernel.clock import parse_duration
from corral.kernel.errors import Invalid, Refused
from corral.kernel.money import format_usd, parse_usd
from corral.web.channel_actions import GATEWAY
from corral.web.race_actions import RACING
from corral.web.request import Show, Visit
from corral.web.team_actions import TEAM
from corral.web.verbs import on_one

REASON = "stopped from the dashboard"


def act(visit: Visit) -> Response:
    """The one door of all actions."""
    name = f"{visit.path('noun')}/{visit.path('verb')}"
    action = ACTIONS.get(name)
    if action is None:
        raise Invalid(f"{name} is nothing that can be done here; reload the page.")
    if not visit.may_act:
        raise Refused(f"The token {visit.who.name} may only look; use one of full scope.")
    with visit.store.telling(visit.taken.extend):
        return action(visit)


def ask_run(visit: Visit) -> Response:
    agent, budget, timeout = visit.given("agent"), visit.given("budget"), visit.given("timeout")
    run = visit.store.runs.ask(
        prompt=visit.must("prompt", "The prompt"),
        agent=agent,
        project=visit.must("project", "The project"),
        approvals=[name for name in (visit.given("approvals") or "").split(",") if name],
        budget_micros=parse_usd(budget) if budget else None,
        timeout_ms=parse_duration(timeout) if timeout else None,
    )
    return visit.done("It is queued.", go=f"/runs/{run.id}")


def stop_run(visit: Visit) -> Response:
    run = visit.store.runs.stop(visit.must("id", "The run"), reason=REASON)
    return visit.done(f"{run.name or run.what} is {run.state}.")


def resume_run(visit: Visit) -> Response:
    run = visit.store.runs.resume(visit.must("id", "The run"), prompt=visit.given("prompt"))
    return visit.done("It goes on.", go=f"/runs/{run.id}")


def send_to_run(visit: Visit) -> Response:
    sent = visit.store.runs.send(
        visit.must("id", "The run"),
        visit.must("text", "The text"),
        dialog=visit.given("dialog"),
    )
    how = {
        "typed": "It was typed in.",
        "answered": f"Answered: {sent.option}.",
        "mailed": "It was put into the session's mailbox.",
    }
    return visit.done(how[sent.how])


def drop_letter(visit: Visit) -> Response:
    letter = visit.store.mail.drop(visit.must("id", "The letter"), reason=visit.given("reason"))
    return visit.done(f"{letter.id} is dropped.")


def settle_letter(visit: Visit) -> Response:
    arrived = visit.given("arrived") == "yes"
    letter = visit.store.mail.settle(visit.must("id", "The letter"), delivered=arrived)
    return visit.done(f"{letter.id} is {letter.state}.")


def put_letter(visit: Visit) -> Response:
    letter = visit.store.mail.put(
        visit.must("mailbox", "The mailbox"),
        visit.must("body", "The text"),
        sender="user:dashboard",
    )
    return visit.done(f"{letter.id} is on its way to {letter.mailbox}.")


def create_schedule(visit: Visit) -> Response:
    rule = visit.must("rule", "The rule")
    how: dict[str, Any] = {"cron": rule} if " " in rule else {"every_ms": parse_duration(rule)}
    made = visit.store.schedules.create(
        visit.must("mailbox", "The mailbox"),
        visit.must("body", "The text"),
        name=visit.given("name"),
        time_zone=visit.given("time_zone") or "UTC",
        **how,
    )
    return visit.done(f"{made.name or made.id} puts its first letter soon.")


def rename_project(visit: Visit) -> Response:
    project = visit.store.projects.rename(
        visit.must("id", "The project"), visit.must("name", "The name")
    )
    return visit.done(f"It is called {project.name} now.")


def edit_agent(visit: Visit) -> Response:
    """What a field says counts; an empty one clears."""
    agent = visit.store.agents.edit(
        visit.must("id", "The agent"),
        role=visit.given("role"),
        model=visit.given("model"),
        instructions=visit.given("instructions"),
    )
    return visit.done(f"{agent.name} is at version {agent.version}.")


def set_setting(visit: Visit) -> Response:
    name = visit.must("name", "The setting")
    setting = visit.store.settings.set(name, typed_value(name, visit.must("value", "The value")))
    return visit.done(f"{setting.name} is set.")


def unset_setting(visit: Visit) -> Response:
    setting = visit.store.settings.unset(visit.must("name", "The setting"))
    return visit.done(f"{setting.name} is as it was made.")


def typed_value(name: str, text: str) -> Any:
    """A setting's value from what was typed: durations as 30d, lists with commas, else JSON."""
    known = KNOWN.get(name)
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
        raise Invalid(f"{text!r} is no whole number.", value=text) from None


def set_budget(visit: Visit) -> Response:
    limit = parse_usd(visit.must("limit", "The amount"))
    budget = visit.store.budgets.set(
        visit.must("scope", "What it is for"), limit, period=visit.given("period") or "total"
    )
    return visit.done(f"{budget.scope} may spend {format_usd(budget.limit_micros)}.")


def remove_budget(visit: Visit) -> Response:
    scope = visit.must("scope", "What it is for")
    visit.store.budgets.remove(scope, period=visit.given("period") or "total")
    return visit.done(f"The budget of {scope} is taken back.")


def _called(found: Any) -> str:
    """A schedule by its name; what it put has an id alone."""
    return str(getattr(found, "name", None) or found.id)


ACTIONS: dict[str, Show] = {
    "runs/ask": ask_run,
    "runs/stop": stop_run,
    "runs/resume": resume_run,
    "runs/send": send_to_run,
    "runs/delete": on_one(
        lambda store: store.runs.delete, "run", lambda run: f"{run.id} is forgotten.", go="/runs"
    ),
    "mail/put": put_letter,
    "mail/resend": on_one(
        lambda store: store.mail.resend,
        "letter",
        lambda letter: f"{letter.id} is on its way to {letter.mailbox} again.",
    ),
    "mail/drop": drop_letter,
    "mail/settle": settle_letter,
    "schedules/create": create_schedule,
    "schedules/pause": on_one(
        lambda store: store.schedules.pause,
        "schedule",
        lambda found: f"{_called(found)} is paused.",
    ),
    "schedules/resume": on_one(
        lambda store: store.schedules.resume, "schedule", lambda found: f"{_called(found)} goes on."
    ),
    "schedules/run": on_one(
        lambda store: store.schedules.run,
        "schedule",
        lambda found: f"{_called(found)} was put now.",
    ),
    "schedules/delete": on_one(
        lambda store: store.schedules.delete,
        "schedule",
        lambda found: f"{_called(found)} is taken back.",
    ),
    "timers/cancel": on_one(
        lambda store: store.timers.cancel, "timer", lambda timer: f"{timer.id} is taken back."
    ),
    "projects/archive": on_one(
        lambda store: store.projects.archive, "project", lambda found: f"{found.name} is archived."
    ),
    "projects/rename": rename_project,
    "agents/retire": on_one(
        lambda store: store.agents.retire, "agent", lambda agent: f"{agent.name} is retired."
    ),
    "agents/restore": on_one(
        lambda store: store.agents.restore, "agent", lambda agent: f"{agent.name} is back."
    ),
    "agents/edit": edit_agent,
    "sessions/close": on_one(
        lambda store: store.sessions.close,
        "session",
        lambda session: f"{session.title or session.id} is closed.",
    ),
    "sessions/reopen": on_one(
        lambda store: store.sessions.reopen,
        "session",
        lambda session: f"{session.title or session.id} is open again.",
    ),
    "settings/set": set_setting,
    "settings/unset": unset_setting,
    "budgets/set": set_budget,
    "budgets/remove": remove_budget,
    "alerts/remove": on_one(
        lambda store: store.alerts.remove, "alert", lambda _: "It tells nothing any more."
    ),
    "alerts/test": on_one(
        lambda store: store.alerts.test,
        "alert",
        lambda letter: f"A word was put into {letter.mailbox}, as {letter.id}.",
    ),
    **GATEWAY,
    **RACING,
    **TEAM,
}
