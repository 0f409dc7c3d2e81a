"""Merges and grafts in real repositories are atomic."""

import os
from pathlib import Path

import pytest

from corral.adapters.git import git as adapter
from corral.adapters.git import git_history, merges
from corral.adapters.worktrees import worktrees
from corral.kernel.errors import Conflict, Invalid, Refused
from tests.support.errors import because
from tests.support.full_disk import fill
from tests.support.git_repositories import commit, git, new_repository, write
from tests.support.race_helpers import tree_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_git")]
LONG = "".join(f"line {number}\n" for number in range(60))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    files: dict[str, str | bytes] = {"README": "hello\n", "long": LONG, "src/a.py": "a = 1\n"}
    return new_repository(tmp_path / "repository", files)


def create_attempt(repository: Path, name: str, files: dict[str, str | bytes]) -> str:
    """Create an attempt with these files and return its commit."""
    folder = repository.parent / name
    worktrees.create(str(repository), str(folder), f"corral/{name}")
    return commit(folder, files)


def merge(repository: Path, work: str, branch: str = "main", **options: bool) -> merges.MergeResult:
    return merges.merge_commit(str(repository), work, branch, message="merge it", **options)


def test_fast_forward_merge_moves_the_branch_and_its_files(
    repository: Path,
) -> None:
    work = create_attempt(repository, "one", {"new": "x\n", "README": "better\n"})
    result = merge(repository, work)
    assert (result.outcome, result.forward, result.commit) == ("merged", True, work)
    assert git(repository, "rev-parse", "HEAD") == work
    assert git(repository, "status", "--porcelain") == ""
    assert (repository / "README").read_text() == "better\n"
    assert merge(repository, work).outcome == "already"


def test_merge_runs_no_program_from_a_hostile_worktree(repository: Path, tmp_path: Path) -> None:
    work = create_attempt(repository, "one", {"README": "better\n"})
    git(repository, "switch", "-qc", "dev")
    worktrees.create(str(repository), str(tmp_path / "two"), "corral/two")
    hostile, marker = tmp_path / "two", tmp_path / "executed"
    git(hostile, "switch", "-q", "main")
    forged = tmp_path / "forged"
    git(repository, "clone", "-q", "--bare", str(repository), str(forged))
    git(forged, "symbolic-ref", "HEAD", "refs/heads/main")
    for setting in ("core.fsmonitor", "filter.out.clean", "filter.out.smudge"):
        git(forged, "config", setting, f"touch {marker}; cat")
    git(forged, "config", "core.bare", "false")
    write(hostile, {".git": f"gitdir: {forged}\n", ".gitattributes": "* filter=out\n"})
    assert merge(repository, work).outcome == "merged"
    assert git(repository, "rev-parse", "main") == work
    assert not marker.exists()


def test_full_disk_during_a_merge_leaves_the_checkout_unchanged(
    small_disk: Path, tmp_path: Path
) -> None:
    text = "".join(f"{number}\n" for number in range(2_000))
    repository = new_repository(small_disk / "repository", {"kept": text, "src/gone": text})
    folder = tmp_path / "elsewhere"
    worktrees.create(str(repository), str(folder), "corral/one")
    (folder / "src/gone").unlink()
    work = commit(folder, {"kept": "short\n", "a": "x" * 400_000, "new/deep/z": "x" * 900_000})
    write(repository, {"untracked": "mine"})
    before = tree_of(repository)
    fill(small_disk / "ballast")
    os.truncate(small_disk / "ballast", (small_disk / "ballast").stat().st_size - 500_000)
    with pytest.raises(Refused, check=because("not_written")):
        merge(repository, work)
    assert tree_of(repository) == before
    assert git(repository, "status", "--porcelain") == "?? untracked"
    (small_disk / "ballast").unlink()
    assert merge(repository, work).outcome == "merged"
    assert git(repository, "status", "--porcelain") == "?? untracked"
    assert not (repository / "src").exists()


