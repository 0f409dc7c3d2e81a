"""The home folder of a sandboxed run: only copies of the files that its agent CLI needs.

The real home is not visible in a sandbox. The run gets a folder of its own as `$HOME`, with copies
of its CLI's login and settings, a `.gitconfig` with a name and an address, and symlinks to the
user's toolchains, which are visible read-only. After the run only transcripts of its own session
are written back. Settings, hooks, plugins, memory files and logins are never written back: they
would control the user's own CLI. A login that the CLI renews inside the sandbox is lost.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from corral.adapters.cli_databases import restore_database, save_database
from corral.adapters.git import git
from corral.adapters.sandbox.untrusted_files import (
    UntrustedFile,
    is_plain,
    parent_folder,
    walk_files,
)
from corral.adapters.worktrees.worktree_leftovers import delete_tree

MAX_COPY_BYTES = 64 << 20
MAX_TRANSCRIPT_BYTES = 256 << 20
MAX_TRANSCRIPTS = 1_000
# Complete session ids in the formats of the known CLIs. The id comes from the agent's own stream:
# a partial name, such as `rollout-`, would match the transcripts of all sessions.
_SESSION = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|ses_[A-Za-z0-9]{20,40}"
)
_TRANSCRIPT = re.compile(r"[^\x00]+\.(?:jsonl|json)")


class CliFiles(NamedTuple):
    """The files of an agent CLI, relative to the home folder."""

    copied: tuple[str, ...]
    """Logins and settings: copied in, never written back."""
    sessions: tuple[str, ...]
    """Folders of transcripts; those of the run's session are copied in and written back."""
    variables: tuple[str, ...]
    """Prefixes of the environment variables of the CLI."""
    moved: tuple["RelocatedPath", ...] = ()
    """Variables with which a user relocates these files."""
    database: str | None = None
    """One database for all sessions, instead of files per session."""


class RelocatedPath(NamedTuple):
    """A variable that relocates a folder or file of a CLI.

    A sandboxed run has the file in the default place, and the variable is not set.
    """

    variable: str
    usual: str
    """The default place, relative to the home folder."""
    below: str = ""
    """Relative to the folder that the variable names."""


