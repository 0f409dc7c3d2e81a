"""Setting up the hooks that keep to locks, and taking them out again."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from corral.adapters import git, managed_blocks
from corral.adapters.hook_files import FILES, hooks_of
from corral.adapters.providers.tools import program
from corral.kernel.errors import Invalid, Refused


class Installed(msgspec.Struct, frozen=True):
    """What became of one file."""

    target: str
    file: str
    did: Literal["added", "removed", "unchanged"]
    note: str | None = None


TARGETS = ("git", *FILES)
DEFAULT = ("git", "claude")


class _Change(NamedTuple):
    target: str
    file: str
    before: str
    after: str


def install(folder: str, targets: Sequence[str]) -> list[Installed]:
    """Add our hooks below a folder; all of them, or none when one cannot be."""
    return _carry_out(folder, targets or DEFAULT, _with_git_hook, _with_settings, "added")


def uninstall(folder: str, targets: Sequence[str]) -> list[Installed]:
    """Take our hooks out again, and leave all else as it was."""
    return _carry_out(folder, targets or TARGETS, _without_git_hook, _without_settings, "removed")


def _carry_out(
    folder: str,
    targets: Sequence[str],
    script: Callable[[str, str], str],
    settings: Callable[[str, str, str], str],
    did: Literal["added", "removed"],
) -> list[Installed]:
    if unknown := [target for target in targets if target not in TARGETS]:
        raise Invalid(f"{unknown[0]!r} is none of {', '.join(TARGETS)}.", target=unknown[0])
    changes = []
    for target in dict.fromkeys(targets):
        if target == "git":
            file = _git_hook(folder)
            if file is None:
                if did == "added" and list(targets) != list(DEFAULT):
                    raise Refused(f"{folder} is in no git repository.", dir=folder)
                continue
            text = managed_blocks.read(file)
            changes.append(_Change(target, file, text, script(text, file)))
        else:
            file = os.path.join(folder, FILES[target].file)
            text = managed_blocks.read(file)
            changes.append(_Change(target, file, text, settings(target, text, file)))
    for change in changes:  # all could be made: now they are
        if change.after != change.before:
            managed_blocks.write(change.file, change.after, program=change.target == "git")
    return [
        Installed(
            change.target,
            change.file,
            did if change.after != change.before else "unchanged",
            FILES[change.target].note if change.target in FILES and did == "added" else None,
        )
        for change in changes
    ]


def _ours(target: str) -> re.Pattern[str]:
    return re.compile(rf"corral'? hook {target} ")


def _with_settings(target: str, text: str, file: str) -> str:
    new = '{"version": 1}' if target == "copilot" else "{}"
    return managed_blocks.with_hooks(text, hooks_of(target), _ours(target), file, new=new)


def _without_settings(target: str, text: str, file: str) -> str:
    return managed_blocks.without_hooks(text, _ours(target), file) if text else ""


def _git_hook(folder: str) -> str | None:
    """The file of the pre-commit hook; None outside of a repository."""
    top = git.worktree_of(folder)
    hooks = git.hooks_folder(top) if top is not None else None
    if top is None or hooks is None:
        return None
    main = os.path.realpath(git.main_worktree(top) or top)
    if not f"{os.path.realpath(hooks)}/".startswith((f"{main}/", f"{os.path.realpath(top)}/")):
        raise Refused(
            f"This repository's hooks are in {hooks}, which others use too; let the pre-commit "
            f"hook there run `{shlex.join(program())} hook git pre-commit || exit 1` if you want "
            "that.",
            dir=hooks,
            reason="foreign_hooks",
        )
    return os.path.join(hooks, "pre-commit")


def _with_git_hook(text: str, file: str) -> str:
    if text and not os.access(file, os.X_OK):
        raise Refused(
            f"{file} cannot be executed, so git passes it over; make it executable or remove it "
            "first.",
            file=file,
        )
    words = program()
    called = shlex.join([*words, "hook", "git", "pre-commit"])
    lines = f"if [ -x {shlex.quote(words[0])} ]; then {called} || exit 1; fi\n"
    return managed_blocks.with_block(text, lines, file)


def _without_git_hook(text: str, file: str) -> str:
    return managed_blocks.without_block(text)
