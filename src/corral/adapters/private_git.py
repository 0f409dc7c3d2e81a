"""The private repository in which a sandboxed attempt commits.

    folder/record.json   what the attempt started with; the host alone writes it
    folder/repository/   a git folder with its own objects, refs, index and configuration
    folder/import/       a quarantine for what the attempt has made, while it is imported

The user's object folders are read-only alternates of the private one, so the attempt sees all
history and cannot change or delete it. After the attempt, the host copies the new object files
into the quarantine, fetches the attempt's commit from there with a full check (hash, format,
connectivity), and moves the attempt's own branch and nothing else. Hooks, configuration, other refs
and the index of the private repository are never used.
"""

import os
import re
from contextlib import suppress
from typing import NamedTuple

import msgspec

from corral.adapters import git
from corral.adapters.checkouts import Checkout
from corral.adapters.leftovers import delete
from corral.adapters.untrusted_files import copy_file, read_file, walk_files
from corral.kernel.errors import Conflict, Refused

RECORD = "record.json"
REPOSITORY = "repository"
QUARANTINE = "import"
SHARED = "/run/corral/objects"
"""Where bubblewrap shows the user's object folders."""
MAX_IMPORT_BYTES = 4 << 30
MAX_IMPORT_FILES = 200_000
MAX_REFS = 64 << 20
MAX_SMALL = 65_536
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(rb"refs/heads/[^\x00-\x20\x7f~^:?*\[\\]{1,250}")
_OBJECT = re.compile(
    r"[0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?|pack/pack-[0-9a-f]{40,64}\.(?:pack|idx)"
)
# What git may need to treat files in the same way. Remotes, credential helpers, URL rewrites and
# included files are left out: they hold tokens, or name programs of the user.
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


class Record(msgspec.Struct, frozen=True):
    """What an attempt started with."""

    name: str
    """Of the worktree's part of the git folder."""
    head: str
    """The commit, empty when there was none yet."""


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


def prepare(found: Checkout, folder: str, *, mounted: bool) -> PrivateGit:
    """Make the private repository of an attempt in `folder`, after importing what an interrupted
    attempt has left there.

    `mounted`: the sandbox shows it in the place of the user's git folder, and the user's object
    folders below SHARED. Otherwise the worktree's `.git` names it until `restore_link`.
    """
    with suppress(Refused, Conflict):
        import_commits(found, folder)
    discard(found, folder)
    repository = os.path.join(folder, REPOSITORY)
    name = os.path.basename(found.own)
    own = os.path.join(repository, "worktrees", name)
    objects = _object_folders(found)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for path in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"):
        os.makedirs(os.path.join(repository, path), mode=0o700)
    os.makedirs(own, mode=0o700)
    shared = [f"{SHARED}/{number}" for number in range(len(objects))] if mounted else objects
    head = found.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.decode().strip()
    branch = found.branch
    link = f"ref: refs/heads/{branch}" if branch else head
    common = found.common if mounted else repository
    _write(repository, "objects/info/alternates", "".join(f"{path}\n" for path in shared))
    _write(repository, "packed-refs", _refs(found, branch))
    _write(repository, "config", _configuration(found))
    _write(repository, "HEAD", "ref: refs/heads/main\n")
    for path in _COPIED:
        with suppress(OSError), open(os.path.join(found.common, path), "rb") as file:
            _write(repository, path, file.read())
    _write(own, "HEAD", f"{link}\n")
    _write(own, "commondir", "../..\n")
    _write(own, "gitdir", f"{os.path.join(found.folder, '.git')}\n")
    with suppress(FileNotFoundError), open(os.path.join(found.own, "index"), "rb") as index:
        _write(own, "index", index.read())
    _write(folder, RECORD, msgspec.json.encode(Record(name, head)))
    if not mounted:
        _point_to(found, os.path.join(common, "worktrees", name))
    modules = (os.path.join(found.own, "modules"), os.path.join(found.common, "modules"))
    there = tuple(path for path in modules if os.path.isdir(path))
    return PrivateGit(found, repository, tuple(objects), there, own)


