"""Sandboxed runs: they write only in their worktree, and leave nothing that affects the host."""

import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.sandbox import sandbox
from corral.adapters.sandbox.sandbox import SandboxKind
from corral.adapters.worktrees import worktrees
from corral.domain.runs.model import Run, RunState
from tests.support.git_repositories import git, new_repository
from tests.support.home import Home, is_alive, wait_until


@pytest.fixture(params=[SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK])
def kind(request: pytest.FixtureRequest) -> SandboxKind:
    kind: SandboxKind = request.param
    if (why := sandbox.probe_sandboxes().why_not.get(kind)) is not None:
        pytest.skip(f"{kind} is not available: {why}")
    return kind


@pytest.fixture
def any_kind() -> SandboxKind:
    """The best working sandbox, for behaviour that does not depend on its kind."""
    if (kind := sandbox.probe_sandboxes().kind) is SandboxKind.NONE:
        pytest.skip("no sandbox is available")
    return kind


@pytest.fixture
def tree(home: Home) -> Path:
    """A worktree of the project's repository."""
    repository = new_repository(home.folder / "repository")
    path = home.folder / "tree"
    worktrees.create(str(repository), str(path), "corral/race/one")
    return path


def run_sandboxed(
    home: Home, kind: SandboxKind, tree: Path, script: str, *, project: Path | None = None
) -> Run:
    """Run a shell script in the sandbox of a worktree and wait for its end."""
    with home.store() as store:
        run = store.runs.start(
            command=["/bin/sh", "-ec", script],
            project=store.projects.register(project or home.folder / "repository").id,
            dir=str(tree),
            sandbox=kind,
        )
        store.runs.start_queued()
    return home.wait_for_end(run.id)


def test_sandboxed_agent_can_commit_only_in_its_worktree(
    home: Home, kind: SandboxKind, tree: Path
) -> None:
    named = "-c user.name=ada -c user.email=ada@example.org"
    script = f"echo x > made && git add made && git {named} commit -qm made"
    assert run_sandboxed(home, kind, tree, script).state is RunState.COMPLETED
    assert git(home.folder / "repository", "log", "-1", "--format=%s", "corral/race/one") == "made"
    # The write may succeed inside the sandbox, in a private copy of the path.
    run_sandboxed(home, kind, tree, f"echo x > {home.folder}/repository/README")
    assert (home.folder / "repository" / "README").read_text() == "hello\n"


@pytest.mark.parametrize("git_state", ["folder", "link", "nothing"])
def test_git_in_the_worktree_executes_nothing_that_the_agent_left(
    home: Home, any_kind: SandboxKind, tree: Path, git_state: str
) -> None:
    marker = home.folder / "marker"
    repository = f"""
        rm .git && git init -q . && git config core.fsmonitor 'touch {marker}; false'
        git config core.worktree "$PWD"
    """
    script = {
        "folder": repository,
        "link": f"{repository} mv .git evil && ln -s evil .git",
        "nothing": "rm .git",
    }
    assert run_sandboxed(home, any_kind, tree, script[git_state]).state is RunState.COMPLETED
    git(tree, "status")
    assert not marker.exists()
    common_dir = git(tree, "rev-parse", "--path-format=absolute", "--git-common-dir")
    assert common_dir == str(home.folder / "repository" / ".git")


def test_git_files_of_an_agent_do_not_weaken_the_next_sandbox(
    home: Home, any_kind: SandboxKind, tree: Path
) -> None:
    precious = home.folder / "precious"
    precious.mkdir()
    git_dir = tree / "evil" / "worktrees" / "w"
    script = f"""
        mkdir -p {git_dir} evil/refs && ln -s {precious} evil/objects
        echo 'ref: refs/heads/corral/race/one' | tee evil/HEAD > {git_dir}/HEAD
        echo ../.. > {git_dir}/commondir && echo {tree}/.git > {git_dir}/gitdir
        echo 'gitdir: {git_dir}' > .git
    """
    link = (tree / ".git").read_text()
    assert run_sandboxed(home, any_kind, tree, script).state is RunState.COMPLETED
    assert (tree / ".git").read_text() == link, "the link to the user's repository is restored"
    (tree / ".git").write_text(f"gitdir: {git_dir}\n")  # like a run without a sandbox
    common_dir = git(tree, "rev-parse", "--path-format=absolute", "--git-common-dir")
    assert common_dir == str(tree / "evil"), "git follows the forged link"
    run_sandboxed(home, any_kind, tree, f"echo x > {precious}/x")
    assert not list(precious.iterdir())


