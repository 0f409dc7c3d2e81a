"""Each available sandbox confines files, git and the network."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from corral.adapters.git import private_git
from corral.adapters.sandbox import sandbox
from corral.adapters.sandbox.sandbox import SandboxBounds, SandboxKind
from corral.adapters.worktrees import worktrees
from corral.adapters.worktrees.worktree_registry import Checkout, get_checkout
from corral.kernel.errors import Refused
from tests.support.errors import because
from tests.support.git_repositories import IDENTITY, git, new_repository

pytestmark = pytest.mark.usefixtures("plain_git")
KINDS = [SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> SandboxKind:
    kind: SandboxKind = request.param
    trouble = sandbox._probe_kind(kind, network=False).problem
    if trouble is not None:
        pytest.skip(f"{kind} is not available: {trouble}")
    return kind


def is_supported(kind: SandboxKind) -> bool:
    """Return whether the system supports a sandbox, without Corral's code."""
    if kind is SandboxKind.LANDLOCK:
        create_ruleset, tell_version = 444, 1
        return int(ctypes.CDLL(None).syscall(create_ruleset, None, 0, tell_version)) >= 1
    plain = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid"]
    return (
        bool(shutil.which("bwrap")) and not subprocess.run([*plain, "true"], check=False).returncode
    )


@pytest.mark.parametrize("kind", KINDS)
def test_available_sandboxes_work(kind: SandboxKind) -> None:
    """The other tests skip an unavailable sandbox and would not notice that it broke."""
    if not is_supported(kind):
        pytest.skip(f"this system has no {kind}")
    assert sandbox._probe_kind(kind, network=True).problem is None


def run_sandboxed(
    tmp_path: Path, kind: SandboxKind, script: str, **bounds: object
) -> "subprocess.CompletedProcess[str]":
    wrapped = sandbox.wrap_command(
        ["/bin/sh", "-c", script],
        SandboxBounds(**({"readable": (str(tmp_path),)} | bounds)),
        scratch=str(tmp_path / "scratch"),
        kind=kind,
    )
    assert wrapped.kind is kind
    return subprocess.run(
        wrapped.words,
        env=os.environ | IDENTITY | wrapped.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_sandbox_writes_only_to_writable_paths(tmp_path: Path, kind: SandboxKind) -> None:
    (tmp_path / "writable").mkdir()
    (tmp_path / "readable").mkdir()
    (tmp_path / "readable/file").write_text("x")
    script = f"""
        cat {tmp_path}/readable/file > {tmp_path}/writable/copy || exit 1
        mkdir {tmp_path}/writable/sub || exit 2
        mv {tmp_path}/writable/copy {tmp_path}/writable/sub/ || exit 2
        echo x > "$TMPDIR/temporary" || exit 3
        echo x > /dev/null || exit 4
        echo y 2>/dev/null > {tmp_path}/readable/file && exit 5
        rm {tmp_path}/readable/file 2>/dev/null && exit 6
        touch /usr/x /etc/x {tmp_path}/x 2>/dev/null && exit 7
        exit 0
    """
    bounds = {"writable": (str(tmp_path / "writable"),), "readable": (str(tmp_path / "readable"),)}
    result = run_sandboxed(tmp_path, kind, script, **bounds)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "writable/sub/copy").read_text() == "x"
    assert (tmp_path / "readable/file").read_text() == "x"
    assert (tmp_path / "scratch/temporary").exists()
    assert (tmp_path / "scratch").stat().st_mode & 0o077 == 0


def test_hidden_paths_are_unreadable_except_listed_ones(tmp_path: Path, kind: SandboxKind) -> None:
    home = tmp_path / "home"
    for name in ("secret", "shared", "own"):
        (home / name).mkdir(parents=True)
        (home / name / "file").write_text(name)
    (home / "key").write_text("key")
    script = f"""
        cat {home}/secret/file && exit 1
        test -s {home}/key && cat {home}/key && exit 2
        cat {home}/shared/file || exit 3
        echo x > {home}/own/new || exit 4
        echo x > {home}/shared/new && exit 5
        exit 0
    """
    result = run_sandboxed(
        tmp_path,
        kind,
        script,
        hidden=(str(home),),
        readable=(str(home / "shared"),),
        writable=(str(home / "own"),),
    )
    assert (result.returncode, result.stdout) == (0, "shared"), result.stderr


def prepare_private_git(
    tmp_path: Path, kind: SandboxKind
) -> tuple[Path, Checkout, private_git.PrivateGit]:
    """Create a repository, a worktree, and the private repository of an attempt."""
    repository = new_repository(tmp_path / "repository")
    tree = tmp_path / "tree"
    worktrees.create(str(repository), str(tree), "corral/race/one")
    checkout = get_checkout(str(repository), str(tree))
    private = private_git.prepare(
        checkout, str(tmp_path / "git"), mounted=kind is SandboxKind.BUBBLEWRAP
    )
    return repository, checkout, private


