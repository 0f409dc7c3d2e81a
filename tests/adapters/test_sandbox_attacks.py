"""Attacks on the sandbox from inside, as root and as an ordinary user."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.adapters import private_git, sandbox, worktrees
from corral.adapters.sandbox import ResourceLimits, SandboxBounds, SandboxKind
from corral.adapters.worktree_registry import get_checkout
from corral.kernel.errors import Conflict, Refused
from tests.support import sandbox_attacks
from tests.support.errors import because
from tests.support.git_repositories import IDENTITY, commit, git, new_repository

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("plain_git"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sandboxes are Linux's"),
]
SECRET = "s3cr3t-of-the-user-4711"
NOBODY = 65_534
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture(params=[SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK])
def kind(request: pytest.FixtureRequest) -> SandboxKind:
    kind: SandboxKind = request.param
    trouble = sandbox._probe_kind(kind, network=False).problem
    if trouble is not None:
        pytest.skip(f"{kind} does not work here: {trouble}")
    return kind


class Stage:
    """A user's files, a repository with a worktree, and a process to attack."""

    def __init__(self, folder: Path, victim: int) -> None:
        self.folder = folder
        self.victim = victim
        self.repository = new_repository(folder / "repository")
        self.tree = folder / "tree"
        worktrees.create(str(self.repository), str(self.tree), "corral/race/one")
        self.found = get_checkout(str(self.repository), str(self.tree))
        self.secrets = [
            folder / name
            for name in ("user/.ssh/id_rsa", "user/.aws/credentials", "user/.gnupg/key")
        ]
        self.secrets += [folder / "corral/daemon.token", folder / "corral/corral.db"]
        for path in self.secrets:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SECRET)

    def attack(self, kind: SandboxKind, *, user: int | None) -> dict[str, list[str]]:
        """Run the attacks inside; returns what succeeded."""
        objects = sorted(map(str, (self.repository / ".git/objects").rglob("*")))
        script = self.tree / "attacks.py"
        shutil.copyfile(sandbox_attacks.__file__, script)
        facts = {
            "secret": SECRET,
            "secret_files": list(map(str, self.secrets)),
            "untouchable": [str(self.repository / "README"), "/etc/passwd", str(self.secrets[3])],
            "victim": self.victim,
            "abstract": f"corral-attack-{os.getpid()}",
            "socket": str(self.folder / "socket"),
            "git": str(self.repository / ".git"),
            "object_files": [path for path in objects if os.path.isfile(path)],
            "sees_host_files": kind is SandboxKind.LANDLOCK,
            "sees_host_pids": kind is SandboxKind.LANDLOCK,
        }
        (self.tree / "facts.json").write_text(json.dumps(facts))
        made = private_git.prepare(
            self.found, str(self.folder / "git"), mounted=kind is SandboxKind.BUBBLEWRAP
        )
        wrapped = sandbox.wrap_command(
            [sys.executable, "attacks.py", "facts.json", "report.json"],
            SandboxBounds(worktree=str(self.tree), git=made),
            scratch=str(self.folder / "scratch"),
            kind=kind,
        )
        words = wrapped.words
        if user is not None:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
            words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *words]
        source = str(Path(sandbox.__file__).parents[2])
        inside = {"PATH": os.environ["PATH"], "PYTHONPATH": source, "HOME": "/nonexistent"}
        done = subprocess.run(
            words,
            env=inside | wrapped.environment,
            cwd=self.tree,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report: dict[str, list[str]] = json.loads((self.tree / "report.json").read_text())
        assert len(report["tried"]) == len(sandbox_attacks.ATTACKS)
        return report


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with subprocess.Popen(["sleep", "600"], env={"TOKEN": SECRET}) as victim:
        try:
            for path in (tmp_path, *tmp_path.parents[:3]):  # so that another user reaches it
                if path.is_relative_to("/tmp") or path.is_relative_to("/dev/shm"):
                    path.chmod(0o755)
            yield Stage(tmp_path, victim.pid)
            assert victim.poll() is None, "it was killed from the sandbox"
        finally:
            victim.kill()


@pytest.fixture
def system_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corral's own Python may be in a folder that only root can read."""
    if os.getuid() != 0 or not shutil.which("setpriv") or not os.path.exists(SYSTEM_PYTHON):
        pytest.skip("only root can become another user, who needs a Python")
    monkeypatch.setattr(sys, "executable", SYSTEM_PYTHON)
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")


@pytest.mark.usefixtures("system_python")
def test_no_attack_of_an_ordinary_user_succeeds(stage: Stage, kind: SandboxKind) -> None:
    test_no_attack_succeeds(stage, kind, NOBODY)


@pytest.mark.parametrize("user", [None])
def test_no_attack_succeeds(stage: Stage, kind: SandboxKind, user: int | None) -> None:
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0corral-attack-{os.getpid()}")
        abstract.listen()
        named.bind(str(stage.folder / "socket"))
        named.listen()
        report = stage.attack(kind, user=user)
    # Landlock cannot block a socket in a folder; `WrappedCommand.missing_protections` reports it.
    allowed = {"connects_to_a_socket_in_a_folder"} if kind is SandboxKind.LANDLOCK else set()
    assert set(report["won"]) <= allowed
    assert report["user"] == (os.getuid() if user is None else user)
    assert (stage.repository / "README").read_text() == "hello\n"
    for path in stage.secrets:
        assert path.read_text() == SECRET
    safe = ("-c", f"safe.directory={stage.repository}")
    assert "missing" not in git(stage.repository, *safe, "fsck", "--full", "--strict")


def attempt(
    stage: Stage, script: str, kind: SandboxKind = SandboxKind.BUBBLEWRAP, **bounds: object
) -> str:
    """Run a shell script in the worktree, with its private repository."""
    folder = str(stage.folder / "git")
    made = private_git.prepare(stage.found, folder, mounted=kind is SandboxKind.BUBBLEWRAP)
    wrapped = sandbox.wrap_command(
        ["/bin/sh", "-c", script],
        SandboxBounds(worktree=str(stage.tree), git=made, **bounds),  # type: ignore[arg-type]
        scratch=str(stage.folder / "scratch"),
        kind=kind,
    )
    done = subprocess.run(
        wrapped.words,
        env=os.environ | IDENTITY | wrapped.environment,
        cwd=stage.tree,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return f"{done.returncode} {done.stdout}{done.stderr}"


def head(stage: Stage) -> str:
    return git(stage.repository, "rev-parse", "corral/race/one")


COMMIT = "echo x > made && git add made && git commit -qm made"


DAMAGE = (
    "rm -rf $G/objects",
    "find $G/objects -type f -name '??????????*' -exec cp -f /etc/passwd {} \\;",
    "for f in $(find $G/objects -type f -path '*/??/*'); do mv $f $f.k; ln -s $f.k $f; done",
    "for f in $(find $G/objects -type f -path '*/??/*'); do ln $f $f.k; done",
    "echo 'ref: refs/heads/../../../etc/passwd' > $(git rev-parse --git-dir)/HEAD",
    "cd $(git rev-parse --git-dir) && rm HEAD && ln -s /etc/passwd HEAD",
    "git rev-parse HEAD^{tree} > $G/refs/heads/corral/race/one",
    "rm -rf $G/worktrees && ln -s / $G/worktrees",
    "echo 0000000000000000000000000000000000000001 > $G/refs/heads/corral/race/one",
)


def test_damaged_private_repository_is_not_imported(stage: Stage, kind: SandboxKind) -> None:
    before, config = head(stage), (stage.repository / ".git/config").read_text()
    made = stage.tree / "made"
    for damage in DAMAGE:
        said = attempt(stage, f"{COMMIT}; G=$(git rev-parse --git-common-dir); {damage}", kind)
        assert made.read_text() == "x\n", f"{damage}: {said}"
        try:
            with pytest.raises((Refused, Conflict)):
                private_git.import_commits(stage.found, str(stage.folder / "git"))
        except pytest.fail.Exception:
            pytest.fail(f"imported after: {damage}")
        private_git.discard(stage.found, str(stage.folder / "git"))
        made.unlink()
        assert head(stage) == before, damage
        assert (stage.repository / ".git/config").read_text() == config, damage
        assert git(stage.repository, "fsck", "--full", "--strict") == "", damage


def test_commits_are_imported_once_from_packs_and_detached_heads(
    stage: Stage, kind: SandboxKind
) -> None:
    said = attempt(stage, f"{COMMIT} && git checkout -q --detach && git gc -q", kind)
    assert said.startswith("0"), said
    folder = str(stage.folder / "git")
    tip = private_git.import_commits(stage.found, folder)
    assert tip == head(stage)
    assert private_git.import_commits(stage.found, folder) == tip
    private_git.discard(stage.found, folder)
    assert git(stage.repository, "log", "-1", "--format=%s", "corral/race/one") == "made"
    assert git(stage.tree, "status", "--porcelain") == ""


def test_branch_moved_by_the_host_is_not_overwritten(stage: Stage, kind: SandboxKind) -> None:
    assert attempt(stage, COMMIT, kind).startswith("0")
    commit(stage.repository, {"elsewhere": "y"}, "main moved")
    git(stage.repository, "update-ref", "refs/heads/corral/race/one", "main")
    with pytest.raises(Conflict):
        private_git.import_commits(stage.found, str(stage.folder / "git"))
    assert head(stage) == git(stage.repository, "rev-parse", "main")


def test_hostile_tree_fails_the_object_check(stage: Stage) -> None:
    """A `.git` entry in a tree would be checked out over the real one."""
    script = """
        blob=$(echo evil | git hash-object -w --stdin)
        inner=$(printf '100644 blob %s\\tconfig\\n' $blob | git mktree)
        top=$(printf '040000 tree %s\\t.git\\n' $inner | git mktree)
        git update-ref HEAD $(git commit-tree -p HEAD -m evil $top)
    """
    assert attempt(stage, script).startswith("0")
    before = head(stage)
    with pytest.raises(Refused, check=because("check_failed")):
        private_git.import_commits(stage.found, str(stage.folder / "git"))
    assert head(stage) == before


def test_other_attempts_and_remotes_are_hidden(stage: Stage, kind: SandboxKind) -> None:
    git(stage.repository, "branch", "corral/race/two")
    git(stage.repository, "config", "remote.origin.url", f"https://{SECRET}@example.org/x")
    said = attempt(stage, "git branch -a; git config --list; git remote -v", kind)
    assert "corral/race/one" in said
    assert "corral/race/two" not in said
    assert SECRET not in said


def test_files_and_shared_memory_are_limited(stage: Stage, kind: SandboxKind) -> None:
    script = "head -c 20M /dev/zero > big; wc -c < big; head -c 100M /dev/zero > /dev/x; ls /dev/x"
    said = attempt(stage, script, kind, limits=ResourceLimits(file_bytes=10 << 20))
    assert os.path.getsize(stage.tree / "big") <= 10 << 20, said
    assert "cannot access '/dev/x'" in said


@pytest.mark.usefixtures("system_python")
def test_fork_bomb_ends_at_its_limit(tmp_path: Path, kind: SandboxKind) -> None:
    script = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 400:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(600); os._exit(0)\n"
        "        made += 1\n"
        "except OSError:\n"
        "    pass\n"
        "print(made)\n"
        "os.killpg(0, 9) if os.getpid() == os.getpgid(0) else os._exit(0)\n"
    )
    tmp_path.chmod(0o755)
    user = 2_000_000 + os.getpid()  # the limit counts all processes of a user, on the whole machine
    bounds = SandboxBounds(limits=ResourceLimits(processes=50))
    wrapped = sandbox.wrap_command(
        [SYSTEM_PYTHON, "-uc", script], bounds, scratch=str(tmp_path / "scratch"), kind=kind
    )
    os.chown(tmp_path / "scratch", user, user)
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path.is_relative_to("/tmp") or path.is_relative_to("/dev/shm"):
            path.chmod(0o755)
    words = wrapped.words
    done = subprocess.run(
        ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(sandbox.__file__).parents[2])},
        cwd="/",
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 < int(done.stdout.split()[0]) < 60, done.stderr