def import_commits(found: Checkout, folder: str) -> str | None:
    """Move the branch of a worktree to the commit that the attempt left in its private repository.
    Idempotent; None when there is nothing to import.

    Refused when the private repository cannot be read or its objects fail the check; Conflict when
    the host moved the branch in the meantime. The user's repository is unchanged then.
    """
    record = _record(folder)
    if record is None:
        return None
    repository = os.path.join(folder, REPOSITORY)
    tip = _tip(repository, record.name)
    if tip is None:
        if not record.head:
            return None
        raise Refused(f"The private repository of {found.folder} has no readable HEAD.")
    if tip == record.head:
        return None
    now = found.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.decode().strip()
    if now == tip:
        return tip
    if now != record.head:
        raise Conflict(f"The branch of {found.folder} has moved; nothing was imported.")
    quarantine = os.path.join(folder, QUARANTINE)
    delete(quarantine)
    try:
        _fill_quarantine(found, repository, quarantine, tip)
        done = git.run(found.common, *_FETCH, quarantine, "tip", seconds=git.LONG_SECONDS)
        if done.code:
            raise Refused(f"The commits of {found.folder} failed the check: {done.said}")
    finally:
        delete(quarantine)
    _move(found, record.head, tip)
    return tip


def restore_link(found: Checkout) -> None:
    """Have a worktree's `.git` name its own git folder again, whatever stands there now."""
    _point_to(found, found.own)


def discard(found: Checkout, folder: str) -> None:
    """Delete a private repository; what was not imported is lost with it."""
    if os.path.lexists(folder):
        if _link_of(found).startswith(os.path.join(os.path.realpath(folder), "")):
            restore_link(found)
        delete(folder)


# -- making ----------------------------------------------------------------------------------------


def _write(folder: str, path: str, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(os.path.join(folder, path), flags, 0o600), "wb") as file:
        file.write(data)


def _object_folders(found: Checkout) -> list[str]:
    """The object folder of a repository, and those that it borrows from."""
    waiting, folders = [os.path.join(found.common, "objects")], list[str]()
    while waiting:
        folder = os.path.realpath(waiting.pop(0))
        if folder in folders or not os.path.isdir(folder):
            continue
        folders.append(folder)
        with suppress(OSError), open(os.path.join(folder, "info/alternates"), "rb") as file:
            lines = [os.fsdecode(line) for line in file.read().splitlines()]
            waiting += [os.path.join(folder, line) for line in lines if line[:1] not in ("", "#")]
    return folders


def _refs(found: Checkout, branch: str | None) -> str:
    """All branches and tags, without those of other attempts."""
    told = found.told("for-each-ref", "--format=%(objectname) %(refname)").decode(errors="replace")
    hidden = ("refs/corral/", "refs/heads/corral/")
    own = f"refs/heads/{branch}"
    lines = (line.partition(" ") for line in told.splitlines())
    return "".join(
        f"{id} {ref}\n" for id, _, ref in lines if ref == own or not ref.startswith(hidden)
    )


def _configuration(found: Checkout) -> str:
    sections: dict[str, list[str]] = {}
    told = found.told("config", "--list", "-z", "--no-includes").decode(errors="replace")
    identity = found.run("config", "--get-regexp", "-z", r"^user\.(name|email)$").out
    for entry in (told + identity.decode(errors="replace")).split("\0"):
        key, _, value = entry.partition("\n")
        if _CONFIGURATION.fullmatch(key) and "\0" not in value:
            section, _, name = key.rpartition(".")
            top, _, sub = section.partition(".")
            head = f'{top} "{_quoted(sub)}"' if sub else top
            sections.setdefault(head, []).append(f'\t{name} = "{_quoted(value)}"\n')
    sections.setdefault("core", []).append("\tbare = false\n\tlogallrefupdates = true\n")
    return "".join(f"[{head}]\n{''.join(lines)}" for head, lines in sections.items())


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")


