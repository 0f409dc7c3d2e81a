"""Tools: lock, lock_release, lock_list."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corral.domain.locks.model import Lock, LockState
from corral.kernel.errors import Refused
from corral.mcp.call import ToolArguments, ToolCall, ToolResult, WaitSeconds, WriteArguments

QUEUE_TIMEOUT_MS = 60_000  # a waiter that does not renew its request leaves the queue
MAX_LISTED = 50


class LockArguments(WriteArguments, kw_only=True):
    path: Annotated[
        str,
        Meta(description="A file, a directory (ending with /) or a pattern like src/*.py."),
    ]
    mode: Annotated[
        Literal["exclusive", "shared"], Meta(description="shared: other agents may read too.")
    ] = "exclusive"
    minutes: Annotated[int, Meta(ge=1, le=240, description="Minutes until the lock expires.")] = 10
    reason: Annotated[str | None, Meta(description="Purpose; visible to others.")] = None
    wait_seconds: WaitSeconds = 0
    queue: Annotated[
        bool,
        Meta(description="If the path is locked: join the queue and get a message when acquired."),
    ] = False


class LockInfo(msgspec.Struct, kw_only=True):
    id: str
    path: str
    state: str
    mode: str
    owner: str
    until: int
    reason: str | None


class LockResult(ToolResult, kw_only=True):
    lock: LockInfo


def _lock_info(lock: Lock) -> LockInfo:
    return LockInfo(
        id=lock.id,
        path=lock.path,
        state=lock.state,
        mode=lock.mode,
        owner=lock.owner,
        until=lock.lease_until,
        reason=lock.reason,
    )


def acquire_lock(call: ToolCall, arguments: LockArguments) -> LockResult | msgspec.Raw:
    """Lock files before you change them, so that no other agent changes them meanwhile. Call again
    to renew the lock. If another agent holds it, the error names the owner and the expiry: do other
    work, wait some seconds (wait_seconds), or join the queue (queue)."""
    caller = call.caller
    parameters: dict[str, Any] = {
        "project": caller.project,
        "path": arguments.path,
        "agent": caller.mailbox,
        "mode": arguments.mode,
        "ttl_ms": arguments.minutes * 60_000,
        "run": caller.run,
        "reason": arguments.reason,
    }

    def to_result(lock: Lock) -> LockResult:
        step = "Acquired. Change the files, then call lock_release."
        if lock.state is LockState.WAITING:
            step = "Queued. You get a message when you acquire the lock. Do other work first."
        return LockResult(next_step=step, lock=_lock_info(lock))

    if arguments.wait_seconds:
        return to_result(_wait_for_lock(call, parameters, arguments.wait_seconds))
    operation = "locks.request" if arguments.queue else "locks.acquire"
    return call.perform(operation, arguments, to_result, **parameters)


def _wait_for_lock(call: ToolCall, parameters: dict[str, Any], seconds: int) -> Lock:
    """Wait in the queue; leave it after `seconds`, or when the call is cancelled."""
    locks = call.store.locks
    request = locks.request(**parameters, wait_ms=QUEUE_TIMEOUT_MS, notify=False)
    if request.state is LockState.HELD:
        return request
    refused: Refused | None = None
    for wait_ms in call.wait_slices(seconds):
        try:
            return locks.wait(request.id, timeout_ms=wait_ms)
        except Refused as error:  # still waiting; Held means that the queue position was lost
            refused = error
    locks.release(request.id, agent=call.caller.mailbox)
    assert refused is not None
    raise refused


class LockReleaseArguments(WriteArguments, kw_only=True):
    lock: Annotated[str, Meta(description="Id of the lock, from the result of lock.")]


def release_lock(call: ToolCall, arguments: LockReleaseArguments) -> LockResult | msgspec.Raw:
    """Release a lock, or leave its queue, as soon as you no longer need the files. Idempotent."""
    return call.perform(
        "locks.release",
        arguments,
        lambda lock: LockResult(next_step="Released. Continue.", lock=_lock_info(lock)),
        lock=arguments.lock,
        agent=call.caller.mailbox,
    )


class LockListArguments(ToolArguments, kw_only=True):
    path: Annotated[str | None, Meta(description="Only locks that cover this path.")] = None
    after: Annotated[
        str | None, Meta(description="Next page: the `more` of the previous result.")
    ] = None


class LockListResult(ToolResult, kw_only=True):
    locks: list[LockInfo]
    more: str | None


def list_locks(call: ToolCall, arguments: LockListArguments) -> LockListResult:
    """List the locks of your project: paths, owners, waiters and expiry times."""
    project = call.caller.project
    if arguments.path is not None:
        items, more = call.store.locks.holders(project, arguments.path), None
    else:
        page = call.store.locks.list(project=project, after=arguments.after, limit=MAX_LISTED)
        items, more = page.items, page.next
    return LockListResult(
        next_step="Lock the files you will change. Do not change files that another agent locked.",
        locks=[_lock_info(item) for item in items],
        more=more,
    )