def _prefix_names(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


_GEMINI = (
    *("settings.json", "oauth_creds.json", "google_accounts.json", "installation_id", "state.json"),
    *("trustedFolders.json", "GEMINI.md", "QWEN.md", "commands", "extensions"),
)
CLIS: dict[str, CliFiles] = {
    "claude": CliFiles(
        (
            ".claude.json",
            *_prefix_names(".claude", ".credentials.json", "settings.json", "settings.local.json"),
            *_prefix_names(
                ".claude", "CLAUDE.md", "agents", "commands", "skills", "plugins", "hooks"
            ),
            *_prefix_names(".claude", "output-styles", "rules"),
        ),
        (".claude/projects",),
        ("ANTHROPIC_", "CLAUDE_", "DISABLE_", "IS_SANDBOX"),
        (
            RelocatedPath("CLAUDE_CONFIG_DIR", ".claude.json", ".claude.json"),
            RelocatedPath("CLAUDE_CONFIG_DIR", ".claude"),
        ),
    ),
    "codex": CliFiles(
        _prefix_names(
            ".codex", "auth.json", "config.toml", "AGENTS.md", "prompts", "skills", "rules"
        )
        + _prefix_names(".codex", "hooks.json", "version.json", "installation_id"),
        (".codex/sessions",),
        ("OPENAI_", "CODEX_"),
        (RelocatedPath("CODEX_HOME", ".codex"),),
    ),
    "gemini": CliFiles(
        _prefix_names(".gemini", *_GEMINI),
        (".gemini/tmp",),
        ("GEMINI_", "GOOGLE_"),
        (RelocatedPath("GEMINI_CLI_HOME", ".gemini", ".gemini"),),
    ),
    "qwen": CliFiles(
        _prefix_names(".qwen", *_GEMINI),
        (".qwen/tmp", ".qwen/projects"),
        ("QWEN_", "OPENAI_", "DASHSCOPE_"),
        (RelocatedPath("QWEN_HOME", ".qwen"),),
    ),
    "copilot": CliFiles(
        _prefix_names(
            ".copilot", "config.json", "mcp-config.json", "settings.json", "agents", "skills"
        ),
        (".copilot/session-state", ".copilot/history-session-state"),
        ("COPILOT_", "GH_TOKEN", "GITHUB_TOKEN"),
        (RelocatedPath("COPILOT_HOME", ".copilot"),),
    ),
    "opencode": CliFiles(
        (".config/opencode", ".local/share/opencode/auth.json"),
        (),
        ("OPENCODE_", "ANTHROPIC_", "OPENAI_"),
        (
            RelocatedPath("XDG_CONFIG_HOME", ".config/opencode", "opencode"),
            RelocatedPath("XDG_DATA_HOME", ".local/share/opencode", "opencode"),
        ),
        ".local/share/opencode/opencode.db",
    ),
}
_NONE = CliFiles((), (), ())

# Toolchains that users install in their home: programs, without credentials.
TOOLCHAINS = (
    *(".nvm", ".fnm", ".volta", ".npm-global", ".npm-packages", ".bun/bin", ".deno/bin", ".asdf"),
    *(".pyenv", ".rbenv", ".rustup", ".cargo/bin", ".goenv", "go/bin", "go/pkg/mod", ".sdkman"),
    *(".local/bin", ".local/lib", ".proto", "miniconda3", "anaconda3", "miniforge3", ".linuxbrew"),
    *(".local/share/" + name for name in ("claude", "fnm", "mise", "pipx", "pnpm", "uv")),
)
_PLAIN_VARIABLES = frozenset(
    (
        *("PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "CI"),
        *("NO_COLOR", "FORCE_COLOR", "EDITOR", "VIRTUAL_ENV", "PYTHONPATH", "NODE_PATH"),
        *("NODE_OPTIONS", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "JAVA_HOME"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "RUSTUP_HOME", "PYENV_ROOT", "GOPATH", "NVM_DIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    )
)
# These name folders outside the sandbox; inside, each CLI uses the default place.
_PATH_VARIABLES = frozenset(
    (
        *(moved.variable for cli in CLIS.values() for moved in cli.moved),
        *("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"),
        *("CLAUDE_CODE_TMPDIR", "QWEN_RUNTIME_DIR", "QWEN_CODE_TRUSTED_FOLDERS_PATH"),
        *("GEMINI_CLI_TRUSTED_FOLDERS_PATH", "CODEX_SQLITE_HOME"),
    )
)


def build_environment(provider: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a sandboxed program may have.

    These are the variables of the system and of its CLI. All others, such as tokens and sockets,
    are dropped.
    """
    prefixes = ("LC_", *CLIS.get(provider, _NONE).variables)
    kept = {
        name: value
        for name, value in environment.items()
        if name in _PLAIN_VARIABLES or name.startswith(prefixes)
    }
    return drop_path_variables(kept)


def drop_path_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that name a folder of the user.

    With them, a CLI would look for its files where the sandbox has none.
    """
    return {name: value for name, value in variables.items() if name not in _PATH_VARIABLES}


class RealHome(NamedTuple):
    """The user's home folder and environment."""

    folder: str
    environment: Mapping[str, str]

    def path(self, provider: str, name: str) -> str:
        """Return the real path of the file that a CLI has at `name` below a default home folder."""
        for moved in CLIS.get(provider, _NONE).moved:
            folder = self.environment.get(moved.variable)
            if folder and f"{name}/".startswith(f"{moved.usual}/"):
                rest = name[len(moved.usual) :].lstrip("/")
                return os.path.normpath(os.path.join(self.folder, folder, moved.below, rest))
        return os.path.join(self.folder, name)


def list_toolchains(path: str, real_home: str) -> list[str]:
    """List the folders of the PATH and of the user's toolchains.

    Never includes the home folder itself or a folder above it.
    """
    home = os.path.realpath(real_home)
    named = [os.path.join(home, name) for name in TOOLCHAINS]
    named += [folder for folder in path.split(os.pathsep) if os.path.isabs(folder)]
    existing = [folder for folder in named if os.path.isdir(folder)]
    return [folder for folder in dict.fromkeys(existing) if _is_narrow(folder, home)]


def _is_narrow(folder: str, home: str) -> bool:
    real = os.path.realpath(folder)
    return real != "/" and not f"{home}/".startswith(f"{real}/")


def list_program_paths(command: list[str], real_home: str) -> list[str]:
    """List the paths that a program and the scripts in its command need.

    For a Node program these are its packages, for a Python program its virtual environment,
    otherwise only the file.
    """
    program = shutil.which(command[0]) if command else None
    named = [word for word in command if os.path.isabs(word) and os.path.isfile(word)]
    paths: list[str] = []
    for path in (program, *named):
        if path is None:
            continue
        real = os.path.realpath(path)
        paths += [path, *_iter_symlink_targets(path), real]
        if "/node_modules/" in real:
            paths.append(real[: real.rindex("/node_modules/")] + "/node_modules")
        for start in (path, real):
            above = os.path.dirname(os.path.dirname(start))
            if os.path.isfile(os.path.join(above, "pyvenv.cfg")):
                paths.append(above)
    home = os.path.realpath(real_home)
    return [path for path in dict.fromkeys(paths) if _is_narrow(path, home)]


def _iter_symlink_targets(path: str) -> Iterator[str]:
    """Yield each path in a chain of symlinks; the sandbox needs all of them."""
    for _ in range(40):  # the limit of the kernel
        if not os.path.islink(path):
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        yield path


def prepare(folder: str, provider: str, session: str | None, real: RealHome) -> None:
    """Create the home folder of a run, or complete the one of its previous attempt."""
    real_home = real.folder
    os.makedirs(folder, mode=0o700, exist_ok=True)
    cli = CLIS.get(provider, _NONE)
    left = MAX_COPY_BYTES
    for name in cli.copied:
        left -= _copy(real.path(provider, name), folder, name, left)
    if session is not None:
        for name in cli.sessions:
            top = real.path(provider, name)
            for path in _find_transcripts(top, session):
                below = f"{name}/{os.path.relpath(path, top)}"
                _copy(path, folder, below, MAX_TRANSCRIPT_BYTES)
        if cli.database is not None and _SESSION.fullmatch(session):
            own = os.path.dirname(real.path(provider, cli.database))
            with suppress(OSError):
                restore_database(own, session, folder, cli.database)
    for name in TOOLCHAINS:
        tools = os.path.join(real_home, name)
        if os.path.isdir(tools):
            with suppress(OSError), parent_folder(folder, name) as (parent, last):
                os.symlink(os.path.realpath(tools), last, dir_fd=parent)
    _write_git_identity(folder, real_home)


def _copy(source: str, folder: str, name: str, max_bytes: int) -> int:
    """Copy a file or folder of the user below the private home; return the bytes.

    Existing files are kept. Follows no symlink in the private home: an earlier attempt may have
    planted one.
    """
    if os.path.isdir(source):
        copied = 0
        for inner in sorted(os.listdir(source)):
            path = os.path.join(source, inner)
            if not os.path.islink(path) or os.path.isfile(path):  # no cycles
                copied += _copy(path, folder, f"{name}/{inner}", max_bytes - copied)
        return copied
    if not os.path.isfile(source) or (size := os.stat(source).st_size) > max_bytes:
        return 0
    with suppress(OSError), parent_folder(folder, name) as (parent, last):
        mode = 0o700 if os.stat(source).st_mode & stat.S_IXUSR else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            open(source, "rb") as original,
            os.fdopen(os.open(last, flags, mode, dir_fd=parent), "wb") as copy,
        ):
            shutil.copyfileobj(original, copy)
        return size
    return 0


def _find_transcripts(top: str, session: str) -> Iterator[str]:
    """Yield the transcripts of a session below one of the user's folders."""
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if _is_of_session(os.path.relpath(path, top), session) and os.path.isfile(path):
                yield path


def _is_of_session(path: str, session: str) -> bool:
    """Whether the path of a transcript names a session (gemini shortens the id to 8 letters)."""
    if not _SESSION.fullmatch(session) or not _TRANSCRIPT.fullmatch(path):
        return False
    name = os.path.basename(path)
    parts = path.split("/")
    has_short_id = re.fullmatch(rf"session-.*-{re.escape(session[:8])}\.jsonl?", name) is not None
    has_full_id = re.search(rf"(?:^|[-_]){re.escape(session)}(?:[-_.]|$)", name) is not None
    return has_full_id or session in parts[:-1] or has_short_id


def _write_git_identity(folder: str, real_home: str) -> None:
    path = os.path.join(folder, ".gitconfig")
    if os.path.lexists(path):
        return
    lines = []
    for key in ("name", "email"):
        value = git.run("/", "config", "--global", f"user.{key}", environment={"HOME": real_home})
        text = value.out.decode(errors="replace").strip()
        if text and "\n" not in text:
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'\t{key} = "{escaped}"\n')
    with open(path, "x", encoding="utf-8") as file:
        file.write(f"[user]\n{''.join(lines)}" if lines else "")


# -- after the run ---------------------------------------------------------------------------------


def write_back_transcripts(
    folder: str, provider: str, session: str | None, real: RealHome
) -> list[str]:
    """Copy the transcripts of a run's session into the real home; return their paths there.

    A file is written if it is new, or if the existing file is a prefix of it. Symlinks, hard
    links and special files are skipped, and no symlink below the user's transcript folder is
    followed.
    """
    if session is None or not _SESSION.fullmatch(session):
        return []
    written: list[str] = []
    left = MAX_TRANSCRIPT_BYTES
    cli = CLIS.get(provider, _NONE)
    if cli.database is not None:
        own = os.path.dirname(real.path(provider, cli.database))
        written += save_database(folder, cli.database, session, own)
    for name in cli.sessions:
        target = real.path(provider, name)
        for file in walk_files(
            os.path.join(folder, name), lambda path: _is_of_session(path, session)
        ):
            if len(written) >= MAX_TRANSCRIPTS or file.size > left:
                continue
            with suppress(OSError):
                if _append_new_bytes(file, target):
                    left -= file.size
                    written.append(os.path.join(target, file.path))
    return written


def _append_new_bytes(file: UntrustedFile, target: str) -> bool:
    """Write a transcript below the user's folder, or append the new bytes to the existing one."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    with parent_folder(target, file.path) as (parent, name):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            status = os.fstat(descriptor)
            if not is_plain(status) or status.st_size >= file.size:
                return False
            if not _starts_with(file.descriptor, descriptor, status.st_size):
                return False
            left = file.size - status.st_size
            while left and (data := os.read(file.descriptor, min(left, 1 << 20))):
                os.write(descriptor, data)
                left -= len(data)
            return True
        finally:
            os.close(descriptor)


def _starts_with(new: int, old: int, size: int) -> bool:
    """Whether `new` starts with the `size` bytes of `old`; advances both file positions."""
    while size:
        data = os.read(old, min(size, 1 << 20))
        if not data or os.read(new, len(data)) != data:
            return False
        size -= len(data)
    return True


def discard(folder: str) -> None:
    """Delete a private home and the copies of logins in it."""
    delete_tree(folder)
