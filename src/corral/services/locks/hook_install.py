"""Installing and removing the hooks that enforce file locks."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from corral.adapters import managed_blocks
from corral.adapters.git import git
from corral.adapters.hook_files import HOOK_FILES, build_hooks
from corral.adapters.providers.mcp_config import get_corral_command
from corral.kernel.errors import Invalid, Refused


class HookChange(msgspec.Struct, frozen=True):
    """What was done with one file."""

    target: str
    file: str
    did: Literal["added", "removed", "unchanged"]
    note: str | None = None


TARGETS = ("git", *HOOK_FILES)
DEFAULT = ("git", "claude")


class _Change(NamedTuple):
    target: str
    file: str
    before: str
    after: str


def install(folder: str, targets: Sequence[str]) -> list[HookChange]:
    """Add Corral's hooks below a folder.

    Nothing is written if one of the changes cannot be computed. A write error leaves the files that
    were written before it; a repeated call completes the installation.
    """
    return _apply(folder, targets or DEFAULT, _with_git_hook, _with_settings, "added")


def uninstall(folder: str, targets: Sequence[str]) -> list[HookChange]:
    """Remove Corral's hooks, and leave everything else unchanged."""
    return _apply(folder, targets or TARGETS, _strip_git_hook, _strip_settings, "removed")


def _apply(
    folder: str,
    targets: Sequence[str],
    edit_git_hook: Callable[[str, str], str],
    edit_settings: Callable[[str, str, str], str],
    did: Literal["added", "removed"],
) -> list[HookChange]:
    if unknown := [target for target in targets if target not in TARGETS]:
        raise Invalid(
            f"Unknown target {unknown[0]!r}. Use one of {', '.join(TARGETS)}.", target=unknown[0]
        )
    changes = []
    for target in dict.fromkeys(targets):
        if target == "git":
            file = _find_git_hook(folder)
            if file is None:
                if did == "added" and list(targets) != list(DEFAULT):
                    raise Refused(f"{folder} is not in a git repository.", dir=folder)
                continue
            text = managed_blocks.read_text(file)
            changes.append(_Change(target, file, text, edit_git_hook(text, file)))
        else:
            file = os.path.join(folder, HOOK_FILES[target].file)
            text = managed_blocks.read_text(file)
            changes.append(_Change(target, file, text, edit_settings(target, text, file)))
    # Nothing is written until every change was computed without an error.
    for change in changes:
        if change.after != change.before:
            managed_blocks.write_text(change.file, change.after, program=change.target == "git")
    return [
        HookChange(
            change.target,
            change.file,
            did if change.after != change.before else "unchanged",
            HOOK_FILES[change.target].note
            if change.target in HOOK_FILES and did == "added"
            else None,
        )
        for change in changes
    ]


def _list_own_commands(target: str) -> re.Pattern[str]:
    return re.compile(rf"corral'? hook {target} ")


def _with_settings(target: str, text: str, file: str) -> str:
    new = '{"version": 1}' if target == "copilot" else "{}"
    return managed_blocks.add_hooks(
        text, build_hooks(target), _list_own_commands(target), file, new=new
    )


def _strip_settings(target: str, text: str, file: str) -> str:
    return managed_blocks.remove_hooks(text, _list_own_commands(target), file) if text else ""


def _find_git_hook(folder: str) -> str | None:
    """Return the path of the pre-commit hook; None outside of a repository.

    Raises Refused when the repository shares its hooks folder with other repositories.
    """
    top = git.find_worktree_root(folder)
    hooks = git.find_hooks_folder(top) if top is not None else None
    if top is None or hooks is None:
        return None
    main = os.path.realpath(git.find_main_worktree(top) or top)
    if not f"{os.path.realpath(hooks)}/".startswith((f"{main}/", f"{os.path.realpath(top)}/")):
        command = shlex.join(get_corral_command())
        raise Refused(
            f"The hooks of this repository are in {hooks}, which other repositories share. To use "
            f"Corral there, add `{command} hook git pre-commit || exit 1` to its pre-commit hook.",
            dir=hooks,
            reason="foreign_hooks",
        )
    return os.path.join(hooks, "pre-commit")


def _with_git_hook(text: str, file: str) -> str:
    if text and not os.access(file, os.X_OK):
        raise Refused(
            f"{file} is not executable, so git ignores it. Make it executable or remove it first.",
            file=file,
        )
    command = get_corral_command()
    call = shlex.join([*command, "hook", "git", "pre-commit"])
    # Commits still work after Corral was uninstalled.
    block = f"if [ -x {shlex.quote(command[0])} ]; then {call} || exit 1; fi\n"
    return managed_blocks.add_block(text, block, file)


def _strip_git_hook(text: str, file: str) -> str:
    return managed_blocks.remove_block(text)
