"""The private repository in which a sandboxed attempt commits.

    folder/record.json   the state in which the attempt started; written by the host
    folder/repository/   a git folder with its own objects, refs, index and configuration
    folder/import/       a quarantine for the attempt's objects during the import

The user's object folders are read-only alternates of the private one, so the attempt sees all
history and cannot change or delete it. After the attempt, the host copies the new object files
into the quarantine, fetches the attempt's commit from there with a full check (hash, format,
connectivity), and moves only the attempt's own branch. The private repository's hooks,
configuration, other refs and index are never used.
"""

import os
import re
from contextlib import suppress
from typing import NamedTuple

import msgspec

from corral.adapters.git import git
from corral.adapters.sandbox.untrusted_files import copy_file, read_file, walk_files
from corral.adapters.worktrees.worktree_leftovers import delete_tree
from corral.adapters.worktrees.worktree_registry import Checkout
from corral.kernel.errors import Conflict, Refused

RECORD_FILE = "record.json"
REPOSITORY_FOLDER = "repository"
QUARANTINE_FOLDER = "import"
SHARED_OBJECTS = "/run/corral/objects"
"""Where bubblewrap mounts the user's object folders."""
MAX_IMPORT_BYTES = 4 << 30
MAX_IMPORT_FILES = 200_000
MAX_REFS_BYTES = 64 << 20
MAX_SMALL_FILE = 65_536
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(rb"refs/heads/[^\x00-\x20\x7f~^:?*\[\\]{1,250}")
_OBJECT = re.compile(
    r"[0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?|pack/pack-[0-9a-f]{40,64}\.(?:pack|idx)"
)
# Settings that git needs to treat files in the same way. Remotes, credential helpers, URL rewrites
# and included files are left out: they hold tokens, or name programs of the user.
_CONFIGURATION = re.compile(
    r"core\.(?:autocrlf|eol|filemode|ignorecase|precomposeunicode|quotepath|safecrlf|sparsecheckout"
    r"|sparsecheckoutcone|symlinks|abbrev|repositoryformatversion)"
    r"|extensions\.objectformat|user\.(?:name|email)|index\.sparse|i18n\..*|filter\..*",
    re.I | re.S,
)
_COPIED = ("info/exclude", "info/attributes", "info/sparse-checkout", "shallow")
_FETCH = (
    *("-c", "fetch.fsckObjects=true", "-c", "transfer.fsckObjects=true"),
    *("-c", "protocol.file.allow=always", "-c", "submodule.recurse=false"),
    *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"),
    *("--no-recurse-submodules", "--refmap="),
)


class AttemptRecord(msgspec.Struct, frozen=True):
    """The state in which an attempt started."""

    name: str
    """The name of the worktree's part of the git folder."""
    head: str
    """The commit; empty when the branch had none yet."""


class PrivateGit(NamedTuple):
    """A private repository that is ready to be shown to a sandbox."""

    checkout: Checkout
    repository: str
    """The private git folder; the attempt may change all of it."""
    objects: tuple[str, ...]
    """The user's object folders; read-only."""
    modules: tuple[str, ...]
    """Git folders of submodules; read-only."""
    own: str
    """The worktree's part of the private git folder."""


def prepare(checkout: Checkout, folder: str, *, mounted: bool) -> PrivateGit:
    """Create the private repository of an attempt in `folder`.

    Discards what an earlier attempt left there, so call `import_commits` first. `mounted`: the
    sandbox mounts it over the user's git folder, and the user's object folders below
    SHARED_OBJECTS. Otherwise the worktree's `.git` points to it until `restore_link`.
    """
    discard(checkout, folder)
    repository = os.path.join(folder, REPOSITORY_FOLDER)
    name = os.path.basename(checkout.own)
    own = os.path.join(repository, "worktrees", name)
    objects = _list_object_folders(checkout)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for path in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"):
        os.makedirs(os.path.join(repository, path), mode=0o700)
    os.makedirs(own, mode=0o700)
    shared = (
        [f"{SHARED_OBJECTS}/{number}" for number in range(len(objects))] if mounted else objects
    )
    head = checkout.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.decode().strip()
    branch = checkout.branch
    link = f"ref: refs/heads/{branch}" if branch else head
    common = checkout.common if mounted else repository
    _write(repository, "objects/info/alternates", "".join(f"{path}\n" for path in shared))
    _write(repository, "packed-refs", _format_refs(checkout, branch))
    _write(repository, "config", _format_config(checkout))
    _write(repository, "HEAD", "ref: refs/heads/main\n")
    for path in _COPIED:
        with suppress(OSError), open(os.path.join(checkout.common, path), "rb") as file:
            _write(repository, path, file.read())
    _write(own, "HEAD", f"{link}\n")
    _write(own, "commondir", "../..\n")
    _write(own, "gitdir", f"{os.path.join(checkout.folder, '.git')}\n")
    with suppress(FileNotFoundError), open(os.path.join(checkout.own, "index"), "rb") as index:
        _write(own, "index", index.read())
    _write(folder, RECORD_FILE, msgspec.json.encode(AttemptRecord(name, head)))
    if not mounted:
        _write_link(checkout, os.path.join(common, "worktrees", name))
    modules = (os.path.join(checkout.own, "modules"), os.path.join(checkout.common, "modules"))
    existing = tuple(path for path in modules if os.path.isdir(path))
    return PrivateGit(checkout, repository, tuple(objects), existing, own)