def test_merge_keeps_unrelated_uncommitted_changes(repository: Path) -> None:
    work = create_attempt(
        repository, "one", {"long": LONG.replace("line 5\n", "five\n"), "new": "x\n"}
    )
    commit(repository, {"long": LONG.replace("line 50\n", "fifty\n")})
    write(repository, {"README": "not committed\n", "untracked": "mine"})
    write(repository, {"src/a.py": "staged\n"})
    git(repository, "add", "src/a.py")
    result = merge(repository, work)
    assert (result.outcome, result.forward) == ("merged", False)
    assert git(repository, "rev-parse", "main^1", "main^2") == f"{result.before}\n{work}"
    text = (repository / "long").read_text()
    assert "five\n" in text
    assert "fifty\n" in text
    assert git(repository, "status", "--porcelain") == "M README\nM  src/a.py\n?? untracked"
    assert git(repository, "log", "-1", "--format=%an|%s") == "corral|merge it"
    git(repository, "config", "user.name", "The User")
    git(repository, "config", "user.email", "user@example.org")
    other = create_attempt(repository, "two", {"other": "x\n"})
    merge(repository, other, forward=False)
    assert git(repository, "log", "-1", "--format=%an") == "The User"


def test_merge_conflicts_are_listed_by_file_and_nothing_changes(repository: Path) -> None:
    work = create_attempt(repository, "one", {"README": "theirs\n", "both\nnames": "theirs\n"})
    git(repository, "rm", "-q", "README")
    before = commit(repository, {"both\nnames": "ours\n"})
    result = merge(repository, work)
    assert (result.outcome, result.commit) == ("conflicts", None)
    assert {clash.name: clash.why for clash in result.conflicts} == {
        "README": "modify/delete",
        "both\nnames": "contents",
    }
    assert git(repository, "rev-parse", "main") == before
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.parametrize("how", ["changed", "staged", "untracked", "in the place of a folder"])
def test_merge_is_refused_over_uncommitted_changes(repository: Path, how: str) -> None:
    work = create_attempt(repository, "one", {"README": "better\n", "new/file": "x\n"})
    name = {"untracked": "new/file", "in the place of a folder": "new"}.get(how, "README")
    write(repository, {name: "mine\n"})
    if how == "staged":
        git(repository, "add", "-A")
    before = git(repository, "rev-parse", "main")
    with pytest.raises(Refused):
        merge(repository, work)
    assert git(repository, "rev-parse", "main") == before
    assert (repository / name).read_text() == "mine\n"
    assert [path.name for path in (repository / ".git").glob("index*")] == ["index"]


def test_branch_that_is_not_checked_out_is_moved(repository: Path) -> None:
    work = create_attempt(repository, "one", {"new": "x\n"})
    git(repository, "branch", "target")
    assert merge(repository, work, "target").forward
    assert git(repository, "rev-parse", "target") == work
    assert git(repository, "branch", "--show-current") == "main"
    assert not (repository / "new").exists()
    worktrees.create(str(repository), str(repository.parent / "t"), "target", own_branch=True)
    other = create_attempt(repository, "two", {"other": "x\n"})
    merge(repository, other, "target")
    assert (repository.parent / "t/other").exists()
    assert git(repository.parent / "t", "status", "--porcelain") == ""
    with pytest.raises(Refused, check=because("unknown_branch", branch="nowhere")):
        merge(repository, work, "nowhere")