def test_sandboxed_commits_change_only_their_own_branch(tmp_path: Path, kind: SandboxKind) -> None:
    repository, checkout, private = prepare_private_git(tmp_path, kind)
    script = f"""
        cd {checkout.folder} && echo x > made && git add made && git commit -qm made || exit 1
        git log --oneline main | grep -q first || exit 2
        git update-ref refs/heads/main HEAD || exit 3
        git branch other && git tag forged || exit 4
        git config core.fsmonitor forged || exit 5
        echo 'echo forged' > "$(git rev-parse --git-common-dir)/hooks/post-commit" || exit 6
        echo x 2>/dev/null > {repository}/README
        exit 0
    """
    before = (repository / ".git/config").read_text()
    result = run_sandboxed(tmp_path, kind, script, worktree=checkout.folder, git=private)
    assert result.returncode == 0, result.stderr
    assert git(repository, "log", "-1", "--format=%s", "corral/race/one") == "first"
    private_git.import_commits(checkout, str(tmp_path / "git"))
    private_git.discard(checkout, str(tmp_path / "git"))
    assert git(repository, "log", "-1", "--format=%s", "corral/race/one") == "made"
    assert git(repository, "log", "-1", "--format=%s", "main") == "first"
    assert git(repository, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/corral/race/one",
        "refs/heads/main",
    ]
    assert (repository / "README").read_text() == "hello\n"
    assert (repository / ".git/config").read_text() == before
    assert not (repository / ".git/hooks/post-commit").exists()
    assert git(Path(checkout.folder), "status", "--porcelain") == ""


def test_no_network_leaves_only_private_loopback(tmp_path: Path, kind: SandboxKind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host_script = (
            "import socket, sys\n"
            "s = socket.socket(); s.settimeout(5)\n"
            f"sys.exit(s.connect_ex(('127.0.0.1', {port})) != 0)"
        )
        loopback_script = (
            "import socket\n"
            "a = socket.create_server(('127.0.0.1', 0))\n"
            "socket.create_connection(a.getsockname(), 5)\n"
        )
        # The script is an argument, because the sandbox has its own /tmp.
        python = f"{os.path.realpath(sys.executable)} -c"
        assert run_sandboxed(tmp_path, kind, f'{python} "{host_script}"').returncode == 0
        result = run_sandboxed(
            tmp_path,
            kind,
            f'! {python} "{host_script}" && {python} "{loopback_script}"',
            network=False,
        )
        assert result.returncode == 0, result.stderr


def test_exit_code_and_missing_program_are_reported(tmp_path: Path, kind: SandboxKind) -> None:
    assert run_sandboxed(tmp_path, kind, "exit 7").returncode == 7
    wrapped = sandbox.wrap_command(
        ["no-such-program"], SandboxBounds(), scratch=str(tmp_path / "s"), kind=kind
    )
    result = subprocess.run(wrapped.words, capture_output=True, text=True, check=False)
    assert result.returncode in (1, 127)
    assert "no-such-program" in result.stderr


def test_probe_reports_available_kinds_and_reasons() -> None:
    probe = sandbox.probe_sandboxes()
    better = KINDS[: KINDS.index(probe.kind)] if probe.kind in KINDS else KINDS
    assert [*probe.why_not] == better
    assert all(probe.why_not.values())


def test_probe_reports_when_no_sandbox_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sandbox, "_probe_kind", lambda kind, network: sandbox._KindProbe("it is switched off")
    )
    assert sandbox.probe_sandboxes().why_not == dict.fromkeys(KINDS, "it is switched off")
    wrapped = sandbox.wrap_command(
        ["true"], SandboxBounds(network=False), scratch=str(tmp_path / "s")
    )
    assert (wrapped.kind, wrapped.words) == (SandboxKind.NONE, ["true"])
    assert "Not sandboxed" in wrapped.missing_protections[0]
    with pytest.raises(Refused, check=because("sandbox_unavailable")):
        sandbox.wrap_command(
            ["true"], SandboxBounds(), scratch=str(tmp_path / "s"), kind=SandboxKind.LANDLOCK
        )
    with pytest.raises(Refused, check=because("missing_path")):
        sandbox.wrap_command(
            ["true"], SandboxBounds(writable=("/nowhere",)), scratch=str(tmp_path / "s")
        )


def test_probe_suggests_installing_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    trouble = sandbox._probe_kind.__wrapped__(SandboxKind.BUBBLEWRAP, network=True).problem
    assert "install bubblewrap" in str(trouble)
