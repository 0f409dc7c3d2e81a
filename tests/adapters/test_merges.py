"""Merges and grafts in real repositories are atomic."""

import os
from pathlib import Path

import pytest

from corral.adapters import git as adapter
from corral.adapters import git_history, merges, worktrees
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


def attempt(repository: Path, name: str, files: dict[str, str | bytes]) -> str:
    """The commit of an attempt that made these files."""
    folder = repository.parent / name
    worktrees.create(str(repository), str(folder), f"corral/{name}")
    return commit(folder, files)


def merged(repository: Path, work: str, branch: str = "main", **more: bool) -> merges.MergeResult:
    return merges.merge_commit(str(repository), work, branch, message="merge it", **more)


def test_fast_forward_merge_moves_the_branch_and_its_files(
    repository: Path,
) -> None:
    work = attempt(repository, "one", {"new": "x\n", "README": "better\n"})
    done = merged(repository, work)
    assert (done.outcome, done.forward, done.commit) == ("merged", True, work)
    assert git(repository, "rev-parse", "HEAD") == work
    assert git(repository, "status", "--porcelain") == ""
    assert (repository / "README").read_text() == "better\n"
    assert merged(repository, work).outcome == "already"


def test_merge_runs_no_program_from_a_hostile_worktree(repository: Path, tmp_path: Path) -> None:
    work = attempt(repository, "one", {"README": "better\n"})
    git(repository, "switch", "-qc", "dev")
    worktrees.create(str(repository), str(tmp_path / "two"), "corral/two")
    taken, mark = tmp_path / "two", tmp_path / "run-by-another"
    git(taken, "switch", "-q", "main")
    evil = tmp_path / "evil"
    git(repository, "clone", "-q", "--bare", str(repository), str(evil))
    git(evil, "symbolic-ref", "HEAD", "refs/heads/main")
    for setting in ("core.fsmonitor", "filter.out.clean", "filter.out.smudge"):
        git(evil, "config", setting, f"touch {mark}; cat")
    git(evil, "config", "core.bare", "false")
    write(taken, {".git": f"gitdir: {evil}\n", ".gitattributes": "* filter=out\n"})
    assert merged(repository, work).outcome == "merged"
    assert git(repository, "rev-parse", "main") == work
    assert not mark.exists()


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
        merged(repository, work)
    assert tree_of(repository) == before
    assert git(repository, "status", "--porcelain") == "?? untracked"
    (small_disk / "ballast").unlink()
    assert merged(repository, work).outcome == "merged"
    assert git(repository, "status", "--porcelain") == "?? untracked"
    assert not (repository / "src").exists()


def test_merge_keeps_unrelated_uncommitted_changes(repository: Path) -> None:
    work = attempt(repository, "one", {"long": LONG.replace("line 5\n", "five\n"), "new": "x\n"})
    commit(repository, {"long": LONG.replace("line 50\n", "fifty\n")})
    write(repository, {"README": "not committed\n", "untracked": "mine"})
    write(repository, {"src/a.py": "staged\n"})
    git(repository, "add", "src/a.py")
    done = merged(repository, work)
    assert (done.outcome, done.forward) == ("merged", False)
    assert git(repository, "rev-parse", "main^1", "main^2") == f"{done.before}\n{work}"
    text = (repository / "long").read_text()
    assert "five\n" in text
    assert "fifty\n" in text
    assert git(repository, "status", "--porcelain") == "M README\nM  src/a.py\n?? untracked"
    assert git(repository, "log", "-1", "--format=%an|%s") == "corral|merge it"
    git(repository, "config", "user.name", "The User")
    git(repository, "config", "user.email", "user@example.org")
    other = attempt(repository, "two", {"other": "x\n"})
    merged(repository, other, forward=False)
    assert git(repository, "log", "-1", "--format=%an") == "The User"


def test_merge_conflicts_are_listed_by_file_and_nothing_changes(repository: Path) -> None:
    work = attempt(repository, "one", {"README": "theirs\n", "both\nnames": "theirs\n"})
    git(repository, "rm", "-q", "README")
    before = commit(repository, {"both\nnames": "ours\n"})
    done = merged(repository, work)
    assert (done.outcome, done.commit) == ("conflicts", None)
    assert {clash.name: clash.why for clash in done.conflicts} == {
        "README": "modify/delete",
        "both\nnames": "contents",
    }
    assert git(repository, "rev-parse", "main") == before
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.parametrize("how", ["changed", "staged", "untracked", "in the place of a folder"])
def test_merge_is_refused_over_uncommitted_changes(repository: Path, how: str) -> None:
    work = attempt(repository, "one", {"README": "better\n", "new/file": "x\n"})
    name = {"untracked": "new/file", "in the place of a folder": "new"}.get(how, "README")
    write(repository, {name: "mine\n"})
    if how == "staged":
        git(repository, "add", "-A")
    before = git(repository, "rev-parse", "main")
    with pytest.raises(Refused):
        merged(repository, work)
    assert git(repository, "rev-parse", "main") == before
    assert (repository / name).read_text() == "mine\n"
    assert [path.name for path in (repository / ".git").glob("index*")] == ["index"]


def test_branch_that_is_not_checked_out_is_moved(repository: Path) -> None:
    work = attempt(repository, "one", {"new": "x\n"})
    git(repository, "branch", "target")
    assert merged(repository, work, "target").forward
    assert git(repository, "rev-parse", "target") == work
    assert git(repository, "branch", "--show-current") == "main"
    assert not (repository / "new").exists()
    worktrees.create(str(repository), str(repository.parent / "t"), "target", own_branch=True)
    other = attempt(repository, "two", {"other": "x\n"})
    merged(repository, other, "target")
    assert (repository.parent / "t/other").exists()
    assert git(repository.parent / "t", "status", "--porcelain") == ""
    with pytest.raises(Refused, check=because("unknown_branch", branch="nowhere")):
        merged(repository, work, "nowhere")