def test_supervisor_executes_nothing_that_was_left_for_git(
    home: Home, any_kind: SandboxKind, tree: Path
) -> None:
    marker = home.folder / "executed"
    script = f"""
        rm .git && git init -q . && git add README
        git config core.fsmonitor 'touch {marker}; false'
        git config filter.out.clean 'touch {marker}; cat'
        echo '* filter=out' > .gitattributes
        touch README
    """
    first = run_sandboxed(home, any_kind, tree, script)
    assert first.state is RunState.COMPLETED
    second = run_sandboxed(home, any_kind, tree, "true")
    assert not marker.exists()
    with home.store() as store:
        git_info = store.runs.get_launch(second.id).environment["git"]
    head = git(home.folder / "repository", "rev-parse", "corral/race/one")
    assert git_info == {"commit": head, "branch": "corral/race/one", "dirty": False}


@pytest.mark.parametrize("inside", ["", "src"])
def test_worktree_without_a_known_owner_is_refused(
    home: Home, any_kind: SandboxKind, tree: Path, inside: str
) -> None:
    """The project folder is itself a worktree: the agent could change its own sandbox rules."""
    project = tree / inside
    project.mkdir(exist_ok=True)
    ended = run_sandboxed(home, any_kind, project, "touch made", project=project)
    assert ended.state is RunState.FAILED
    assert "the project's own directory" in str(ended.reason)
    assert not (project / "made").exists()


USER_SECRET = "a-secret-of-the-user-4711"


