"""`corral hook PROVIDER EVENT`: what agent CLIs and git call before and after a change.

It runs at every use of a tool, so it goes past the command line's parser and loads no more than a
look at the locks needs. Whoever is refused reads who holds the file and until when. When Corral
itself is in trouble (no sense in what it was told, a store that cannot be used) the tool goes on,
and the trouble is told on standard error: exit code 1, which no agent CLI takes for a refusal.
"""

import os
import sys
from typing import TYPE_CHECKING

from corral import config
from corral.kernel.errors import CorralError, Held, Invalid, NotFound, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.api import Corral

TROUBLE = 1
MAX_TOLD = 16 << 20
SHOWN = 10
WRITE_SECONDS = 5.0
"""How long a write waits for another process that writes: the agent waits for the hook."""


def run(words: "Sequence[str]", url: str | None = None) -> int:
    """One call of a hook; gives back the exit code, never a traceback."""
    if len(words) != 2:
        return _trouble("give a provider and an event, as in `corral hook claude pre-tool-use`")
    provider, event = words
    around = _before_commit if provider == "git" else _around_tool
    try:
        return around(provider, event, url)
    except StoreUnavailable as error:
        if error.reason == "missing":
            return 0  # nobody has locked anything
        _trouble(error.message)
    except CorralError as error:
        _trouble(error.message)
    except Exception as error:
        if os.environ.get("CORRAL_DEBUG"):
            raise
        _trouble(f"{type(error).__name__}: {error}")
    return 0 if provider == "git" else TROUBLE  # git takes every other code for a refusal


def _trouble(what: str) -> int:
    sys.stderr.write(f"corral hook: {what}\n")
    return TROUBLE


def _open(url: str | None) -> "Corral":
    from corral.api import open

    return open(url, create=False)


def _around_tool(provider: str, event: str, url: str | None) -> int:
    from corral.adapters import hooks

    if provider not in hooks.PROVIDERS:
        return _trouble(f"{provider!r} is none of {', '.join(hooks.PROVIDERS)}, git")
    moment = hooks.moment_of(event)
    if moment is None:
        return 0  # nothing of ours: a CLI may call it for more than it was asked to
    try:
        paths = hooks.edited_paths(sys.stdin.buffer.read(MAX_TOLD), os.getcwd())
    except ValueError as error:
        return _trouble(f"what {provider} said makes no sense ({error})")
    if not paths:
        return 0
    with _open(url) as store, store.writing_within(WRITE_SECONDS):
        if moment == "after":
            return _touch(store, paths)
        reason = _why_not(store, paths)
    if reason is None:
        return 0
    code, out, err = hooks.refusal(provider, reason)
    sys.stdout.write(out)
    sys.stderr.write(f"{err}\n" if err else "")
    return code


def _why_not(store: "Corral", paths: "Sequence[str]") -> str | None:
    """The sentence that an agent reads when one of the files is another's; None: it may go on."""
    owner, run = config.owner(), config.run_id()
    for path in paths:
        try:
            places = store.guard.places_of(path)
        except Invalid:
            continue  # no path that can be locked; the others are looked at all the same
        for place in places:
            if found := store.guard.in_the_way(place.project.id, [place.path], owner, run=run):
                return found[0].text
        try:
            for place in places[:1]:
                store.guard.take_for_edit(place.project.id, place.path, owner, run=run)
        except Held as error:
            return error.message
    return None


def _touch(store: "Corral", paths: "Sequence[str]") -> int:
    for path in paths:
        try:
            place = store.guard.place_of(path)
        except NotFound:
            continue
        store.locks.touch(place.project.id, place.path, config.owner())
    return 0


def _before_commit(_: str, event: str, url: str | None) -> int:
    """Refuse a commit that changes what others hold."""
    if event != "pre-commit":
        return _trouble(f"{event!r} is no hook of git that Corral knows; there is pre-commit")
    from corral.adapters import git

    top = git.worktree_of(os.getcwd())
    staged = git.staged(top) if top is not None else []
    if top is None or not staged:
        return 0
    with _open(url) as store:
        names = [git.storable(name) for name in staged]
        found = store.guard.commit_in_the_way(top, names, config.owner(), run=config.run_id())
    for one in found[:SHOWN]:
        sys.stderr.write(f"corral: {one.text}\n")
    if len(found) > SHOWN:
        sys.stderr.write(f"corral: and {len(found) - SHOWN} more.\n")
    if found:
        sys.stderr.write("corral: The commit is refused; take these files out of it.\n")
    return 1 if found else 0