def import_commits(checkout: Checkout, folder: str) -> str | None:
    """Move the branch of a worktree to the commit in the attempt's private repository.

    Returns that commit; None when there is nothing to import. Idempotent. Raises Refused when
    the private repository cannot be read or its objects fail the check, and Conflict when the
    host moved the branch meanwhile. Both leave the user's repository unchanged.
    """
    record = _read_record(folder)
    if record is None:
        return None
    repository = os.path.join(folder, REPOSITORY_FOLDER)
    tip = _read_tip(repository, record.name)
    if tip is None:
        if not record.head:
            return None
        raise Refused(f"The private repository of {checkout.folder} has no readable HEAD.")
    if tip == record.head:
        return None
    current = checkout.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.decode().strip()
    if current == tip:
        return tip
    if current != record.head:
        raise Conflict(f"The branch of {checkout.folder} moved; nothing was imported.")
    quarantine = os.path.join(folder, QUARANTINE_FOLDER)
    delete_tree(quarantine)
    try:
        _fill_quarantine(checkout, repository, quarantine, tip)
        result = git.run(checkout.common, *_FETCH, quarantine, "tip", seconds=git.LONG_SECONDS)
        if result.code:
            raise Refused(
                f"The commits of {checkout.folder} failed the check: {result.message}",
                reason="check_failed",
            )
    finally:
        delete_tree(quarantine)
    _move_branch(checkout, record.head, tip)
    return tip


def restore_link(checkout: Checkout) -> None:
    """Point a worktree's `.git` to its own git folder again, whatever it contains now."""
    _write_link(checkout, checkout.own)


def discard(checkout: Checkout, folder: str) -> None:
    """Delete a private repository, with all commits that were not imported."""
    if os.path.lexists(folder):
        if _read_link(checkout).startswith(os.path.join(os.path.realpath(folder), "")):
            restore_link(checkout)
        delete_tree(folder)


# -- preparation -----------------------------------------------------------------------------------


def _write(folder: str, path: str, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(os.path.join(folder, path), flags, 0o600), "wb") as file:
        file.write(data)


def _list_object_folders(checkout: Checkout) -> list[str]:
    """List the object folder of a repository and its alternates."""
    waiting, folders = [os.path.join(checkout.common, "objects")], list[str]()
    while waiting:
        folder = os.path.realpath(waiting.pop(0))
        if folder in folders or not os.path.isdir(folder):
            continue
        folders.append(folder)
        with suppress(OSError), open(os.path.join(folder, "info/alternates"), "rb") as file:
            lines = [os.fsdecode(line) for line in file.read().splitlines()]
            waiting += [os.path.join(folder, line) for line in lines if line[:1] not in ("", "#")]
    return folders


def _format_refs(checkout: Checkout, branch: str | None) -> str:
    """Return all refs in packed-refs format, without those of other attempts."""
    listing = checkout.check_output("for-each-ref", "--format=%(objectname) %(refname)").decode(
        errors="replace"
    )
    hidden = ("refs/corral/", "refs/heads/corral/")
    own = f"refs/heads/{branch}"
    lines = (line.partition(" ") for line in listing.splitlines())
    return "".join(
        f"{id} {ref}\n" for id, _, ref in lines if ref == own or not ref.startswith(hidden)
    )


def _format_config(checkout: Checkout) -> str:
    sections: dict[str, list[str]] = {}
    listing = checkout.check_output("config", "--list", "-z", "--no-includes").decode(
        errors="replace"
    )
    identity = checkout.run("config", "--get-regexp", "-z", r"^user\.(name|email)$").out
    for entry in (listing + identity.decode(errors="replace")).split("\0"):
        key, _, value = entry.partition("\n")
        if _CONFIGURATION.fullmatch(key) and "\0" not in value:
            section, _, name = key.rpartition(".")
            top, _, sub = section.partition(".")
            head = f'{top} "{_quote(sub)}"' if sub else top
            sections.setdefault(head, []).append(f'\t{name} = "{_quote(value)}"\n')
    sections.setdefault("core", []).append("\tbare = false\n\tlogallrefupdates = true\n")
    return "".join(f"[{head}]\n{''.join(lines)}" for head, lines in sections.items())


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")


