"""Worktrees of real repositories: creation, inspection and removal without loss of work."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from corral.adapters.worktrees import worktree_leftovers, worktree_registry, worktrees
from corral.kernel.errors import Refused
from tests.support.errors import because
from tests.support.git_repositories import commit, git, new_repository, write
from tests.support.home import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_git")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repository", {"README": "hello\n", "src/a.py": "a = 1\n"})


def create_worktree(repository: Path, name: str = "one", **options: str) -> Path:
    folder = repository.parent / "worktrees" / name
    worktrees.create(str(repository), str(folder), f"corral/{name}", **options)
    return folder


def list_registered(repository: Path) -> list[str]:
    """Return the folders of all worktrees that git lists, including missing ones."""
    lines = git(repository, "worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")][1:]


# -- creation --------------------------------------------------------------------------------------


def test_worktree_starts_at_its_base_on_its_own_branch(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    commit(repository, {"later": "x"})
    folder = create_worktree(repository, base=first)
    assert git(folder, "rev-parse", "HEAD") == first
    assert git(folder, "branch", "--show-current") == "corral/one"
    assert not (folder / "later").exists()
    assert git(repository, "branch", "--show-current") == "main"


def test_create_returns_the_matching_subfolder(repository: Path) -> None:
    folder = repository.parent / "inside"
    assert worktrees.create(str(repository / "src"), str(folder), "b") == str(folder / "src") + "/"


def test_create_runs_no_hook_and_needs_no_git_identity(repository: Path) -> None:
    hook = repository / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    assert not (create_worktree(repository) / "ran").exists()


def test_create_again_keeps_the_existing_worktree(repository: Path) -> None:
    folder = create_worktree(repository)
    write(folder, {"mine": "work"})
    git(folder, "checkout", "-qb", "elsewhere")
    assert create_worktree(repository) == folder
    assert (folder / "mine").read_text() == "work"
    assert git(folder, "branch", "--show-current") == "elsewhere"


def test_deleted_worktree_is_recreated_at_its_commit(repository: Path) -> None:
    folder = create_worktree(repository)
    saved = commit(folder, {"work": "x"})
    shutil.rmtree(folder)
    assert worktrees.inspect(str(repository), str(folder)).missing
    create_worktree(repository)
    assert git(folder, "rev-parse", "HEAD") == saved


def test_existing_branch_is_used_only_at_the_base(repository: Path) -> None:
    git(repository, "branch", "corral/same")
    assert git(create_worktree(repository, "same"), "branch", "--show-current") == "corral/same"
    git(repository, "branch", "corral/other")
    commit(repository, {"more": "x"})
    with pytest.raises(Refused, check=because("branch_exists", branch="corral/other")):
        create_worktree(repository, "other")
    assert not (repository.parent / "worktrees/other").exists()
    folder = repository.parent / "worktrees/own"
    worktrees.create(str(repository), str(folder), "corral/other", own_branch=True)
    assert not (folder / "more").exists()


def test_checked_out_branch_is_rejected(repository: Path) -> None:
    with pytest.raises(Refused, check=because("git_failed")):
        worktrees.create(str(repository), str(repository.parent / "x"), "main")


@pytest.mark.parametrize("name", ["-x", "a..b", "a b", "", "x.lock", "@{-1}"])
def test_invalid_branch_name_is_rejected(repository: Path, name: str) -> None:
    with pytest.raises(Refused, check=because("bad_branch_name")):
        worktrees.create(str(repository), str(repository.parent / "x"), name)


def test_unsuitable_repository_or_folder_is_rejected(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, check=because("not_a_repository")):
        worktrees.create(str(tmp_path), str(tmp_path / "x"), "b")
    with pytest.raises(Refused, check=because("git_unavailable")):
        worktrees.create(str(tmp_path / "nowhere"), str(tmp_path / "x"), "b")
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    with pytest.raises(Refused, check=because("no_commits")):
        worktrees.create(str(empty), str(tmp_path / "x"), "b")
    with pytest.raises(Refused, check=because("unknown_commit", commit="deadbeef")):
        worktrees.create(str(repository), str(tmp_path / "x"), "b", base="deadbeef")
    write(tmp_path / "full", {"mine": "x"})
    with pytest.raises(Refused, check=because("folder_not_empty")):
        worktrees.create(str(repository), str(tmp_path / "full"), "b")
    unrelated = new_repository(tmp_path / "unrelated")
    with pytest.raises(Refused, check=because("not_a_worktree")):
        worktrees.create(str(repository), str(unrelated), "b")
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "branch") == "* main"


def test_detached_head_and_bare_repository_are_accepted(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert (create_worktree(repository, "one") / "README").exists()
    bare = repository.parent / "bare.git"
    git(repository.parent, "clone", "-q", "--bare", str(repository), str(bare))
    git(bare, "update-ref", "refs/heads/main", git(repository, "rev-parse", "HEAD"))
    git(bare, "symbolic-ref", "HEAD", "refs/heads/main")
    folder = repository.parent / "of-bare"
    worktrees.create(str(bare), str(folder), "b")
    write(folder, {"new": "x"})
    assert worktrees.inspect(str(bare), str(folder)).untracked == ["new"]


def test_worktree_left_by_a_killed_git_is_completed(repository: Path) -> None:
    files: dict[str, str | bytes] = {f"many/{number}": f"{number}\n" for number in range(3_000)}
    commit(repository, files)
    folder = repository.parent / "worktrees/one"
    # A filter that never ends blocks git during the checkout.
    (repository / ".git/info").mkdir(exist_ok=True)
    (repository / ".git/info/attributes").write_text("many/1500 filter=hang\n")
    reached = repository.parent / "reached"
    hang = f"filter.hang.smudge=touch {reached}; sleep 3600"
    add = ["worktree", "add", "-q", "-b", "corral/one", str(folder)]
    child = subprocess.Popen(
        ["git", "-C", str(repository), "-c", hang, *add], start_new_session=True
    )
    wait_until(reached.exists, "git runs the filter")
    os.killpg(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert 0 < len(list((folder / "many").iterdir())) < 3_000
    create_worktree(repository)
    state = worktrees.inspect(str(repository), str(folder))
    assert (state.uncommitted, state.locked, state.branch) == ([], None, "corral/one")
    assert len(list((folder / "many").iterdir())) == 3_000


def test_processes_create_worktrees_concurrently(repository: Path) -> None:
    program = (
        "import sys; from corral.adapters.worktrees import worktree_registry, worktrees\n"
        "for number in range(2):\n"
        "    name = f'{sys.argv[2]}-{number}'\n"
        "    worktrees.create(sys.argv[1], f'{sys.argv[1]}-trees/{name}', f'corral/{name}')\n"
        "    worktree_registry.list_worktrees(sys.argv[1])\n"
        "same = worktrees.create(sys.argv[1], f'{sys.argv[1]}-trees/same', 'corral/same')\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(repository), str(number)], stderr=subprocess.PIPE
        )
        for number in range(4)
    ]
    for child in children:
        _, errors = child.communicate()
        assert child.returncode == 0, errors.decode()
    folders = list_registered(repository)
    assert len(folders) == 9
    for folder in folders:
        assert worktrees.inspect(str(repository), folder).clean


def test_submodules_are_cloned_locally_and_their_changes_count(tmp_path: Path) -> None:
    library = new_repository(tmp_path / "library", {"lib.py": "1\n"})
    top = new_repository(tmp_path / "top")
    allow = ("-c", "protocol.file.allow=always")
    git(top, *allow, "submodule", "--quiet", "add", "--name", "lib", str(library), "deps/lib")
    commit(top, {})
    shutil.move(library, tmp_path / "gone")  # the submodule cannot be cloned from its origin
    folder = create_worktree(top)
    assert (folder / "deps/lib/lib.py").read_text() == "1\n"
    assert worktrees.inspect(str(top), str(folder)).clean
    write(folder, {"deps/lib/new.py": "2\n"})
    assert worktrees.inspect(str(top), str(folder)).untracked == ["deps/lib/"]
    with pytest.raises(Refused, check=because("would_lose_work", loses=["dirty"])):
        worktrees.remove(str(top), str(folder))
    commit(folder / "deps/lib", {})
    assert worktrees.inspect(str(top), str(folder)).dirty, "no other repository has the commit"
    commit(folder, {})
    assert worktrees.inspect(str(top), str(folder)).untracked == ["deps/lib/"]
    worktrees.remove(str(top), str(folder), despite=["dirty"])
    assert not folder.exists()


# -- inspection ------------------------------------------------------------------------------------


def test_inspect_lists_what_would_be_lost(repository: Path) -> None:
    folder = create_worktree(repository)
    state = worktrees.inspect(str(repository), str(folder))
    assert (state.clean, state.missing, state.branch) == (True, False, "corral/one")
    hostile = b"a\nb\xff"
    (folder / os.fsdecode(hostile)).write_text("x")
    write(folder, {"README": "changed\n", ".gitignore": "ignored\n", "ignored": "x"})
    git(folder, "rm", "-q", "src/a.py")
    state = worktrees.inspect(str(repository), str(folder))
    assert sorted(state.uncommitted) == ["README", "src/a.py"]
    assert sorted(map(os.fsencode, state.untracked)) == [b".gitignore", hostile]
    assert state.removal_blockers == "2 uncommitted, 2 untracked"
    commit(folder, {})
    state = worktrees.inspect(str(repository), str(folder))
    assert (state.dirty, state.unmerged) == (False, 1)
    git(repository, "branch", "also", "corral/one")
    state = worktrees.inspect(str(repository), str(folder))
    assert (state.unmerged, state.clean) == (0, True)
    git(repository, "worktree", "lock", "--reason", "on a stick", str(folder))
    assert worktrees.inspect(str(repository), str(folder)).removal_blockers == "locked (on a stick)"


def test_assume_unchanged_files_are_inspected(repository: Path) -> None:
    folder = create_worktree(repository)
    git(folder, "update-index", "--assume-unchanged", "README")
    git(folder, "update-index", "--skip-worktree", "src/a.py")
    write(folder, {"README": "changed\n", "src/a.py": "changed\n"})
    assert git(folder, "status", "--porcelain") == ""
    state = worktrees.inspect(str(repository), str(folder))
    assert state.uncommitted == ["README", "src/a.py"]


def test_nested_repository_counts_as_untracked_work(repository: Path) -> None:
    folder = create_worktree(repository)
    new_repository(folder / "inner")
    assert worktrees.inspect(str(repository), str(folder)).untracked == ["inner/"]
    git(folder, "add", "inner")
    git(folder, "commit", "-qm", "as a link")
    git(repository, "merge", "-q", "--ff-only", "corral/one")
    state = worktrees.inspect(str(repository), str(folder))
    assert (state.unmerged, state.untracked) == (0, ["inner/"])


def test_git_config_written_by_an_agent_is_never_executed(repository: Path, tmp_path: Path) -> None:
    folder = create_worktree(repository)
    trap = tmp_path / "trap"
    forged = new_repository(tmp_path / "forged", {"README": "x"})
    bite = f"touch {trap}; cat"
    for name in ("core.fsmonitor", "filter.bite.clean", "filter.bite.smudge", "diff.bite.command"):
        git(forged, "config", name, bite)
    (folder / ".git").write_text(f"gitdir: {forged}/.git\n")
    write(folder, {".gitattributes": "* filter=bite diff=bite\n", "README": "changed\n"})
    inner = new_repository(folder / "inner", {".gitattributes": "* filter=bite\n", "x": "1\n"})
    git(inner, "config", "filter.bite.clean", bite)
    git(inner, "config", "core.fsmonitor", bite)
    (inner / "x").write_text("2\n")
    trap.unlink(missing_ok=True)
    state = worktrees.inspect(str(repository), str(folder))
    assert state.uncommitted == ["README"]
    assert state.untracked == [".gitattributes", "inner/"]
    assert not trap.exists()


def test_worktrees_are_listed_with_their_size(repository: Path) -> None:
    first, second = create_worktree(repository, "one"), create_worktree(repository, "two")
    write(second, {"big": b"x" * 200_000})
    os.link(second / "big", second / "again")
    (second / "link").symlink_to("/")
    assert [tree.folder for tree in worktree_registry.list_worktrees(str(repository))] == [
        str(repository),
        str(first),
        str(second),
    ]
    shutil.rmtree(first)
    assert list_registered(repository) == [str(first), str(second)]
    assert len(worktree_registry.list_worktrees(str(repository))) == 2
    assert 200_000 <= worktree_leftovers.measure_disk_usage(str(second)) < 300_000
    assert worktree_leftovers.measure_disk_usage(str(first)) == 0


# -- removal ---------------------------------------------------------------------------------------


def test_remove_is_refused_when_work_would_be_lost(repository: Path) -> None:
    folder = create_worktree(repository)
    write(folder, {"mine": "x"})
    with pytest.raises(Refused) as refused:
        worktrees.remove(str(repository), str(folder))
    assert refused.value.details["loses"] == ["dirty"]
    assert refused.value.details["files"] == ["mine"]
    saved = commit(folder, {})
    with pytest.raises(Refused) as refused:
        worktrees.remove(str(repository), str(folder), delete_branch=True)
    assert refused.value.details["loses"] == ["unmerged"]
    worktrees.remove(str(repository), str(folder))
    assert not folder.exists()
    assert git(repository, "rev-parse", "corral/one") == saved, "the branch keeps the commits"
    assert list_registered(repository) == []
    create_worktree(repository, base=saved)
    git(repository, "merge", "-q", "--ff-only", saved)
    worktrees.remove(str(repository), str(folder), delete_branch=True)
    assert git(repository, "branch") == "* main"


def test_remove_despite_named_losses_succeeds(repository: Path) -> None:
    folder = create_worktree(repository)
    commit(folder, {"work": "x"})
    write(folder, {"mine": "x"})
    git(repository, "worktree", "lock", str(folder))
    with pytest.raises(Refused):
        worktrees.remove(
            str(repository), str(folder), delete_branch=True, despite=["dirty", "unmerged"]
        )
    gone = worktrees.remove(
        str(repository), str(folder), delete_branch=True, despite=["dirty", "unmerged", "locked"]
    )
    assert (gone.untracked, gone.unmerged) == (["mine"], 1)
    assert git(repository, "branch") == "* main"
    assert not folder.exists()


def test_detached_commit_counts_as_work(repository: Path) -> None:
    folder = create_worktree(repository)
    git(folder, "checkout", "-q", "--detach")
    commit(folder, {"work": "x"})
    with pytest.raises(Refused, check=because("would_lose_work", loses=["unmerged"])):
        worktrees.remove(str(repository), str(folder))


def test_missing_worktree_is_unregistered_and_foreign_one_kept(repository: Path) -> None:
    folder = create_worktree(repository)
    shutil.rmtree(folder)
    assert worktrees.remove(str(repository), str(folder), delete_branch=True).missing
    assert worktrees.remove(str(repository), str(folder)).missing
    unrelated = new_repository(repository.parent / "unrelated")
    with pytest.raises(Refused, check=because("not_a_worktree")):
        worktrees.remove(str(repository), str(unrelated), despite=["dirty", "unmerged"])
    with pytest.raises(Refused, check=because("not_a_worktree")):
        worktrees.remove(str(repository), str(repository), despite=["dirty", "unmerged"])
    assert (repository / "README").exists()


def test_read_only_folders_are_removed(repository: Path) -> None:
    folder = create_worktree(repository)
    write(folder, {"deep/er/file": "x"})
    (folder / "deep/er").chmod(0o500)
    (folder / "deep").chmod(0o500)
    worktrees.remove(str(repository), str(folder), despite=["dirty"])
    assert not list(folder.parent.iterdir())


@pytest.mark.parametrize("point", ["rmtree", "delete_tree"])
def test_interrupted_removal_is_completed_later(
    repository: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    folder = create_worktree(repository)
    saved = commit(folder, {"work": "x"})

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil if point == "rmtree" else worktrees, point, die)
        with pytest.raises(KeyboardInterrupt):
            worktrees.remove(str(repository), str(folder))
    assert not folder.exists(), "the folder is complete or absent"
    assert git(repository, "rev-parse", "corral/one") == saved
    root = str(folder.parent)
    assert worktree_leftovers.find_orphans([str(repository)], root, [str(folder)]) != []
    assert worktrees.remove(str(repository), str(folder)).missing
    assert len(worktree_leftovers.finish_removals(root)) == 1
    assert worktree_leftovers.find_orphans([str(repository)], root, []) == []
    assert list_registered(repository) == []
    create_worktree(repository, base=saved)


def test_orphaned_worktrees_are_listed(repository: Path) -> None:
    root = repository.parent / "worktrees"
    used, orphan, missing = (
        create_worktree(repository, f"p/{name}") for name in ("mine", "lost", "gone")
    )
    shutil.rmtree(missing)
    write(root / "p/unknown", {"file": "x"})
    write(root, {"a file": "x"})
    cut = root / "p" / f"{worktree_leftovers.REMOVAL_PREFIX}1"
    write(cut, {"file": "x"})
    worktrees.create(str(repository), str(repository.parent / "elsewhere"), "elsewhere")
    orphans = worktree_leftovers.find_orphans(
        [str(repository), str(root / "nowhere")], str(root), [str(used)]
    )
    assert [(Path(item.folder).name, item.branch, item.exists) for item in orphans] == [
        (cut.name, None, True),
        ("gone", "corral/p/gone", False),
        ("lost", "corral/p/lost", True),
        ("unknown", None, True),
    ]
    assert orphans[2].repository == str(repository)
    assert worktree_leftovers.finish_removals(str(root)) == [str(cut)]
    assert orphan.exists()
    assert (root / "p/unknown").exists()


def test_threads_create_worktrees_concurrently(repository: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda number: create_worktree(repository, f"t{number}"), range(8)))
    assert all((folder / "README").exists() for folder in folders)


def test_missing_file_during_creation_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(FileNotFoundError), worktrees._lock_folder(str(folder)):
        raise FileNotFoundError
    assert not folder.exists()