@pytest.fixture
def user_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of the user, with files that an agent must not read or change."""
    real = home.folder / "user"
    for name in (".ssh/id_rsa", ".aws/credentials", ".claude/settings.json", ".netrc"):
        (real / name).parent.mkdir(parents=True, exist_ok=True)
        (real / name).write_text(USER_SECRET)
    (real / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    for name, value in {
        "HOME": str(real),
        "GITHUB_TOKEN": USER_SECRET,
        "PGPASSWORD": USER_SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    return real


def test_sandboxed_agent_sees_no_store_home_or_token(
    home: Home, kind: SandboxKind, tree: Path, user_home: Path
) -> None:
    token = Path(home.env["CORRAL_HOME"]) / "daemon.token"
    token.parent.mkdir(exist_ok=True)
    token.write_text(USER_SECRET)
    script = f"""
        env > env.txt
        U={user_home}; for file in {token} $U/.ssh/id_rsa $U/.aws/credentials $U/.netrc; do
            cat $file >> seen.txt 2>/dev/null || true
        done
        ls {home.env["CORRAL_HOME"]}/*.db >> seen.txt 2>/dev/null || true
        mkdir -p ~/.claude && echo evil > ~/.claude/settings.json && echo evil > ~/.bashrc
        git commit -q --allow-empty -m "as the user"
    """
    run = run_sandboxed(home, kind, tree, script)
    assert run.state is RunState.COMPLETED, home.output(run)
    assert (tree / "seen.txt").read_text() == ""
    variables = (tree / "env.txt").read_text()
    assert USER_SECRET not in variables
    assert str(home.url) not in variables
    assert "CORRAL_HOME" not in variables
    assert (user_home / ".claude/settings.json").read_text() == USER_SECRET
    assert not (user_home / ".bashrc").exists()
    log = git(home.folder / "repository", "log", "-1", "--format=%s by %an", "corral/race/one")
    assert log == "as the user by Ada"
    remaining = {path.name for path in home.folder_of(run).iterdir()}
    assert remaining.isdisjoint({"home", "git", "scratch"}), "no copy of a login remains"


def test_sandboxed_agent_cannot_delete_git_objects(
    home: Home, kind: SandboxKind, tree: Path
) -> None:
    repository = home.folder / "repository"
    script = f"""
        G=$(git rev-parse --git-common-dir)
        find $G {repository}/.git /run/corral -type f -delete 2>/dev/null || true
        rm -rf $G {repository}/.git /run/corral 2>/dev/null || true
        echo kept > work
    """
    run = run_sandboxed(home, kind, tree, script)
    assert git(repository, "fsck", "--full", "--strict") == ""
    assert git(repository, "log", "-1", "--format=%s", "corral/race/one") == "first"
    assert (tree / "work").read_text() == "kept\n"
    assert any("Cannot import the commits" in line for line in home.log(run))


def test_discarded_commits_of_an_interrupted_attempt_are_logged(
    home: Home, any_kind: SandboxKind, tree: Path
) -> None:
    script = """
        test -e again && exit 0
        touch again && git -c user.name=a -c user.email=a@example.org commit -qm x --allow-empty
        rm -rf "$(git rev-parse --git-common-dir)/objects"/??
        exit 1
    """
    with home.store() as store:
        run = store.runs.start(
            command=["/bin/sh", "-ec", script],
            project=store.projects.register(home.folder / "repository").id,
            dir=str(tree),
            sandbox=any_kind,
            max_restarts=1,
        )
        store.runs.start_queued()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.attempts) == (RunState.COMPLETED, 2)
    lines = [line for line in home.log(ended) if "Cannot import the commits" in line]
    assert len(lines) == 2, "at the end of the attempt, and before its commits are discarded"


FORK_CHILDREN = """
import os, time
for _ in range(60):
    if os.fork() == 0:
        os.setsid(); time.sleep(600); os._exit(0)
time.sleep(600)
"""
FILL_DISK = """
import itertools, time
for number in itertools.count():
    with open(f"big-{number}", "wb") as file:
        file.write(b"x" * (4 << 20))
    time.sleep(0.5 if number > 20 else 0)
"""
ALLOCATE_MEMORY = "import time; kept = bytearray(b'x') * (100 << 20); time.sleep(600)"

# Memory in memfd files, which no process has mapped.
MEMORY_FILES = """
import os, time
kept = [os.memfd_create("kept") for _ in range(4)]
for file in kept:
    for _ in range(25):
        os.write(file, bytes(1 << 20))
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("kind", "setting", "limit", "program"),
    [
        (SandboxKind.BUBBLEWRAP, "memory_bytes", 60 << 20, MEMORY_FILES),
        (SandboxKind.LANDLOCK, "memory_bytes", 60 << 20, MEMORY_FILES),
        (SandboxKind.BUBBLEWRAP, "processes", 40, FORK_CHILDREN),
        (SandboxKind.LANDLOCK, "processes", 40, FORK_CHILDREN),
        (SandboxKind.BUBBLEWRAP, "disk_bytes", 60 << 20, FILL_DISK),
        (SandboxKind.LANDLOCK, "memory_bytes", 60 << 20, ALLOCATE_MEMORY),
    ],
    indirect=["kind"],
)
def test_run_over_its_resource_limit_is_killed_with_its_children(
    home: Home, kind: SandboxKind, tree: Path, setting: str, limit: int, program: str
) -> None:
    with home.store() as store:
        store.settings.set(f"sandbox.{setting}", limit)
    (tree / "program.py").write_text(program)
    run = run_sandboxed(home, kind, tree, f"exec {sys.executable} program.py")
    assert run.state is RunState.INTERRUPTED
    assert f"sandbox.{setting}" in str(run.reason)
    home.wait_for_all_processes()
    size = sum(path.stat().st_size for path in tree.glob("big-*"))
    assert size < 10 * limit


# The messages of an MCP client that calls the tool `whoami`.
WHOAMI: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-03-26",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "whoami", "arguments": {}},
    },
]


def test_sandboxed_agent_reaches_corral_only_as_itself(home: Home, tree: Path) -> None:
    kind = sandbox.probe_sandboxes().kind
    if kind is SandboxKind.NONE:
        pytest.skip("no sandbox is available")
    assert home.corral("up", "--port", "0").returncode == 0
    try:
        corral = f"{sys.executable} -P -m corral"
        (tree / "requests").write_text("".join(f"{json.dumps(line)}\n" for line in WHOAMI))
        script = f"""
            {corral} mcp < requests > answers 2> mcp.err
            {corral} token create evil > evil.txt 2> evil.err && exit 1
            CORRAL_AGENT=bob {corral} token create evil > evil.txt 2> evil.err && exit 1
            exit 0
        """
        with home.store() as store:
            store.agents.create("ada", command=shlex.join(["sh", "-ec", script]))
            store.agents.create("bob", command="true")
            queued_run = store.runs.start(
                prompt="Do it",
                agent="ada",
                project=store.projects.register(home.folder / "repository").id,
                dir=str(tree),
                sandbox=kind,
            )
            store.runs.start_queued()
        run = home.wait_for_end(queued_run.id)
        assert run.state is RunState.COMPLETED, [path.read_text() for path in tree.glob("*.err")]
        assert "tok_" not in (tree / "evil.txt").read_text()
        answers = (tree / "answers").read_text().splitlines()
        assert "ada" in answers[-1], answers
        with home.store() as store:
            names = [token.name for token in store.tokens.list().items]
            assert not [name for name in names if name.startswith("run-")], "the token is revoked"
    finally:
        home.corral("down")


def test_commits_are_imported_after_the_supervisor_was_killed(
    home: Home, any_kind: SandboxKind, tree: Path
) -> None:
    script = """
        echo x > made && git add made
        git -c user.name=a -c user.email=a@example.org commit -qm made
        touch started; sleep 600
    """
    with home.store() as store:
        queued_run = store.runs.start(
            command=["/bin/sh", "-ec", script],
            project=store.projects.register(home.folder / "repository").id,
            dir=str(tree),
            sandbox=any_kind,
        )
        store.runs.start_queued()
    wait_until((tree / "started").exists, "the agent committed")
    run = home.get(queued_run.id)
    assert run.supervisor_pid is not None
    assert run.pid is not None
    guard = home.guard_pid(run)
    for pid in (run.supervisor_pid, guard, run.pid):
        os.kill(pid, signal.SIGKILL)
    home.recover()
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CRASHED
    assert git(home.folder / "repository", "log", "-1", "--format=%s", "corral/race/one") == "made"
    remaining = {path.name for path in home.folder_of(run).iterdir()}
    assert remaining.isdisjoint({"home", "git", "scratch"}), "no copy of a login remains"
    home.wait_for_all_processes()


def start_and_lose_the_supervisor(
    home: Home, kind: SandboxKind, tree: Path, *, also_agent: bool
) -> Run:
    """Start a sandboxed run and kill its supervisor, perhaps with the agent."""
    started = tree / "started"
    with home.store() as store:
        queued_run = store.runs.start(
            command=["/bin/sh", "-ec", "touch started; sleep 600"],
            project=store.projects.register(home.folder / "repository").id,
            dir=str(tree),
            sandbox=kind,
        )
        store.runs.start_queued()
    wait_until(started.exists, "the agent started")
    run = home.in_state(queued_run.id, RunState.RUNNING)
    assert run.supervisor_pid is not None
    assert run.pid is not None
    guard = home.guard_pid(run)
    pids = [run.supervisor_pid, *((guard, run.pid) if also_agent else ())]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the processes are dead")
    return run


def test_run_whose_worktree_was_removed_ends_after_its_supervisor_was_killed(
    home: Home, any_kind: SandboxKind, tree: Path
) -> None:
    run = start_and_lose_the_supervisor(home, any_kind, tree, also_agent=True)
    git(home.folder / "repository", "worktree", "remove", "--force", str(tree))
    home.recover()
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CRASHED
    assert any("Cannot import the commits" in line for line in home.log(ended))
    home.wait_for_all_processes()
    remaining = {path.name for path in home.folder_of(run).iterdir()}
    assert remaining.isdisjoint({"home", "scratch"}), "no copy of a login remains"


def test_new_supervisor_keeps_an_agent_whose_worktree_was_removed(
    home: Home, any_kind: SandboxKind, tree: Path
) -> None:
    run = start_and_lose_the_supervisor(home, any_kind, tree, also_agent=False)
    git(home.folder / "repository", "worktree", "remove", "--force", str(tree))
    home.recover()
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    assert "take_over" in home.events(run)
    home.wait_for_all_processes()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="c") as folder:
        yield Path(folder)


def test_sandboxed_agent_cannot_type_into_another_run(
    home: Home, tree: Path, short_folder: Path
) -> None:
    """Landlock does not prevent a connection to the socket of another supervisor."""
    kind = SandboxKind.LANDLOCK
    if (why := sandbox.probe_sandboxes().why_not.get(kind)) is not None:
        pytest.skip(f"{kind} is not available: {why}")
    other = home.start_detached("cat", options=("--pty",))
    (short_folder / "run").symlink_to(home.folder_of(other))
    wait_until((home.folder_of(other) / "control.sock").exists, "the supervisor listens")
    program = f"""
import socket, struct
line = socket.socket(socket.AF_UNIX)
line.settimeout(5)
line.connect({str(short_folder / "run" / "control.sock")!r})
body = b'{{"op":"send","text":"touch /escaped","enter":true}}'
try:
    line.sendall(struct.pack("!cI", b"?", len(body)) + body)
    answer = line.recv(100)
except OSError:
    answer = b""
raise SystemExit(7 if answer else 0)
"""
    (tree / "program.py").write_text(program)
    run = run_sandboxed(home, kind, tree, f"exec {sys.executable} program.py")
    assert run.state is RunState.COMPLETED, home.corral("logs", run.id).stdout
    assert b"touch" not in home.corral("logs", other.id).stdout
    assert home.corral("stop", other.id).returncode == 0
    home.wait_for_end(other.id)
