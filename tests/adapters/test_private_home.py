"""The home folder of a sandboxed run: what is copied into it, and what comes back."""

import os
from pathlib import Path

import pytest

from corral.adapters import private_home
from corral.adapters.private_home import RealHome

pytestmark = pytest.mark.usefixtures("plain_git")
SESSION = "0b7f3c1e-1111-4222-8333-444455556666"
OTHER = "99999999-1111-4222-8333-444455556666"
PROJECT = ".claude/projects/-work-tree"


def put(home: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return put(
        tmp_path / "real",
        {
            ".claude.json": "{}",
            ".claude/.credentials.json": "login",
            ".claude/settings.json": "settings",
            ".claude/hooks/check.sh": "#!/bin/sh",
            f"{PROJECT}/{SESSION}.jsonl": "one\n",
            f"{PROJECT}/{OTHER}.jsonl": "private\n",
            ".ssh/id_rsa": "key",
            ".codex/auth.json": "another login",
            ".nvm/bin/node": "program",
            ".netrc": "password",
        },
    )


@pytest.fixture
def private(tmp_path: Path, real: Path) -> Path:
    private_home.prepare(str(tmp_path / "private"), "claude", SESSION, RealHome(str(real), {}))
    return tmp_path / "private"


def test_private_home_contains_only_files_of_its_cli(private: Path) -> None:
    found = {str(path.relative_to(private)) for path in private.rglob("*") if path.is_file()}
    assert found == {
        ".claude.json",
        ".claude/.credentials.json",
        ".claude/settings.json",
        ".claude/hooks/check.sh",
        f"{PROJECT}/{SESSION}.jsonl",
        ".gitconfig",
    }
    assert (private / ".nvm").is_symlink(), "toolchains are shown where they are"


def test_only_transcripts_of_the_session_are_written_back(private: Path, real: Path) -> None:
    before = {path: path.read_text() for path in real.rglob("*") if path.is_file()}
    put(
        private,
        {
            ".claude/settings.json": "evil",
            ".claude/settings.local.json": "evil",
            ".claude/CLAUDE.md": "evil",
            ".claude/hooks/check.sh": "evil",
            ".claude.json": "evil",
            ".bashrc": "evil",
            f"{PROJECT}/{SESSION}.jsonl": "one\ntwo\n",
            f"{PROJECT}/{SESSION}/subagents/agent-1.jsonl": "sub\n",
            f"{PROJECT}/{OTHER}.jsonl": "private\nevil\n",
            f"{PROJECT}/{SESSION}.sh": "evil",
            ".claude/projects/-home-user/77777777-1111-4222-8333-444455556666.jsonl": "evil",
        },
    )
    written = private_home.write_back_transcripts(
        str(private), "claude", SESSION, RealHome(str(real), {})
    )
    assert sorted(os.path.relpath(path, real) for path in written) == [
        f"{PROJECT}/{SESSION}.jsonl",
        f"{PROJECT}/{SESSION}/subagents/agent-1.jsonl",
    ]
    after = {path: path.read_text() for path in real.rglob("*") if path.is_file()}
    own = real / PROJECT / f"{SESSION}.jsonl"
    sub = real / PROJECT / SESSION / "subagents/agent-1.jsonl"
    assert after == before | {own: "one\ntwo\n", sub: "sub\n"}


@pytest.mark.parametrize("trick", ["symlink", "hard link", "pipe", "folder link", "rewritten"])
def test_hostile_file_is_not_written_back(
    tmp_path: Path, private: Path, real: Path, trick: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("one\nsecret\n")
    file = private / PROJECT / f"{SESSION}.jsonl"
    file.unlink()
    if trick == "symlink":
        file.symlink_to(victim)
    elif trick == "hard link":
        os.link(victim, file)
    elif trick == "pipe":
        os.mkfifo(file)
    elif trick == "folder link":
        (tmp_path / "away").mkdir()
        (tmp_path / "away" / file.name).write_text("one\nevil\n")
        file.parent.rmdir()
        file.parent.symlink_to(tmp_path / "away")
    else:
        file.write_text("another beginning\n")
    assert (
        private_home.write_back_transcripts(
            str(private), "claude", SESSION, RealHome(str(real), {})
        )
        == []
    )
    assert (real / PROJECT / f"{SESSION}.jsonl").read_text() == "one\n"
    assert victim.read_text() == "one\nsecret\n"


def test_write_back_does_not_follow_a_symlink_in_the_real_home(private: Path, real: Path) -> None:
    """A run without a sandbox may have left one."""
    target = real / PROJECT / f"{SESSION}.jsonl"
    target.unlink()
    target.symlink_to(real / ".claude/settings.json")
    put(private, {f"{PROJECT}/{SESSION}.jsonl": "settings, and evil ones"})
    assert (
        private_home.write_back_transcripts(
            str(private), "claude", SESSION, RealHome(str(real), {})
        )
        == []
    )
    assert (real / ".claude/settings.json").read_text() == "settings"


@pytest.mark.parametrize("session", [None, "", "../../..", "a/b", "*"])
def test_invalid_session_id_writes_nothing_back(
    private: Path, real: Path, session: str | None
) -> None:
    put(private, {f"{PROJECT}/{SESSION}.jsonl": "one\ntwo\n"})
    assert (
        private_home.write_back_transcripts(
            str(private), "claude", session, RealHome(str(real), {})
        )
        == []
    )


def test_only_system_and_cli_variables_are_passed_on() -> None:
    whole = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "ANTHROPIC_API_KEY": "its own",
        "CLAUDE_CONFIG_DIR": "/elsewhere",
        "OPENAI_API_KEY": "another's",
        "GITHUB_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "SSH_AUTH_SOCK": "x",
        "CORRAL_STORE": "postgresql://u:password@h/d",
        "CORRAL_HOME": "x",
        "XDG_RUNTIME_DIR": "x",
    }
    found = private_home.build_environment("claude", whole)
    assert set(found) == {"PATH", "LC_ALL", "ANTHROPIC_API_KEY"}
    assert set(private_home.build_environment("plain", whole)) == {"PATH", "LC_ALL"}


def test_toolchain_folders_exclude_the_home_itself(tmp_path: Path, real: Path) -> None:
    (real / "bin").mkdir()
    path = os.pathsep.join([str(real), str(real / "bin"), str(tmp_path), "/", ".", "relative"])
    shown = private_home.list_toolchains(path, str(real))
    assert shown == [str(real / ".nvm"), str(real / "bin")]


def test_symlinks_of_an_earlier_attempt_are_not_followed(
    private: Path, real: Path, tmp_path: Path
) -> None:
    """A later attempt completes the home of the one before, which could change all of it."""
    planted = f"{PROJECT}/{SESSION}/settings.local.json"
    put(real, {planted: '{"hooks": "hostile"}', ".local/bin/tool": "program"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (private / PROJECT / SESSION).symlink_to(real / ".claude")
    (private / ".local").symlink_to(outside)
    (private / ".claude.json").unlink()
    (private / ".claude.json").symlink_to(outside / "made")
    (private / ".claude/hooks/check.sh").unlink()
    (private / ".claude/hooks").rmdir()
    (private / ".claude/hooks").symlink_to(outside)
    private_home.prepare(str(private), "claude", SESSION, RealHome(str(real), {}))
    assert not (real / ".claude/settings.local.json").exists()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("provider", "session", "transcript"),
    [
        ("codex", "rollout-", ".codex/sessions/2026/01/01/rollout-2026-01-01T00-00-00-{}.jsonl"),
        ("codex", "rollout-2026", ".codex/sessions/2026/rollout-2026-01-01T00-00-00-{}.jsonl"),
        ("gemini", "session-", ".gemini/tmp/abc/chats/session-2026-01-01T00-00-99999999.json"),
        ("claude", "subagents", ".claude/projects/-work/{}/subagents/agent-1.jsonl"),
        ("claude", OTHER[:8], ".claude/projects/-work/{}.jsonl"),
        ("opencode", "session_diff", ".local/share/opencode/storage/session_diff/ses_1.json"),
    ],
)
def test_invalid_session_id_selects_no_transcripts(
    provider: str, session: str, transcript: str, tmp_path: Path
) -> None:
    """The id comes from the stream of a program that a sandboxed agent may have started."""
    real = put(tmp_path / "real", {transcript.format(OTHER): "private"})
    private_home.prepare(str(tmp_path / "private"), provider, session, RealHome(str(real), {}))
    found = [path for path in (tmp_path / "private").rglob("*") if path.suffix[:5] == ".json"]
    assert found == []


@pytest.mark.parametrize(
    ("provider", "session", "transcript"),
    [
        ("codex", OTHER, f".codex/sessions/2026/rollout-2026-01-01T00-00-00-{OTHER}.jsonl"),
        ("gemini", OTHER, ".gemini/tmp/abc/chats/session-2026-01-01T00-00-99999999.json"),
        ("claude", OTHER, f".claude/projects/-work/{OTHER}/subagents/agent-1.jsonl"),
    ],
)
def test_transcripts_of_each_cli_are_found_by_session(
    provider: str, session: str, transcript: str, tmp_path: Path
) -> None:
    real = put(tmp_path / "real", {transcript: "talk"})
    private_home.prepare(str(tmp_path / "private"), provider, session, RealHome(str(real), {}))
    assert (tmp_path / "private" / transcript).read_text() == "talk"


MOVED = {
    "claude": ("CLAUDE_CONFIG_DIR", "", ".claude", f"projects/-w/{SESSION}.jsonl"),
    "codex": ("CODEX_HOME", "", ".codex", f"sessions/2026/11/18/rollout-1-{SESSION}.jsonl"),
    "gemini": (
        "GEMINI_CLI_HOME",
        ".gemini",
        ".gemini",
        f"tmp/w/chats/session-1-{SESSION[:8]}.jsonl",
    ),
    "qwen": ("QWEN_HOME", "", ".qwen", f"projects/-w/chats/{SESSION}.jsonl"),
    "copilot": ("COPILOT_HOME", "", ".copilot", f"session-state/{SESSION}/events.jsonl"),
}


@pytest.mark.parametrize("provider", sorted(MOVED))
def test_files_moved_by_a_variable_are_copied_to_the_default_path(
    tmp_path: Path, provider: str
) -> None:
    variable, below, usual, transcript = MOVED[provider]
    put(tmp_path / "moved" / below, {"settings.json": "mine", "config.toml": "mine"})
    put(tmp_path / "moved" / below, {transcript: "one\n"})
    put(tmp_path / "real" / usual, {"settings.json": "not in use", "config.toml": "not in use"})
    real = RealHome(str(tmp_path / "real"), {variable: str(tmp_path / "moved")})
    private = tmp_path / "private"
    private_home.prepare(str(private), provider, SESSION, real)
    copied = private / usual / ("config.toml" if provider == "codex" else "settings.json")
    assert copied.read_text() == "mine"
    own = private / usual / transcript
    assert own.read_text() == "one\n"
    own.write_text("one\ntwo\n")
    (written,) = private_home.write_back_transcripts(str(private), provider, SESSION, real)
    assert written == str(tmp_path / "moved" / below / transcript)
    assert Path(written).read_text() == "one\ntwo\n"
    assert variable not in private_home.build_environment(provider, {variable: "/x"})
    assert private_home.drop_path_variables({variable: "/x", "HOME": "/x", "A": "b"}) == {"A": "b"}


def test_claude_main_file_is_read_from_the_moved_folder(tmp_path: Path) -> None:
    put(tmp_path / "moved", {".claude.json": "mine"})
    put(tmp_path / "real", {".claude.json": "not in use"})
    real = RealHome(str(tmp_path / "real"), {"CLAUDE_CONFIG_DIR": str(tmp_path / "moved")})
    private_home.prepare(str(tmp_path / "private"), "claude", None, real)
    assert (tmp_path / "private/.claude.json").read_text() == "mine"


@pytest.mark.parametrize("name", [".claude", ".claude/hooks", PROJECT, ".local"])
def test_prepare_does_not_write_through_an_earlier_symlink(
    tmp_path: Path, real: Path, name: str
) -> None:
    (real / ".local/bin").mkdir(parents=True)
    away = tmp_path / "away"
    away.mkdir()
    link = tmp_path / "private" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(away)
    private_home.prepare(str(tmp_path / "private"), "claude", SESSION, RealHome(str(real), {}))
    assert list(away.iterdir()) == []
    assert (tmp_path / "private/.claude.json").exists()


DATA = ".local/share/opencode"


def test_session_database_is_kept_for_its_next_run(tmp_path: Path) -> None:
    real = put(tmp_path / "real", {f"{DATA}/opencode.db": "all conversations of the user"})
    where = RealHome(str(real), {})
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    private_home.prepare(str(first), "opencode", None, where)
    assert not (first / DATA / "opencode.db").exists()
    put(first, {f"{DATA}/opencode.db": "its own", f"{DATA}/opencode.db-wal": "log"})
    written = private_home.write_back_transcripts(str(first), "opencode", SESSION, where)
    kept = f"{DATA}/corral/{SESSION}.db"
    assert [os.path.relpath(path, real) for path in written] == [f"{kept}-wal", kept]
    assert (real / DATA / "opencode.db").read_text() == "all conversations of the user"
    private_home.prepare(str(second), "opencode", SESSION, where)
    assert (second / DATA / "opencode.db").read_text() == "its own"
    assert (second / DATA / "opencode.db-wal").read_text() == "log"
    private_home.prepare(str(other), "opencode", OTHER, where)
    assert not (other / DATA / "opencode.db").exists()
    (second / DATA / "opencode.db-wal").unlink()
    private_home.write_back_transcripts(str(second), "opencode", SESSION, where)
    assert not (real / f"{kept}-wal").exists(), "an old log would be applied to the new database"


@pytest.mark.parametrize("trick", ["symlink", "pipe", "folder"])
def test_hostile_session_database_is_not_kept(tmp_path: Path, trick: str) -> None:
    real = put(tmp_path / "real", {".ssh/id_rsa": "key"})
    private = tmp_path / "private"
    (private / DATA).mkdir(parents=True)
    if trick == "symlink":
        (private / DATA / "opencode.db").symlink_to(real / ".ssh/id_rsa")
    elif trick == "pipe":
        os.mkfifo(private / DATA / "opencode.db")
    else:
        (private / DATA).rmdir()
        (private / DATA).symlink_to(put(tmp_path / "away", {"opencode.db": "x"}))
    where = RealHome(str(real), {})
    assert private_home.write_back_transcripts(str(private), "opencode", SESSION, where) == []
    assert not list((real / DATA / "corral").iterdir())
