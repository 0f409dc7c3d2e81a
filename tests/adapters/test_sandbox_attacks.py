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

from corral import config
from corral.adapters.git import private_git
from corral.adapters.sandbox import sandbox
from corral.adapters.sandbox.sandbox import ResourceLimits, SandboxBounds, SandboxKind
from corral.adapters.worktrees import worktrees
from corral.adapters.worktrees.worktree_registry import get_checkout
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
        pytest.skip(f"{kind} is not available: {trouble}")
    return kind


class AttackScene:
    """Files of a user, a repository with a worktree, and a process to attack."""

    def __init__(self, folder: Path, victim: int) -> None:
        self.folder = folder
        self.victim = victim
        self.repository = new_repository(folder / "repository")
        self.tree = folder / "tree"
        worktrees.create(str(self.repository), str(self.tree), "corral/race/one")
        self.checkout = get_checkout(str(self.repository), str(self.tree))
        self.secrets = [
            folder / name
            for name in ("user/.ssh/id_rsa", "user/.aws/credentials", "user/.gnupg/key")
        ]
        self.secrets += [folder / "corral/daemon.token", folder / "corral/corral.db"]
        for path in self.secrets:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SECRET)

    def attack(self, kind: SandboxKind, *, user: int | None) -> dict[str, list[str]]:
        """Run the attacks inside the sandbox and return those that succeeded."""
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
        private = private_git.prepare(
            self.checkout, str(self.folder / "git"), mounted=kind is SandboxKind.BUBBLEWRAP
        )
        wrapped = sandbox.wrap_command(
            [sys.executable, "attacks.py", "facts.json", "report.json"],
            SandboxBounds(worktree=str(self.tree), git=private),
            scratch=str(self.folder / "scratch"),
            kind=kind,
        )
        command = wrapped.words
        if user is not None:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
        source = str(Path(config.__file__).parents[1])
        inside = {"PATH": os.environ["PATH"], "PYTHONPATH": source, "HOME": "/nonexistent"}
        result = subprocess.run(
            command,
            env=inside | wrapped.environment,
            cwd=self.tree,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        report: dict[str, list[str]] = json.loads((self.tree / "report.json").read_text())
        assert len(report["tried"]) == len(sandbox_attacks.ATTACKS)
        return report


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[AttackScene]:
    with subprocess.Popen(["sleep", "600"], env={"TOKEN": SECRET}) as victim:
        try:
            for path in (tmp_path, *tmp_path.parents[:3]):  # so that another user can reach it
                if path.is_relative_to("/tmp") or path.is_relative_to("/dev/shm"):
                    path.chmod(0o755)
            yield AttackScene(tmp_path, victim.pid)
            assert victim.poll() is None, "the process was killed from the sandbox"
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
def test_no_attack_of_an_ordinary_user_succeeds(scene: AttackScene, kind: SandboxKind) -> None:
    test_no_attack_succeeds(scene, kind, NOBODY)


@pytest.mark.parametrize("user", [None])
def test_no_attack_succeeds(scene: AttackScene, kind: SandboxKind, user: int | None) -> None:
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0corral-attack-{os.getpid()}")
        abstract.listen()
        named.bind(str(scene.folder / "socket"))
        named.listen()
        report = scene.attack(kind, user=user)
    # Landlock cannot block a socket in a folder; `WrappedCommand.missing_protections` reports it.
    allowed = {"connects_to_a_socket_in_a_folder"} if kind is SandboxKind.LANDLOCK else set()
    assert set(report["won"]) <= allowed
    assert report["user"] == (os.getuid() if user is None else user)
    assert (scene.repository / "README").read_text() == "hello\n"
    for path in scene.secrets:
        assert path.read_text() == SECRET
    safe = ("-c", f"safe.directory={scene.repository}")
    assert "missing" not in git(scene.repository, *safe, "fsck", "--full", "--strict")


def run_attempt(
    scene: AttackScene, script: str, kind: SandboxKind = SandboxKind.BUBBLEWRAP, **bounds: object
) -> str:
    """Run a shell script in the worktree, with its private repository."""
    folder = str(scene.folder / "git")
    private = private_git.prepare(scene.checkout, folder, mounted=kind is SandboxKind.BUBBLEWRAP)
    wrapped = sandbox.wrap_command(
        ["/bin/sh", "-c", script],
        SandboxBounds(worktree=str(scene.tree), git=private, **bounds),  # type: ignore[arg-type]
        scratch=str(scene.folder / "scratch"),
        kind=kind,
    )
    result = subprocess.run(
        wrapped.words,
        env=os.environ | IDENTITY | wrapped.environment,
        cwd=scene.tree,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return f"{result.returncode} {result.stdout}{result.stderr}"


def read_branch_head(scene: AttackScene) -> str:
    return git(scene.repository, "rev-parse", "corral/race/one")


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


def test_damaged_private_repository_is_not_imported(scene: AttackScene, kind: SandboxKind) -> None:
    before, config = read_branch_head(scene), (scene.repository / ".git/config").read_text()
    file = scene.tree / "made"
    for damage in DAMAGE:
        output = run_attempt(
            scene, f"{COMMIT}; G=$(git rev-parse --git-common-dir); {damage}", kind
        )
        assert file.read_text() == "x\n", f"{damage}: {output}"
        try:
            with pytest.raises((Refused, Conflict)):
                private_git.import_commits(scene.checkout, str(scene.folder / "git"))
        except pytest.fail.Exception:
            pytest.fail(f"imported after: {damage}")
        private_git.discard(scene.checkout, str(scene.folder / "git"))
        file.unlink()
        assert read_branch_head(scene) == before, damage
        assert (scene.repository / ".git/config").read_text() == config, damage
        assert git(scene.repository, "fsck", "--full", "--strict") == "", damage


def test_commits_are_imported_once_from_packs_and_detached_heads(
    scene: AttackScene, kind: SandboxKind
) -> None:
    output = run_attempt(scene, f"{COMMIT} && git checkout -q --detach && git gc -q", kind)
    assert output.startswith("0"), output
    folder = str(scene.folder / "git")
    tip = private_git.import_commits(scene.checkout, folder)
    assert tip == read_branch_head(scene)
    assert private_git.import_commits(scene.checkout, folder) == tip
    private_git.discard(scene.checkout, folder)
    assert git(scene.repository, "log", "-1", "--format=%s", "corral/race/one") == "made"
    assert git(scene.tree, "status", "--porcelain") == ""


def test_branch_moved_by_the_host_is_not_overwritten(scene: AttackScene, kind: SandboxKind) -> None:
    assert run_attempt(scene, COMMIT, kind).startswith("0")
    commit(scene.repository, {"elsewhere": "y"}, "main moved")
    git(scene.repository, "update-ref", "refs/heads/corral/race/one", "main")
    with pytest.raises(Conflict):
        private_git.import_commits(scene.checkout, str(scene.folder / "git"))
    assert read_branch_head(scene) == git(scene.repository, "rev-parse", "main")


def test_hostile_tree_fails_the_object_check(scene: AttackScene) -> None:
    """A `.git` entry in a tree would be checked out over the real one."""
    script = """
        blob=$(echo forged | git hash-object -w --stdin)
        inner=$(printf '100644 blob %s\\tconfig\\n' $blob | git mktree)
        top=$(printf '040000 tree %s\\t.git\\n' $inner | git mktree)
        git update-ref HEAD $(git commit-tree -p HEAD -m forged $top)
    """
    assert run_attempt(scene, script).startswith("0")
    before = read_branch_head(scene)
    with pytest.raises(Refused, check=because("check_failed")):
        private_git.import_commits(scene.checkout, str(scene.folder / "git"))
    assert read_branch_head(scene) == before


def test_other_attempts_and_remotes_are_hidden(scene: AttackScene, kind: SandboxKind) -> None:
    git(scene.repository, "branch", "corral/race/two")
    git(scene.repository, "config", "remote.origin.url", f"https://{SECRET}@example.org/x")
    output = run_attempt(scene, "git branch -a; git config --list; git remote -v", kind)
    assert "corral/race/one" in output
    assert "corral/race/two" not in output
    assert SECRET not in output


def test_files_and_shared_memory_are_limited(scene: AttackScene, kind: SandboxKind) -> None:
    script = "head -c 20M /dev/zero > big; wc -c < big; head -c 100M /dev/zero > /dev/x; ls /dev/x"
    output = run_attempt(scene, script, kind, limits=ResourceLimits(file_bytes=10 << 20))
    assert os.path.getsize(scene.tree / "big") <= 10 << 20, output
    assert "cannot access '/dev/x'" in output


@pytest.mark.usefixtures("system_python")
def test_fork_bomb_ends_at_its_limit(tmp_path: Path, kind: SandboxKind) -> None:
    script = (
        "import os, time\n"
        "count = 0\n"
        "try:\n"
        "    while count < 400:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(600); os._exit(0)\n"
        "        count += 1\n"
        "except OSError:\n"
        "    pass\n"
        "print(count)\n"
        "os.killpg(0, 9) if os.getpid() == os.getpgid(0) else os._exit(0)\n"
    )
    tmp_path.chmod(0o755)
    user = 2_000_000 + os.getpid()  # the limit counts all processes of a user
    bounds = SandboxBounds(limits=ResourceLimits(processes=50))
    wrapped = sandbox.wrap_command(
        [SYSTEM_PYTHON, "-uc", script], bounds, scratch=str(tmp_path / "scratch"), kind=kind
    )
    os.chown(tmp_path / "scratch", user, user)
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path.is_relative_to("/tmp") or path.is_relative_to("/dev/shm"):
            path.chmod(0o755)
    command = wrapped.words
    result = subprocess.run(
        ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(config.__file__).parents[1])},
        cwd="/",
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 < int(result.stdout.split()[0]) < 60, result.stderr