def _link_of(found: Checkout) -> str:
    """The folder that a worktree's `.git` names; empty when it names none."""
    text = read_file(found.folder, ".git", MAX_SMALL) or b""
    kind, _, where = os.fsdecode(text).partition(":")
    return os.path.realpath(where.strip()) if kind == "gitdir" else ""


def _point_to(found: Checkout, where: str) -> None:
    link = os.path.join(found.folder, ".git")
    part = os.path.join(found.folder, f".git.corral-{os.getpid()}")
    delete(part)
    _write(found.folder, os.path.basename(part), f"gitdir: {where}\n")
    if os.path.isdir(link) and not os.path.islink(link):
        delete(link)
    os.replace(part, link)


# -- importing -------------------------------------------------------------------------------------


def _record(folder: str) -> Record | None:
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
            return msgspec.json.decode(file.read(MAX_SMALL), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _tip(repository: str, name: str) -> str | None:
    """The commit that HEAD of the private worktree stands at."""
    head = (read_file(repository, f"worktrees/{name}/HEAD", MAX_SMALL) or b"").strip()
    if head.startswith(b"ref: "):
        ref = head[5:].strip()
        if not _REF.fullmatch(ref) or b".." in ref or b"//" in ref:
            return None
        head = (read_file(repository, os.fsdecode(ref), MAX_SMALL) or b"").strip()
        head = head or _packed(repository, ref)
    return head.decode() if _ID.fullmatch(head) else None


def _packed(repository: str, ref: bytes) -> bytes:
    for line in (read_file(repository, "packed-refs", MAX_REFS) or b"").splitlines():
        id, _, name = line.partition(b" ")
        if name == ref:
            return id
    return b""


def _fill_quarantine(found: Checkout, repository: str, quarantine: str, tip: str) -> None:
    """A repository that the host made, with copies of the attempt's object files."""
    objects = os.path.join(quarantine, "objects")
    for path in ("objects/info", "objects/pack", "refs/heads"):
        os.makedirs(os.path.join(quarantine, path), mode=0o700)
    _write(quarantine, "HEAD", "ref: refs/heads/tip\n")
    sha256 = len(tip) == 64
    version, kind = (1, "[extensions]\n\tobjectformat = sha256\n") if sha256 else (0, "")
    _write(quarantine, "config", f"[core]\n\trepositoryformatversion = {version}\n{kind}")
    others = "".join(f"{path}\n" for path in _object_folders(found))
    _write(quarantine, "objects/info/alternates", others)
    left = MAX_IMPORT_BYTES
    files = walk_files(os.path.join(repository, "objects"), _is_object)
    for count, file in enumerate(files, 1):
        if count > MAX_IMPORT_FILES:
            raise Refused(f"{found.folder} left more than {MAX_IMPORT_FILES} git objects.")
        target = os.path.join(objects, file.path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            left -= copy_file(file, target, left)
        except OSError as error:
            raise Refused(f"The git objects of {found.folder} cannot be copied: {error}") from None
    with suppress(OSError), open(os.path.join(found.common, "shallow"), "rb") as shallow:
        _write(quarantine, "shallow", shallow.read())
    _write(quarantine, "refs/heads/tip", f"{tip}\n")


def _is_object(path: str) -> bool:
    return _OBJECT.fullmatch(path) is not None


def _move(found: Checkout, before: str, tip: str) -> None:
    """Move the branch, and have the index say what is in the commit."""
    kind = found.run("cat-file", "-t", tip).out.strip()
    if kind != b"commit":
        raise Refused(f"HEAD of {found.folder} is not a commit.")
    old = before or "0" * len(tip)
    done = found.run("update-ref", "-m", "corral: commits of the attempt", "HEAD", tip, old)
    if done.code:
        raise Conflict(f"The branch of {found.folder} could not be moved: {done.said}")
    found.told("read-tree", "--reset", tip)
    found.run("update-index", "-q", "--refresh")
