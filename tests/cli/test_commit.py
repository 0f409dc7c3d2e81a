"""`corral commit` and `corral lock forecast`, in real git repositories."""

import json
import os
from pathlib import Path

import pytest

import corral
from corral.adapters.processes import process
from corral.api import Corral
from corral.daemon.loops import detect_conflicts
from corral.domain.runs.model import Run
from corral.kernel.exit_status import ExitStatus
from tests.hooks.test_hook import git
from tests.support.cli_runner import Cli
from tests.support.run_factories import held, queued


@pytest.fixture
def folder(cli: Cli, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in a project; the agent is ada."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "t")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "t@example.com")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(folder, "init", "-q", "-b", "main")
    for name in ("a.py", "b.py", "src/c.py", "src/d.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{name}\n" * 20)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    cli.json("project", "register", str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    return folder


def committed_files(folder: Path, revision: str = "HEAD") -> list[str]:
    text = git(folder, "show", "--name-only", "--format=", "-z", revision).stdout
    return sorted(name for name in text.split("\0") if name)


def status(folder: Path) -> str:
    return git(folder, "status", "--porcelain", "-uall").stdout


def test_only_locked_or_named_files_are_committed(cli: Cli, folder: Path) -> None:
    cli.json("lock", "acquire", "src/")
    for name in ("a.py", "b.py", "src/c.py", "src/new *.py", "junk"):
        (folder / name).write_text("changed\n")
    (folder / "src" / "d.py").unlink()
    git(folder, "add", "b.py")
    preview = cli.json("commit", "-m", "work", "a.py", "--dry-run")
    assert preview["commit"] is None
    result = cli.json("commit", "-m", "work", "a.py")
    assert result["files"] == ["a.py", "src/c.py", "src/d.py", "src/new *.py"] == preview["files"]
    assert (result["left"], result["unlocked"]) == (["b.py", "junk"], ["a.py"])
    assert committed_files(folder) == result["files"]
    assert status(folder) == "M  b.py\n?? junk\n"
    message = git(folder, "log", "-1", "--format=%B").stdout
    assert message.startswith("work\n\nCorral-Owner: agent:ada")
    touched = {touch["path"] for touch in cli.json("lock", "touches")}
    assert touched == {*result["files"]}


def test_left_out_files_are_listed_for_people(cli: Cli, folder: Path) -> None:
    cli.json("lock", "acquire", "a.py")
    (folder / "a.py").write_text("x")
    (folder / "b.py").write_text("x")
    result = cli("commit", "-m", "x")
    assert result.code == 0
    assert "Committed 1 file" in result.out
    assert "not committed: 'b.py'" in result.err


def test_without_a_lock_or_a_name_nothing_is_committed(cli: Cli, folder: Path) -> None:
    (folder / "a.py").write_text("x")
    before = status(folder)
    assert cli.error("commit", "-m", "x")["code"] == "refused"
    cli.json("lock", "acquire", "b.py")
    assert cli.error("commit", "-m", "x")["code"] == "refused"
    assert cli.error("commit", "-m", "x", "b.py")["code"] == "refused"
    assert cli.error("commit", "-m", "x", "../outside")["exit_code"] == 2
    assert cli.error("commit", "-m", "", "a.py")["code"] == "invalid"
    assert cli("commit", "a.py").code == 2
    assert status(folder) == before


def test_file_locked_by_another_is_not_committed_when_named(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.json("lock", "acquire", "a.py")
    monkeypatch.setenv("CORRAL_AGENT", "ben")
    cli.json("lock", "acquire", "b.py")
    for name in ("a.py", "b.py"):
        (folder / name).write_text("x")
    error = cli.error("commit", "-m", "x", "a.py")
    assert (error["code"], error["details"]["owner"]) == ("held", "agent:ada")
    assert committed_files(folder, "HEAD") == ["a.py", "b.py", "src/c.py", "src/d.py"]
    assert cli.json("commit", "-m", "x")["files"] == ["b.py"]


def test_commit_rejected_by_the_repository_leaves_nothing_staged(cli: Cli, folder: Path) -> None:
    script = folder / ".git" / "hooks" / "pre-commit"
    script.write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    script.chmod(0o755)
    cli.json("lock", "acquire", ".")
    (folder / "new").write_text("x")
    (folder / "a.py").write_text("x")
    before = status(folder)
    error = cli.error("commit", "-m", "x")
    assert error["code"] == "refused"
    assert "no such luck" in error["message"]
    assert status(folder) == before


def test_commit_in_a_linked_worktree_respects_the_repositorys_locks(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(folder, "worktree", "add", "-q", str(tmp_path / "tree"))
    cli.json("lock", "acquire", "a.py")
    monkeypatch.chdir(tmp_path / "tree")
    (tmp_path / "tree" / "a.py").write_text("x")
    monkeypatch.setenv("CORRAL_AGENT", "ben")
    assert cli.error("commit", "-m", "x", "a.py")["code"] == "held"
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    assert cli.json("commit", "-m", "x")["files"] == ["a.py"]


def test_file_names_that_are_not_text_are_committed(cli: Cli, folder: Path) -> None:
    cli.json("lock", "acquire", "src/")
    with open(os.fsencode(folder) + b"/src/\xff\n", "w") as file:
        file.write("x")
    assert len(cli.json("commit", "-m", "x")["files"]) == 1
    assert status(folder) == ""


# -- the forecast ------------------------------------------------------------------------------


def add_tree(folder: Path, name: str) -> Path:
    tree = folder.parent / name
    assert git(folder, "worktree", "add", "-q", str(tree)).returncode == 0
    return tree


def list_objects(folder: Path) -> set[str]:
    return {str(path) for path in (folder / ".git").rglob("*") if "objects" in str(path)}


def test_conflicting_worktrees_are_reported_before_a_merge(
    cli: Cli, folder: Path, url: str
) -> None:
    first, second, third = (add_tree(folder, name) for name in ("one", "other", "third"))
    (first / "a.py").write_text("one\n")
    git(first, "commit", "-q", "-a", "-m", "one")
    (second / "a.py").write_text("other\n")  # not committed yet
    (second / "fresh").write_text("x\n")
    (third / "b.py").write_text("third\n")
    before = list_objects(folder), status(second)
    result = cli("lock", "conflicts", "--json")
    (clash,) = json.loads(result.out)
    assert result.code == 1
    assert clash["files"] == ["a.py"]
    assert {clash["one"]["branch"], clash["other"]["branch"]} == {"one", "other"}
    assert (list_objects(folder), status(second)) == before
    (second / "a.py").write_text("a.py\n" * 20)
    assert cli("lock", "conflicts", "--json").out == "[]\n"


def test_both_owners_are_notified_once(cli: Cli, folder: Path, url: str) -> None:
    trees = {name: add_tree(folder, name) for name in ("ann", "bob")}
    for name, tree in trees.items():
        (tree / "a.py").write_text(f"{name}\n")
    with corral.open(url, actor="user:tester") as store:
        for name, tree in trees.items():
            add_active_run(store, name, tree)
        for _ in range(2):
            (clash,) = store.locks.forecast(folder, notify=True)
        assert {clash.one.owner, clash.other.owner} == {"agent:ann", "agent:bob"}
        for name in trees:
            (letter,) = store.mail.list(mailbox=f"agent:{name}").items
            assert "a.py" in letter.body["text"]


def add_active_run(store: Corral, name: str, tree: Path, host: str | None = None) -> Run:
    """Add a run of an agent of this name, on this node unless another is named."""
    agent = store.agents.create(name)
    run = queued(store, agent_id=agent.id, cwd=str(tree))
    supervisor = held(len(name), host=host or process.host())
    return store.internal.runs.launch(store.internal.runs.acquire(run.id, supervisor))


def test_daemon_notifies_a_conflicting_pair_once_and_a_new_pair_again(
    store: Corral, folder: Path
) -> None:
    trees = {name: add_tree(folder, name) for name in ("ann", "bobby", "carla", "away")}
    for name, tree in trees.items():
        (tree / "a.py").write_text(f"{name}\n")
    ann = add_active_run(store, "ann", trees["ann"])
    add_active_run(store, "away", trees["away"], host="elsewhere")
    assert detect_conflicts(store) == 0, "a single worktree has no conflict"
    add_active_run(store, "bobby", trees["bobby"])
    assert [detect_conflicts(store) for _ in range(2)] == [1, 1]
    (trees["ann"] / "b.py").write_text("more\n")
    (trees["bobby"] / "b.py").write_text("of it\n")
    assert detect_conflicts(store) == 1
    letters = {
        name: len(store.mail.list(mailbox=f"agent:{name}").items) for name in ("ann", "bobby")
    }
    assert letters == {"ann": 1, "bobby": 1}
    store.internal.runs.record_end(ann, ExitStatus(exit_code=0))
    assert detect_conflicts(store) == 0
    add_active_run(store, "carla", trees["carla"])
    assert detect_conflicts(store) == 1
    assert len(store.mail.list(mailbox="agent:bobby").items) == 2
    assert len(store.mail.list(mailbox="agent:carla").items) == 1
    assert not store.mail.list(mailbox="agent:away").items


def test_run_of_another_machine_does_not_own_a_local_worktree(store: Corral, folder: Path) -> None:
    trees = {name: add_tree(folder, name) for name in ("ann", "bobby")}
    for name, tree in trees.items():
        (tree / "a.py").write_text(f"{name}\n")
        add_active_run(store, name, tree)
    add_active_run(store, "away", trees["ann"], host="elsewhere")
    (clash,) = store.locks.forecast(folder, notify=True)
    assert {clash.one.owner, clash.other.owner} == {"agent:ann", "agent:bobby"}
    assert not store.mail.list(mailbox="agent:away").items


def test_forecast_runs_no_program_configured_in_a_worktree(store: Corral, folder: Path) -> None:
    mark = folder.parent / "run-by-another"
    project = store.projects.register(folder)
    fake_repository = folder.parent / "ann" / "evil"
    for name in ("ann", "bobby"):
        tree = add_tree(folder, name)
        agent = store.agents.create(name)
        run = queued(store, agent_id=agent.id, cwd=str(tree), project_id=project.id)
        store.internal.runs.launch(
            store.internal.runs.acquire(run.id, held(len(name), host=process.host()))
        )
        (tree / "a.py").write_text(f"{name}\n")
        (tree / ".gitattributes").write_text("* filter=out\n")
    git(folder, "clone", "-q", str(folder), str(fake_repository))
    for setting in ("core.fsmonitor", "filter.out.clean"):
        git(fake_repository, "config", setting, f"touch {mark}; cat")
    # from now on each worktree claims to belong to another repository
    for name in ("ann", "bobby"):
        git_folder = fake_repository / ".git" / "worktrees" / name
        git_folder.mkdir(parents=True)
        (git_folder / "commondir").write_text("../..\n")
        (git_folder / "gitdir").write_text(f"{folder.parent / name / '.git'}\n")
        (git_folder / "HEAD").write_text("ref: refs/heads/main\n")
        (folder.parent / name / ".git").write_text(f"gitdir: {git_folder}\n")
    assert detect_conflicts(store) == 1, "by the project's own repository"
    (clash,) = store.locks.forecast(folder)
    assert "a.py" in clash.files
    assert not mark.exists()


def test_broken_repository_does_not_stop_the_conflict_detector(store: Corral, folder: Path) -> None:
    for name in ("ann", "bobby"):
        add_active_run(store, name, add_tree(folder, name))
    (folder / ".git" / "HEAD").write_text("nonsense")
    assert detect_conflicts(store) == 0


def test_conflict_detector_without_active_worktrees_runs_no_git(
    store: Corral, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_active_run(store, "ann", add_tree(folder, "ann"))
    monkeypatch.setenv("PATH", "")
    assert detect_conflicts(store) == 0


def test_forecast_outside_a_repository_is_empty(store: Corral, tmp_path: Path) -> None:
    with pytest.raises(corral.errors.Refused):
        store.locks.forecast(tmp_path)