def test_concurrently_moved_branch_is_not_overwritten(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = attempt(repository, "one", {"new": "x\n"})
    real = merges._find_checkout

    def slowly(top: str, branch: str) -> object:
        found = real(top, branch)
        moved = git(repository, "commit-tree", "-p", "main", "-m", "x", "main^{tree}")
        git(repository, "update-ref", f"refs/heads/{branch}", moved)
        return found

    git(repository, "branch", "target")
    monkeypatch.setattr(merges, "_find_checkout", slowly)
    for branch in ("main", "target"):
        with pytest.raises(Conflict, check=because("branch_moved")):
            merged(repository, work, branch)
    assert git(repository, "status", "--porcelain") == ""
    assert not (repository / "new").exists()


@pytest.mark.parametrize("kept", ["nothing", "files", "half of the files"])
def test_interrupted_merge_is_completed_by_the_next(repository: Path, kept: str) -> None:
    work = attempt(repository, "one", {"README": "better\n", "new/file": "x\n", "src/a.py": "b\n"})
    git(repository.parent / "one", "rm", "-q", "long")
    work = commit(repository.parent / "one", {})
    before = git(repository, "rev-parse", "main")
    if kept == "files":  # git has written index and files, and was killed before the branch moved
        git(repository, "read-tree", "-m", "-u", before, work)
    if kept == "half of the files":  # and here in the middle of the files
        write(repository, {"README": "better\n", "new/file": "x\n"})
        (repository / "long").unlink()
    assert merged(repository, work).commit == work
    assert git(repository, "status", "--porcelain") == ""


def test_unrelated_histories_are_rejected(repository: Path) -> None:
    git(repository, "checkout", "-q", "--orphan", "other")
    work = commit(repository, {"x": "y"})
    git(repository, "checkout", "-q", "main")
    with pytest.raises(Refused, check=because("no_merge_base")):
        merged(repository, work)


# -- grafts ----------------------------------------------------------------------------------------


def graft(repository: Path, commit: str, **more: object) -> merges.GraftResult:
    folder = str(repository.parent / "winner")
    return merges.graft_changes(str(repository), folder, commit, message="grafted", **more)


def test_graft_applies_files_of_another_attempt(repository: Path) -> None:
    winner = attempt(repository, "winner", {"README": "winner\n"})
    folder = repository.parent / "loser"
    attempt(repository, "loser", {"README": "loser\n", "extra/file": "x\n", "src/a.py": "a = 2\n"})
    (folder / "long").rename(folder / "moved")
    loser = commit(folder, {})
    done = graft(repository, loser, files=["extra/file", "moved"])
    assert done.before == winner
    assert sorted(done.files) == ["extra/file", "moved"]
    top = repository.parent / "winner"
    assert git(top, "rev-parse", "corral/winner", "corral/winner^") == f"{done.commit}\n{winner}"
    assert git(top, "status", "--porcelain") == ""
    assert (top / "README").read_text() == "winner\n"
    assert not (top / "long").exists()
    again = graft(repository, loser, files=["extra/file"])
    assert (again.commit, again.files) == (done.commit, [])


def test_graft_merges_hunks_with_changes_of_the_winner(repository: Path) -> None:
    attempt(repository, "winner", {"long": LONG.replace("line 30\n", "thirty\n")})
    text = LONG.replace("line 3\n", "three\n").replace("line 20\n", "").replace("line 50\n", "50\n")
    loser = attempt(repository, "loser", {"long": text})
    shown = git_history.diff_file(str(repository), "main", loser, "long")
    assert [hunk.number for hunk in shown.hunks] == [1, 2, 3]
    done = graft(repository, loser, hunks={"long": [3, 1]})
    assert done.files == ["long"]
    assert (repository.parent / "winner/long").read_text() == LONG.replace(
        "line 30\n", "thirty\n"
    ).replace("line 3\n", "three\n").replace("line 50\n", "50\n")


def test_conflicting_graft_changes_nothing(repository: Path) -> None:
    winner = attempt(repository, "winner", {"README": "winner\n"})
    loser = attempt(repository, "loser", {"README": "loser\n", "extra": "x\n"})
    done = graft(repository, loser, files=["extra", "README"])
    assert [(clash.name, clash.why) for clash in done.conflicts] == [("README", "contents")]
    assert (done.commit, done.files) == (None, [])
    top = repository.parent / "winner"
    assert git(top, "rev-parse", "HEAD") == winner
    assert git(top, "status", "--porcelain") == ""


def test_invalid_graft_is_rejected(repository: Path) -> None:
    attempt(repository, "winner", {"README": "winner\n"})
    loser = attempt(repository, "loser", {"long": LONG + "more\n", "data": b"\0\1"})
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
    work = attempt(repository, "one", {"new": "x\n"})
    commit(repository, {"mine": "x\n"})
    real = adapter.run

    def old(top: str, *words: str, **more: object) -> adapter.GitResult:
        if words[0] == "merge-tree":
            return adapter.GitResult(
                129, b"", b"usage: git merge-tree <base-tree> <branch1> <branch2>"
            )
        return real(top, *words, **more)

    monkeypatch.setattr(adapter, "run", old)
    with pytest.raises(Refused, check=because("git_too_old")):
        merged(repository, work)
