"""Tools by which agents keep out of each other's way, and hand work to each other."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corral.domain.locks.model import Lock, LockState
from corral.kernel.errors import Invalid, Refused
from corral.mcp.call import Arguments, Call, Told, Wait, Writing
from corral.mcp.tools.tasks import named_task

PLACE_MS = 60_000  # a place in line is kept for so long after the last word of whoever waits
MOST_LISTED = 50


# -- delegations -------------------------------------------------------------------------------


class Delegate(Writing, kw_only=True):
    to: Annotated[str, Meta(description="The agent's name.")]
    text: Annotated[str | None, Meta(description="What it is to do; or name a task.")] = None
    task: Annotated[
        str | None, Meta(description="The key of a task that it alone is to do; then no text.")
    ] = None
    context: Annotated[str | None, Meta(description="What it should know besides.")] = None
    within_minutes: Annotated[int, Meta(ge=1, le=525_600)] | None = None


class Delegated(Told, kw_only=True):
    delegation: str
    state: str


def delegate(call: Call, asked: Delegate) -> Delegated | msgspec.Raw:
    """Hand a piece of work, or a task, to one agent. The result, or that none came in time, comes
    back to your inbox as a letter."""
    if (asked.text is None) == (asked.task is None):
        raise Invalid(
            "Give either a text or a task, so that it is clear what is to be done.",
            reason="text_or_task",
        )
    given: dict[str, Any] = {
        "to": asked.to,
        "context": asked.context,
        "deadline_at": call.store.now() + asked.within_minutes * 60_000
        if asked.within_minutes
        else None,
        "agent": call.caller.name,
    }

    def told(made: Any) -> Delegated:
        step = "It was told by letter. Go on; the result comes to your inbox."
        return Delegated(next_step=step, delegation=made.id, state=made.state)

    if asked.task is not None:
        task = named_task(call, asked.task).id
        return call.do("tasks.delegate", asked, told, task=task, **given)
    project = call.caller.project_id
    return call.do(
        "delegations.delegate", asked, told, text=asked.text, project_id=project, **given
    )


class ResultGiven(Writing, kw_only=True):
    delegation: Annotated[str, Meta(description="Its id, as the letter told it.")]
    result: Annotated[Any, Meta(description="Text or JSON; or give failed.")] = None
    failed: Annotated[str | None, Meta(description="Why it cannot be done.")] = None


def result(call: Call, asked: ResultGiven) -> Delegated | msgspec.Raw:
    """Hand back the result of work that was delegated to you, or say why it cannot be done. Whoever
    gave it to you gets it as a letter. A delegated task is ended by task_submit instead."""
    who = {"delegation": asked.delegation, "agent": call.caller.name}

    def told(ended: Any) -> Delegated:
        return Delegated(
            next_step="It was handed back. Read inbox, or take the next task.",
            delegation=ended.id,
            state=ended.state,
        )

    if asked.failed:
        return call.do("delegations.fail", asked, told, reason=asked.failed, **who)
    return call.do("delegations.finish", asked, told, result=asked.result, **who)


# -- locks -------------------------------------------------------------------------------------


class LockAsked(Writing, kw_only=True):
    path: Annotated[
        str,
        Meta(
            description="A file, a folder (ends with /) or a pattern as src/*.py, in the project."
        ),
    ]
    mode: Annotated[
        Literal["exclusive", "shared"], Meta(description="shared: others may read along.")
    ] = "exclusive"
    minutes: Annotated[int, Meta(ge=1, le=240, description="Until it ends by itself.")] = 10
    reason: Annotated[str | None, Meta(description="What for; others can read it.")] = None
    wait_seconds: Wait = 0
    queue: Annotated[
        bool,
        Meta(description="If it is held: stand in line, and get a letter when it is yours."),
    ] = False


class Holding(msgspec.Struct, kw_only=True):
    id: str
    path: str
    state: str
    mode: str
    owner: str
    until: int
    reason: str | None


class Locked(Told, kw_only=True):
    lock: Holding


def _shown(lock: Lock) -> Holding:
    return Holding(
        id=lock.id,
        path=lock.path,
        state=lock.state,
        mode=lock.mode,
        owner=lock.owner,
        until=lock.lease_until,
        reason=lock.reason,
    )


def lock(call: Call, asked: LockAsked) -> Locked | msgspec.Raw:
    """Lock files before you change them, so that no other agent changes them meanwhile. Asking
    again renews it. If another holds it you are told who and until when: work on something else,
    wait some seconds, or stand in line."""
    caller = call.caller
    given: dict[str, Any] = {
        "project": caller.project,
        "path": asked.path,
        "agent": caller.mailbox,
        "mode": asked.mode,
        "ttl_ms": asked.minutes * 60_000,
        "run": caller.run,
        "reason": asked.reason,
    }

    def told(found: Lock) -> Locked:
        step = "It is yours: change the files, then lock_release."
        if found.state is LockState.WAITING:
            step = "You stand in line; a letter comes when it is yours. Do something else first."
        return Locked(next_step=step, lock=_shown(found))

    if asked.wait_seconds:
        return told(_wait(call, given, asked.wait_seconds))
    if asked.queue:
        return call.do("locks.request", asked, told, **given)
    return call.do("locks.acquire", asked, told, **given)


def _wait(call: Call, given: dict[str, Any], seconds: int) -> Lock:
    """Stand in line for a while; whoever has gone, or waited for long enough, leaves it."""
    locks = call.store.locks
    found = locks.request(**given, wait_ms=PLACE_MS, tells=False)
    if found.state is LockState.HELD:
        return found
    refused: Refused | None = None
    for wait_ms in call.slices(seconds):
        try:
            return locks.wait(found.id, timeout_ms=wait_ms)
        except Refused as error:  # not yet; Held would mean that the place is lost
            refused = error
    locks.release(found.id, agent=call.caller.mailbox)
    assert refused is not None
    raise refused


class LockReleased(Writing, kw_only=True):
    lock: Annotated[str, Meta(description="Its id, as lock told it.")]


def lock_release(call: Call, asked: LockReleased) -> Locked | msgspec.Raw:
    """Give a lock back, or leave the line, as soon as you need the files no longer. Doing it twice
    does no harm."""
    return call.do(
        "locks.release",
        asked,
        lambda found: Locked(next_step="Go on.", lock=_shown(found)),
        lock=asked.lock,
        agent=call.caller.mailbox,
    )


class LockListAsked(Arguments, kw_only=True):
    path: Annotated[str | None, Meta(description="Only locks that cover this path.")] = None
    after: Annotated[str | None, Meta(description="Go on: the `more` of the last answer.")] = None


class Locks(Told, kw_only=True):
    locks: list[Holding]
    more: str | None


def lock_list(call: Call, asked: LockListAsked) -> Locks:
    """Who holds which files of your project, who waits for them, and until when."""
    project = call.caller.project
    if asked.path is not None:
        items, more = call.store.locks.holders(project, asked.path), None
    else:
        page = call.store.locks.list(project=project, after=asked.after, limit=MOST_LISTED)
        items, more = page.items, page.next
    step = "Lock what you will change; what another holds, leave alone or wait for."
    return Locks(next_step=step, locks=[_shown(each) for each in items], more=more)
