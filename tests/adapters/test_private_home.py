"""The private home of a sandboxed run: files copied into it, and transcripts written back."""

import os
from pathlib import Path

import pytest

from corral.adapters.sandbox import private_home
from corral.adapters.sandbox.private_home import RealHome

pytestmark = pytest.mark.usefixtures("plain_git")
SESSION = "0b7f3c1e-1111-4222-8333-444455556666"
OTHER = "99999999-1111-4222-8333-444455556666"
PROJECT = ".claude/projects/-work-tree"


def write_files(home: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


@pytest.fixture
def real_home(tmp_path: Path) -> Path:
    return write_files(
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
def private_folder(tmp_path: Path, real_home: Path) -> Path:
    private_home.prepare(str(tmp_path / "private"), "claude", SESSION, RealHome(str(real_home), {}))
    return tmp_path / "private"


def test_private_home_contains_only_files_of_its_cli(private_folder: Path) -> None:
    files = {
        str(path.relative_to(private_folder))
        for path in private_folder.rglob("*")
        if path.is_file()
    }
    assert files == {
        ".claude.json",
        ".claude/.credentials.json",
        ".claude/settings.json",
        ".claude/hooks/check.sh",
        f"{PROJECT}/{SESSION}.jsonl",
        ".gitconfig",
    }
    assert (private_folder / ".nvm").is_symlink(), "toolchains are linked"


def test_only_transcripts_of_the_session_are_written_back(
    private_folder: Path, real_home: Path
) -> None:
    before = {path: path.read_text() for path in real_home.rglob("*") if path.is_file()}
    write_files(
        private_folder,
        {
            ".claude/settings.json": "forged",
            ".claude/settings.local.json": "forged",
            ".claude/CLAUDE.md": "forged",
            ".claude/hooks/check.sh": "forged",
            ".claude.json": "forged",
            ".bashrc": "forged",
            f"{PROJECT}/{SESSION}.jsonl": "one\ntwo\n",
            f"{PROJECT}/{SESSION}/subagents/agent-1.jsonl": "sub\n",
            f"{PROJECT}/{OTHER}.jsonl": "private\nevil\n",
            f"{PROJECT}/{SESSION}.sh": "forged",
            ".claude/projects/-home-user/77777777-1111-4222-8333-444455556666.jsonl": "forged",
        },
    )
    written = private_home.write_back_transcripts(
        str(private_folder), "claude", SESSION, RealHome(str(real_home), {})
    )
    assert sorted(os.path.relpath(path, real_home) for path in written) == [
        f"{PROJECT}/{SESSION}.jsonl",
        f"{PROJECT}/{SESSION}/subagents/agent-1.jsonl",
    ]
    after = {path: path.read_text() for path in real_home.rglob("*") if path.is_file()}
    transcript = real_home / PROJECT / f"{SESSION}.jsonl"
    sub = real_home / PROJECT / SESSION / "subagents/agent-1.jsonl"
    assert after == before | {transcript: "one\ntwo\n", sub: "sub\n"}


@pytest.mark.parametrize("trick", ["symlink", "hard link", "pipe", "folder link", "rewritten"])
def test_hostile_file_is_not_written_back(
    tmp_path: Path, private_folder: Path, real_home: Path, trick: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("one\nsecret\n")
    file = private_folder / PROJECT / f"{SESSION}.jsonl"
    file.unlink()
    if trick == "symlink":
        file.symlink_to(victim)
    elif trick == "hard link":
        os.link(victim, file)
    elif trick == "pipe":
        os.mkfifo(file)
    elif trick == "folder link":
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / file.name).write_text("one\nevil\n")
        file.parent.rmdir()
        file.parent.symlink_to(tmp_path / "outside")
    else:
        file.write_text("another beginning\n")
    assert (
        private_home.write_back_transcripts(
            str(private_folder), "claude", SESSION, RealHome(str(real_home), {})
        )
        == []
    )
    assert (real_home / PROJECT / f"{SESSION}.jsonl").read_text() == "one\n"
    assert victim.read_text() == "one\nsecret\n"


def test_write_back_does_not_follow_a_symlink_in_the_real_home(
    private_folder: Path, real_home: Path
) -> None:
    """A run without a sandbox may have created it."""
    target = real_home / PROJECT / f"{SESSION}.jsonl"
    target.unlink()
    target.symlink_to(real_home / ".claude/settings.json")
    write_files(private_folder, {f"{PROJECT}/{SESSION}.jsonl": "forged settings"})
    assert (
        private_home.write_back_transcripts(
            str(private_folder), "claude", SESSION, RealHome(str(real_home), {})
        )
        == []
    )
    assert (real_home / ".claude/settings.json").read_text() == "settings"


@pytest.mark.parametrize("session", [None, "", "../../..", "a/b", "*"])
def test_invalid_session_id_writes_nothing_back(
    private_folder: Path, real_home: Path, session: str | None
) -> None:
    write_files(private_folder, {f"{PROJECT}/{SESSION}.jsonl": "one\ntwo\n"})
    assert (
        private_home.write_back_transcripts(
            str(private_folder), "claude", session, RealHome(str(real_home), {})
        )
        == []
    )


def test_only_system_and_cli_variables_are_passed_on() -> None:
    environment = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "ANTHROPIC_API_KEY": "session data",
        "CLAUDE_CONFIG_DIR": "/elsewhere",
        "OPENAI_API_KEY": "another's",
        "GITHUB_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "SSH_AUTH_SOCK": "x",
        "CORRAL_STORE": "postgresql://u:password@h/d",
        "CORRAL_HOME": "x",
        "XDG_RUNTIME_DIR": "x",
    }
    variables = private_home.build_environment("claude", environment)
    assert set(variables) == {"PATH", "LC_ALL", "ANTHROPIC_API_KEY"}
    assert set(private_home.build_environment("plain", environment)) == {"PATH", "LC_ALL"}


def test_toolchain_folders_exclude_the_home_itself(tmp_path: Path, real_home: Path) -> None:
    (real_home / "bin").mkdir()
    path = os.pathsep.join(
        [str(real_home), str(real_home / "bin"), str(tmp_path), "/", ".", "relative"]
    )
    folders = private_home.list_toolchains(path, str(real_home))
    assert folders == [str(real_home / ".nvm"), str(real_home / "bin")]


def test_symlinks_of_an_earlier_attempt_are_not_followed(
    private_folder: Path, real_home: Path, tmp_path: Path
) -> None:
    """A later attempt reuses the home, which the earlier attempt could change."""
    planted = f"{PROJECT}/{SESSION}/settings.local.json"
    write_files(real_home, {planted: '{"hooks": "hostile"}', ".local/bin/tool": "program"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (private_folder / PROJECT / SESSION).symlink_to(real_home / ".claude")
    (private_folder / ".local").symlink_to(outside)
    (private_folder / ".claude.json").unlink()
    (private_folder / ".claude.json").symlink_to(outside / "made")
    (private_folder / ".claude/hooks/check.sh").unlink()
    (private_folder / ".claude/hooks").rmdir()
    (private_folder / ".claude/hooks").symlink_to(outside)
    private_home.prepare(str(private_folder), "claude", SESSION, RealHome(str(real_home), {}))
    assert not (real_home / ".claude/settings.local.json").exists()
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
    real_home = write_files(tmp_path / "real", {transcript.format(OTHER): "private"})
    private_home.prepare(str(tmp_path / "private"), provider, session, RealHome(str(real_home), {}))
    transcripts = [path for path in (tmp_path / "private").rglob("*") if path.suffix[:5] == ".json"]
    assert transcripts == []


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
    real_home = write_files(tmp_path / "real", {transcript: "talk"})
    private_home.prepare(str(tmp_path / "private"), provider, session, RealHome(str(real_home), {}))
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
    write_files(tmp_path / "moved" / below, {"settings.json": "mine", "config.toml": "mine"})
    write_files(tmp_path / "moved" / below, {transcript: "one\n"})
    write_files(
        tmp_path / "real" / usual, {"settings.json": "not in use", "config.toml": "not in use"}
    )
    real_home = RealHome(str(tmp_path / "real"), {variable: str(tmp_path / "moved")})
    private_folder = tmp_path / "private"
    private_home.prepare(str(private_folder), provider, SESSION, real_home)
    copied = private_folder / usual / ("config.toml" if provider == "codex" else "settings.json")
    assert copied.read_text() == "mine"
    session_file = private_folder / usual / transcript
    assert session_file.read_text() == "one\n"
    session_file.write_text("one\ntwo\n")
    (written,) = private_home.write_back_transcripts(
        str(private_folder), provider, SESSION, real_home
    )
    assert written == str(tmp_path / "moved" / below / transcript)
    assert Path(written).read_text() == "one\ntwo\n"
    assert variable not in private_home.build_environment(provider, {variable: "/x"})
    assert private_home.drop_path_variables({variable: "/x", "HOME": "/x", "A": "b"}) == {"A": "b"}


def test_claude_main_file_is_read_from_the_moved_folder(tmp_path: Path) -> None:
    write_files(tmp_path / "moved", {".claude.json": "mine"})
    write_files(tmp_path / "real", {".claude.json": "not in use"})
    real_home = RealHome(str(tmp_path / "real"), {"CLAUDE_CONFIG_DIR": str(tmp_path / "moved")})
    private_home.prepare(str(tmp_path / "private"), "claude", None, real_home)
    assert (tmp_path / "private/.claude.json").read_text() == "mine"


@pytest.mark.parametrize("name", [".claude", ".claude/hooks", PROJECT, ".local"])
def test_prepare_does_not_write_through_an_earlier_symlink(
    tmp_path: Path, real_home: Path, name: str
) -> None:
    (real_home / ".local/bin").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / "private" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    private_home.prepare(str(tmp_path / "private"), "claude", SESSION, RealHome(str(real_home), {}))
    assert list(outside.iterdir()) == []
    assert (tmp_path / "private/.claude.json").exists()


DATA = ".local/share/opencode"


def test_session_database_is_kept_for_its_next_run(tmp_path: Path) -> None:
    real_home = write_files(
        tmp_path / "real", {f"{DATA}/opencode.db": "all conversations of the user"}
    )
    locations = RealHome(str(real_home), {})
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    private_home.prepare(str(first), "opencode", None, locations)
    assert not (first / DATA / "opencode.db").exists()
    write_files(first, {f"{DATA}/opencode.db": "session data", f"{DATA}/opencode.db-wal": "log"})
    written = private_home.write_back_transcripts(str(first), "opencode", SESSION, locations)
    stored = f"{DATA}/corral/{SESSION}.db"
    assert [os.path.relpath(path, real_home) for path in written] == [f"{stored}-wal", stored]
    assert (real_home / DATA / "opencode.db").read_text() == "all conversations of the user"
    private_home.prepare(str(second), "opencode", SESSION, locations)
    assert (second / DATA / "opencode.db").read_text() == "session data"
    assert (second / DATA / "opencode.db-wal").read_text() == "log"
    private_home.prepare(str(other), "opencode", OTHER, locations)
    assert not (other / DATA / "opencode.db").exists()
    (second / DATA / "opencode.db-wal").unlink()
    private_home.write_back_transcripts(str(second), "opencode", SESSION, locations)
    assert not (real_home / f"{stored}-wal").exists(), (
        "an old WAL would be applied to the new database"
    )


@pytest.mark.parametrize("trick", ["symlink", "pipe", "folder"])
def test_hostile_session_database_is_not_kept(tmp_path: Path, trick: str) -> None:
    real_home = write_files(tmp_path / "real", {".ssh/id_rsa": "key"})
    private_folder = tmp_path / "private"
    (private_folder / DATA).mkdir(parents=True)
    if trick == "symlink":
        (private_folder / DATA / "opencode.db").symlink_to(real_home / ".ssh/id_rsa")
    elif trick == "pipe":
        os.mkfifo(private_folder / DATA / "opencode.db")
    else:
        (private_folder / DATA).rmdir()
        (private_folder / DATA).symlink_to(write_files(tmp_path / "outside", {"opencode.db": "x"}))
    locations = RealHome(str(real_home), {})
    assert (
        private_home.write_back_transcripts(str(private_folder), "opencode", SESSION, locations)
        == []
    )
    assert not list((real_home / DATA / "corral").iterdir())
