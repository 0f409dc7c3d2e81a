"""`corral hook PROVIDER EVENT`: the entry point for hooks of agent CLIs and git.

A hook runs at every tool call, so it bypasses the command line parser and imports only what a lock
check needs. A refusal names the owner of the file and the end of the lock. If Corral itself fails
(invalid input, unavailable store), the tool call or commit is allowed: the error goes to standard
error. The exit code is 1, which no agent CLI treats as a refusal; for git, which treats every code
but 0 as a refusal, it is 0.
"""

import os
import sys
from typing import TYPE_CHECKING

from corral.kernel.errors import CorralError, Held, Invalid, NotFound, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.api import Corral

HOOK_FAILED = 1
MAX_INPUT_BYTES = 16 << 20
MAX_SHOWN = 10
WRITE_SECONDS = 5.0
"""Maximum wait for another writer: the agent is blocked while the hook runs."""


def run(args: "Sequence[str]", url: str | None = None) -> int:
    """Run one hook and return its exit code; never raises (unless CORRAL_DEBUG is set)."""
    is_git = bool(args) and args[0] == "git"
    try:
        if len(args) != 2:
            raise Invalid("Expected a provider and an event: `corral hook claude pre-tool-use`.")
        handle = _handle_git_event if is_git else _handle_tool_event
        provider, event = args
        return handle(provider, event, url)
    except StoreUnavailable as error:
        if error.reason == "missing":
            return 0  # without a store there are no locks
        _print_error(error.message)
    except CorralError as error:
        _print_error(error.message)
    except Exception as error:
        if os.environ.get("CORRAL_DEBUG"):
            raise
        _print_error(f"{type(error).__name__}: {error}")
    return 0 if is_git else HOOK_FAILED


def _print_error(message: str) -> None:
    sys.stderr.write(f"corral hook: {message}\n")


def _open(url: str | None) -> "Corral":
    from corral.api import open

    return open(url, create=False)


def _handle_tool_event(provider: str, event: str, url: str | None) -> int:
    from corral.adapters import hook_payloads

    if provider not in hook_payloads.PROVIDERS:
        raise Invalid(
            f"Unknown provider {provider!r}: expected {', '.join(hook_payloads.PROVIDERS)} or git."
        )
    moment = hook_payloads.classify_event(event)
    if moment is None:
        return 0  # a CLI may call the hook for events that it was not installed for
    try:
        paths = hook_payloads.list_edited_paths(sys.stdin.buffer.read(MAX_INPUT_BYTES), os.getcwd())
    except ValueError as error:
        raise Invalid(f"Cannot parse the hook input of {provider}: {error}.") from None
    if not paths:
        return 0
    with _open(url) as store, store.write_timeout(WRITE_SECONDS):
        if moment == "after":
            return _record_touches(store, paths)
        reason = _acquire_or_refuse(store, paths)
    if reason is None:
        return 0
    code, out, err = hook_payloads.render_denial(provider, reason)
    sys.stdout.write(out)
    sys.stderr.write(f"{err}\n" if err else "")
    return code


def _acquire_or_refuse(store: "Corral", paths: "Sequence[str]") -> str | None:
    """Lock the files for the edit; return the reason for the agent if one is locked by another."""
    owner, run = store.caller.owner, store.caller.run
    for path in paths:
        try:
            places = store.guard.locate_all(path)
        except Invalid:
            continue  # not a path that can be locked; check the others
        for place in places:
            if conflicts := store.guard.check(place.project.id, [place.path], owner, run=run):
                return conflicts[0].text
        try:
            for place in places[:1]:
                store.guard.acquire_for_edit(place.project.id, place.path, owner, run=run)
        except Held as error:
            return error.message
    return None


def _record_touches(store: "Corral", paths: "Sequence[str]") -> int:
    for path in paths:
        try:
            place = store.guard.locate(path)
        except NotFound:
            continue
        store.locks.touch(place.project.id, place.path, store.caller.owner)
    return 0


def _handle_git_event(_: str, event: str, url: str | None) -> int:
    """Refuse a commit that changes files locked by others."""
    if event != "pre-commit":
        raise Invalid(f"Unknown git hook {event!r}: expected pre-commit.")
    from corral.adapters.git import git

    top = git.find_worktree_root(os.getcwd())
    staged = git.list_staged(top) if top is not None else []
    if top is None or not staged:
        return 0
    with _open(url) as store:
        names = [git.decode_name(name) for name in staged]
        conflicts = store.guard.check_commit(top, names, store.caller.owner, run=store.caller.run)
    for conflict in conflicts[:MAX_SHOWN]:
        sys.stderr.write(f"corral: {conflict.text}\n")
    if len(conflicts) > MAX_SHOWN:
        sys.stderr.write(f"corral: and {len(conflicts) - MAX_SHOWN} more.\n")
    if conflicts:
        sys.stderr.write("corral: Commit refused. Unstage these files and commit again.\n")
    return 1 if conflicts else 0