def _read_link(checkout: Checkout) -> str:
    """Return the folder that a worktree's `.git` file points to, or an empty string."""
    text = read_file(checkout.folder, ".git", MAX_SMALL_FILE) or b""
    kind, _, target = os.fsdecode(text).partition(":")
    return os.path.realpath(target.strip()) if kind == "gitdir" else ""


def _write_link(checkout: Checkout, target: str) -> None:
    link = os.path.join(checkout.folder, ".git")
    temporary = os.path.join(checkout.folder, f".git.corral-{os.getpid()}")
    delete_tree(temporary)
    _write(checkout.folder, os.path.basename(temporary), f"gitdir: {target}\n")
    if os.path.isdir(link) and not os.path.islink(link):
        delete_tree(link)
    os.replace(temporary, link)


# -- import ----------------------------------------------------------------------------------------


def _read_record(folder: str) -> AttemptRecord | None:
    try:
        with open(os.path.join(folder, RECORD_FILE), "rb") as file:
            return msgspec.json.decode(file.read(MAX_SMALL_FILE), type=AttemptRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def _read_tip(repository: str, name: str) -> str | None:
    """Return the commit that HEAD of the private worktree points to."""
    head = (read_file(repository, f"worktrees/{name}/HEAD", MAX_SMALL_FILE) or b"").strip()
    if head.startswith(b"ref: "):
        ref = head[5:].strip()
        if not _REF.fullmatch(ref) or b".." in ref or b"//" in ref:
            return None
        head = (read_file(repository, os.fsdecode(ref), MAX_SMALL_FILE) or b"").strip()
        head = head or _find_packed_ref(repository, ref)
    return head.decode() if _ID.fullmatch(head) else None


def _find_packed_ref(repository: str, ref: bytes) -> bytes:
    for line in (read_file(repository, "packed-refs", MAX_REFS_BYTES) or b"").splitlines():
        id, _, name = line.partition(b" ")
        if name == ref:
            return id
    return b""


def _fill_quarantine(checkout: Checkout, repository: str, quarantine: str, tip: str) -> None:
    """Create a repository of the host's own, with copies of the attempt's object files."""
    objects = os.path.join(quarantine, "objects")
    for path in ("objects/info", "objects/pack", "refs/heads"):
        os.makedirs(os.path.join(quarantine, path), mode=0o700)
    _write(quarantine, "HEAD", "ref: refs/heads/tip\n")
    sha256 = len(tip) == 64
    version, kind = (1, "[extensions]\n\tobjectformat = sha256\n") if sha256 else (0, "")
    _write(quarantine, "config", f"[core]\n\trepositoryformatversion = {version}\n{kind}")
    others = "".join(f"{path}\n" for path in _list_object_folders(checkout))
    _write(quarantine, "objects/info/alternates", others)
    left = MAX_IMPORT_BYTES
    files = walk_files(os.path.join(repository, "objects"), _is_object)
    for count, file in enumerate(files, 1):
        if count > MAX_IMPORT_FILES:
            raise Refused(f"{checkout.folder} left more than {MAX_IMPORT_FILES} git objects.")
        target = os.path.join(objects, file.path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            left -= copy_file(file, target, left)
        except OSError as error:
            raise Refused(
                f"The git objects of {checkout.folder} cannot be copied: {error}"
            ) from None
    with suppress(OSError), open(os.path.join(checkout.common, "shallow"), "rb") as shallow:
        _write(quarantine, "shallow", shallow.read())
    _write(quarantine, "refs/heads/tip", f"{tip}\n")


def _is_object(path: str) -> bool:
    return _OBJECT.fullmatch(path) is not None


def _move_branch(checkout: Checkout, before: str, tip: str) -> None:
    """Move the branch, and reset the index to the commit."""
    kind = checkout.run("cat-file", "-t", tip).out.strip()
    if kind != b"commit":
        raise Refused(f"HEAD of {checkout.folder} is not a commit.")
    old = before or "0" * len(tip)
    result = checkout.run("update-ref", "-m", "corral: commits of the attempt", "HEAD", tip, old)
    if result.code:
        raise Conflict(f"The branch of {checkout.folder} could not be moved: {result.message}")
    checkout.check_output("read-tree", "--reset", tip)
    checkout.run("update-index", "-q", "--refresh")