def test_concurrently_moved_branch_is_not_overwritten(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = create_attempt(repository, "one", {"new": "x\n"})
    real = merges._find_checkout

    def move_branch(top: str, branch: str) -> object:
        result = real(top, branch)
        moved = git(repository, "commit-tree", "-p", "main", "-m", "x", "main^{tree}")
        git(repository, "update-ref", f"refs/heads/{branch}", moved)
        return result

    git(repository, "branch", "target")
    monkeypatch.setattr(merges, "_find_checkout", move_branch)
    for branch in ("main", "target"):
        with pytest.raises(Conflict, check=because("branch_moved")):
            merge(repository, work, branch)
    assert git(repository, "status", "--porcelain") == ""
    assert not (repository / "new").exists()


@pytest.mark.parametrize("written", ["nothing", "files", "half of the files"])
def test_interrupted_merge_is_completed_by_the_next(repository: Path, written: str) -> None:
    work = create_attempt(
        repository, "one", {"README": "better\n", "new/file": "x\n", "src/a.py": "b\n"}
    )
    git(repository.parent / "one", "rm", "-q", "long")
    work = commit(repository.parent / "one", {})
    before = git(repository, "rev-parse", "main")
    if written == "files":  # git was killed after it wrote index and files
        git(repository, "read-tree", "-m", "-u", before, work)
    if written == "half of the files":  # git was killed while it wrote the files
        write(repository, {"README": "better\n", "new/file": "x\n"})
        (repository / "long").unlink()
    assert merge(repository, work).commit == work
    assert git(repository, "status", "--porcelain") == ""


def test_unrelated_histories_are_rejected(repository: Path) -> None:
    git(repository, "checkout", "-q", "--orphan", "other")
    work = commit(repository, {"x": "y"})
    git(repository, "checkout", "-q", "main")
    with pytest.raises(Refused, check=because("no_merge_base")):
        merge(repository, work)


# -- grafts ----------------------------------------------------------------------------------------


def graft(repository: Path, commit: str, **options: object) -> merges.GraftResult:
    folder = str(repository.parent / "winner")
    return merges.graft_changes(str(repository), folder, commit, message="grafted", **options)


def test_graft_applies_files_of_another_attempt(repository: Path) -> None:
    winner = create_attempt(repository, "winner", {"README": "winner\n"})
    folder = repository.parent / "loser"
    create_attempt(
        repository, "loser", {"README": "loser\n", "extra/file": "x\n", "src/a.py": "a = 2\n"}
    )
    (folder / "long").rename(folder / "moved")
    loser = commit(folder, {})
    result = graft(repository, loser, files=["extra/file", "moved"])
    assert result.before == winner
    assert sorted(result.files) == ["extra/file", "moved"]
    top = repository.parent / "winner"
    assert git(top, "rev-parse", "corral/winner", "corral/winner^") == f"{result.commit}\n{winner}"
    assert git(top, "status", "--porcelain") == ""
    assert (top / "README").read_text() == "winner\n"
    assert not (top / "long").exists()
    second = graft(repository, loser, files=["extra/file"])
    assert (second.commit, second.files) == (result.commit, [])


def test_graft_merges_hunks_with_changes_of_the_winner(repository: Path) -> None:
    create_attempt(repository, "winner", {"long": LONG.replace("line 30\n", "thirty\n")})
    text = LONG.replace("line 3\n", "three\n").replace("line 20\n", "").replace("line 50\n", "50\n")
    loser = create_attempt(repository, "loser", {"long": text})
    diff = git_history.diff_file(str(repository), "main", loser, "long")
    assert [hunk.number for hunk in diff.hunks] == [1, 2, 3]
    result = graft(repository, loser, hunks={"long": [3, 1]})
    assert result.files == ["long"]
    assert (repository.parent / "winner/long").read_text() == LONG.replace(
        "line 30\n", "thirty\n"
    ).replace("line 3\n", "three\n").replace("line 50\n", "50\n")


def test_conflicting_graft_changes_nothing(repository: Path) -> None:
    winner = create_attempt(repository, "winner", {"README": "winner\n"})
    loser = create_attempt(repository, "loser", {"README": "loser\n", "extra": "x\n"})
    result = graft(repository, loser, files=["extra", "README"])
    assert [(clash.name, clash.why) for clash in result.conflicts] == [("README", "contents")]
    assert (result.commit, result.files) == (None, [])
    top = repository.parent / "winner"
    assert git(top, "rev-parse", "HEAD") == winner
    assert git(top, "status", "--porcelain") == ""


def test_invalid_graft_is_rejected(repository: Path) -> None:
    create_attempt(repository, "winner", {"README": "winner\n"})
    loser = create_attempt(repository, "loser", {"long": LONG + "more\n", "data": b"\0\1"})
    with pytest.raises(Invalid):
        graft(repository, loser)
    with pytest.raises(Refused, check=because("unchanged", name="README")):
        graft(repository, loser, files=["README"])
    with pytest.raises(Refused, check=because("unknown_hunk", name="long")):
        graft(repository, loser, hunks={"long": [2]})
    with pytest.raises(Refused, check=because("unknown_hunk", name="data")):
        graft(repository, loser, hunks={"data": [1]})
    write(repository.parent / "winner", {"dirt": "x"})
    with pytest.raises(Refused, check=because("uncommitted_changes")):
        graft(repository, loser, files=["long"])


def test_old_git_without_merge_tree_is_reported(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = create_attempt(repository, "one", {"new": "x\n"})
    commit(repository, {"mine": "x\n"})
    real = adapter.run

    def run_old_git(top: str, *args: str, **kwargs: object) -> adapter.GitResult:
        if args[0] == "merge-tree":
            return adapter.GitResult(
                129, b"", b"usage: git merge-tree <base-tree> <branch1> <branch2>"
            )
        return real(top, *args, **kwargs)

    monkeypatch.setattr(adapter, "run", run_old_git)
    with pytest.raises(Refused, check=because("git_too_old")):
        merge(repository, work)
