"""Commits, comparisons and diffs of real repositories."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.adapters.git import diff_chunks, git_history
from corral.adapters.git import git as adapter
from corral.adapters.worktrees import worktrees
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from tests.support.errors import because
from tests.support.git_repositories import commit, git, new_repository, write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_git")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repository", {"README": "hello\n", "src/a.py": "a = 1\n"})


@pytest.fixture
def folder(repository: Path) -> Path:
    folder = repository.parent / "one"
    worktrees.create(str(repository), str(folder), "corral/one")
    return folder


def commit_work(folder: Path) -> git_history.SavedWork:
    return git_history.commit_all(str(folder.parent / "repository"), str(folder), "saved")


# -- commits ---------------------------------------------------------------------------------------


def test_all_files_that_are_not_ignored_are_committed(repository: Path, folder: Path) -> None:
    before = git(folder, "rev-parse", "HEAD")
    write(folder, {"README": "changed\n", "new/file": "x", ".gitignore": "*.o\n", "x.o": "no"})
    (folder / "src/a.py").unlink()
    (folder / "link").symlink_to("README")
    write(folder, {"tool": "#!/bin/sh\n"})
    (folder / "tool").chmod(0o755)
    hook = repository / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    saved = commit_work(folder)
    assert saved.made
    assert git(folder, "rev-parse", "corral/one", "corral/one^") == f"{saved.commit}\n{before}"
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "ls-tree", "-r", "--format=%(objectmode) %(path)", saved.tree) == (
        "100644 .gitignore\n100644 README\n120000 link\n100644 new/file\n100755 tool"
    )
    assert git(folder, "log", "-1", "--format=%an %s") == "corral saved"
    second = commit_work(folder)
    assert (second.made, second.commit, second.tree) == (False, saved.commit, saved.tree)


def test_stale_git_lock_damaged_index_and_unfinished_merge_are_ignored(
    repository: Path, folder: Path
) -> None:
    git_dir = Path(git(folder, "rev-parse", "--git-dir"))
    write(folder, {"one": "1"})
    (git_dir / "index.lock").touch()
    assert commit_work(folder).made
    os.utime(git_dir / "index.lock", (1, 1))
    write(folder, {"two": "1"})
    assert commit_work(folder).made
    assert not (git_dir / "index.lock").exists()
    (git_dir / "index").write_bytes(b"damaged")
    write(folder, {"three": "1"})
    assert commit_work(folder).made
    (git_dir / "index").unlink()
    write(folder, {"four": "1"})
    assert commit_work(folder).made
    other = commit(repository, {"README": "theirs\n"})
    commit(folder, {"README": "ours\n"})
    with pytest.raises(AssertionError):
        git(folder, "merge", other)
    saved = commit_work(folder)
    assert "<<<<<<<" in git(folder, "show", f"{saved.commit}:README")
    assert git(folder, "rev-parse", f"{saved.commit}^2") == other
    assert git(folder, "status").count("nothing to commit") == 1


def test_assume_unchanged_files_are_committed_too(folder: Path) -> None:
    git(folder, "update-index", "--assume-unchanged", "README")
    write(folder, {"README": "hidden\n"})
    assert git(folder, "show", f"{commit_work(folder).commit}:README") == "hidden"


def test_concurrently_moved_branch_is_not_overwritten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {"mine": "x"})
    real = adapter.commit_tree

    def commit_concurrently(*args: Any, **kwargs: Any) -> str:
        git(folder, "commit", "-q", "--allow-empty", "-m", "meanwhile")
        return real(*args, **kwargs)

    monkeypatch.setattr(adapter, "commit_tree", commit_concurrently)
    with pytest.raises(Conflict, check=because("branch_moved")):
        commit_work(folder)
    assert git(folder, "log", "-1", "--format=%s") == "meanwhile"
    assert git(folder, "status", "--porcelain") == "?? mine"


def test_nested_repositories_are_reported_and_not_committed(folder: Path) -> None:
    new_repository(folder / "inner")
    (folder / "nothing").mkdir()
    git(folder / "nothing", "init", "-q")
    write(folder, {"mine": "x"})
    saved = commit_work(folder)
    assert saved.left == ["inner/", "nothing/"]
    assert git_history.list_changes(str(folder), f"{saved.commit}^", saved.commit)[0].name == "mine"
    assert worktrees.inspect(str(folder.parent / "repository"), str(folder)).dirty


def test_unborn_head_gets_a_first_commit(folder: Path) -> None:
    git(folder, "checkout", "-q", "--orphan", "fresh")
    saved = commit_work(folder)
    assert git(folder, "log", "--format=%H", "fresh") == saved.commit


NAMES = st.lists(
    st.binary(min_size=1, max_size=12).filter(
        lambda name: not set(name) & {0, ord("/")} and name.lower() not in (b".", b"..", b".git")
    ),
    min_size=1,
    max_size=4,
    unique=True,
)
EXAMPLES = int(os.environ.get("CORRAL_FUZZ", "8"))


@pytest.fixture
def any_name_repository(tmp_path: Path) -> Path:
    """One repository for all examples. Each example has its own worktree."""
    return new_repository(tmp_path / "any-name", {"README": "hello\n"})


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(names=NAMES, content=st.binary(max_size=40), nested=st.booleans())
def test_any_file_name_and_content_round_trips(
    any_name_repository: Path, names: list[bytes], content: bytes, nested: bool
) -> None:
    top = any_name_repository
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "one"
        worktrees.create(str(top), str(folder), f"corral/{Path(place).name}")
        target = os.fsencode(folder) + (b"/sub" if nested else b"")
        os.makedirs(target, exist_ok=True)
        names = [
            name for name in names if name not in (b"README", b".gitignore", b".gitattributes")
        ]
        for name in names:
            with open(os.path.join(target, name), "wb") as file:
                file.write(content)
        first = git(top, "rev-parse", "HEAD")
        saved = git_history.commit_all(str(top), str(folder), "all")
        changes = git_history.list_changes(str(top), first, saved.commit)
        prefix = b"sub/" if nested else b""
        assert {os.fsencode(change.name) for change in changes} == {prefix + n for n in names}
        for change in changes:
            diff = git_history.diff_file(str(top), first, saved.commit, change.name)
            assert diff.change == change
            added = [line for hunk in diff.hunks for line in hunk.lines]
            assert change.added is None or len(added) == change.added
        assert [*diff_chunks.read_chunks(str(top), first, saved.commit)][-1:] or not names
        fresh = Path(place) / "two"
        worktrees.create(str(top), str(fresh), f"again/{Path(place).name}", base=saved.commit)
        for name in names:
            with open(os.path.join(os.fsencode(fresh), prefix, name), "rb") as file:
                assert file.read() == content
        assert git_history.commit_all(str(top), str(fresh), "same").tree == saved.tree


def test_file_replaced_by_a_folder_and_the_reverse_are_committed(folder: Path) -> None:
    (folder / "README").unlink()
    write(folder, {"README/inside": "x"})
    shutil.rmtree(folder / "src")
    write(folder, {"src": "a file"})
    assert (
        git(folder, "ls-tree", "-r", "--name-only", commit_work(folder).tree)
        == "README/inside\nsrc"
    )


# -- queries ---------------------------------------------------------------------------------------


def test_heads_branches_trees_and_uncommitted_changes_are_read(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    assert git_history.find_branch(str(repository)) == "main"
    assert git_history.list_uncommitted(str(repository)) == []
    second = commit(repository, {"x": "y"})
    third = commit(repository, {"z": "y"})
    git(repository, "revert", "--no-edit", third)
    assert git_history.resolve_tree(str(repository), "HEAD") == git_history.resolve_tree(
        str(repository), second
    )
    assert git_history.is_ancestor(str(repository), first, second)
    assert not git_history.is_ancestor(str(repository), second, first)
    write(repository, {"x": "dirty", "new": "x"})
    assert git_history.list_uncommitted(str(repository / "src")) == ["x", "new"]
    git(repository, "checkout", "-q", "--detach")
    assert git_history.find_branch(str(repository)) is None
    with pytest.raises(Refused, check=because("unknown_commit", commit="nonsense")):
        git_history.resolve_tree(str(repository), "nonsense")


def test_pinned_commit_survives_deletion_of_its_branch(repository: Path, folder: Path) -> None:
    saved = commit(folder, {"work": "x"})
    git_history.keep_commit(str(repository), "races/rac_1/1", saved)
    state = worktrees.remove(str(repository), str(folder), delete_branch=True)
    assert state.unmerged == 0, "the pinned commit is not lost"
    git(repository, "reflog", "expire", "--expire=now", "--all")
    git(repository, "gc", "-q", "--prune=now")
    assert git_history.diff_stat(str(repository), "main", saved).files == 1
    assert git_history.list_kept(str(repository), "races/rac_1") == ["races/rac_1/1"]
    assert not git_history.release_commit(str(repository), "races/rac_1/1"), (
        "no other ref contains it"
    )
    git(repository, "branch", "another", saved)
    assert git_history.release_commit(str(repository), "races/rac_1/1")
    assert git_history.release_commit(str(repository), "races/rac_1/1"), "releasing again succeeds"
    assert git_history.list_kept(str(repository), "races/rac_1") == []
    with pytest.raises(Invalid):
        git_history.keep_commit(str(repository), "a..b", saved)


def test_changed_files_are_counted_and_listed(repository: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(30))
    first = commit(repository, {"long": text, "picture": b"\0\1\2", "gone": "x\n", "kind": "x\n"})
    (repository / "gone").unlink()
    (repository / "kind").unlink()
    (repository / "kind").symlink_to("README")
    (repository / "long").rename(repository / "moved")
    second = commit(
        repository,
        {"moved": text.replace("line 3\n", "LINE 3\n"), "picture": b"\0\2", "a\tb\n": "1\n2"},
    )
    changes = {
        change.name: change for change in git_history.list_changes(str(repository), first, second)
    }
    assert changes["moved"] == git_history.FileChange("moved", "renamed", "long", 1, 1)
    assert changes["picture"] == git_history.FileChange("picture", "changed", None, None, None)
    assert changes["gone"] == git_history.FileChange("gone", "removed", None, 0, 1)
    assert changes["a\tb\n"] == git_history.FileChange("a\tb\n", "added", None, 2, 0)
    assert changes["kind"].state == "kind"
    assert git_history.diff_stat(str(repository), first, second) == git_history.DiffStat(5, 4, 3, 1)
    assert git_history.list_changes(str(repository), second, second) == []
    diff = git_history.diff_file(str(repository), first, second, "moved")
    assert [(line.sign, line.text, line.old, line.new) for line in diff.hunks[0].lines][2:5] == [
        (" ", "line 2", 3, 3),
        ("-", "line 3", 4, None),
        ("+", "LINE 3", None, 4),
    ]
    assert (
        git_history.diff_file(str(repository), first, second, "a\tb\n").hunks[0].lines[-1].ended
        is False
    )
    assert git_history.diff_file(str(repository), first, second, "picture").hunks == []
    with pytest.raises(NotFound, check=because("unchanged")):
        git_history.diff_file(str(repository), first, second, "README")


def test_hunk_is_rendered_side_by_side() -> None:
    patch = b"@@ -1,4 +1,5 @@\n one\n-two\n-three\n+2\n+3\n+3.5\n four\n-five\n"
    (hunk,) = git_history.parse_hunks(patch)
    rows = [(old and old.text, new and new.text) for old, new in git_history.side_by_side(hunk)]
    assert rows == [
        ("one", "one"),
        ("two", "2"),
        ("three", "3"),
        (None, "3.5"),
        ("four", "four"),
        ("five", None),
    ]


def test_long_diff_is_chunked_and_truncation_is_marked(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    files: dict[str, str | bytes] = {
        f"file{number}": f"content of {number}\n" * 200 for number in range(10)
    }
    second = commit(repository, {**files, "wide": "x" * 30_000 + "\n"})
    pieces = [*diff_chunks.read_chunks(str(repository), first, second, chunk_bytes=10_000)]
    assert all(len(piece.text) <= 10_000 for piece in pieces)
    assert sorted({name for piece in pieces for name in piece.files}) == sorted([*files, "wide"])
    assert [piece.truncated for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "[cut]" in pieces[-1].text
    assert sum(piece.text.count("\n+content") for piece in pieces) == 2_000
    for piece in pieces:
        assert piece.text.startswith("diff --git ")
    cut = [
        *diff_chunks.read_chunks(
            str(repository), first, second, chunk_bytes=10_000, max_bytes=15_000
        )
    ]
    assert [piece.truncated for piece in cut] == [False, True]
    assert [*diff_chunks.read_chunks(str(repository), first, first)] == []
    short = git_history.diff_file(str(repository), first, second, "file1", max_bytes=500)
    assert short.truncated
    assert len(short.hunks[0].lines) < 200


# -- hostile git configuration --------------------------------------------------------------------


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    return tmp_path / "trap"


def set_traps(config: str, trap: Path) -> str:
    """Add git settings that would run a program."""
    bite = f"touch {trap}; cat"
    return config + "".join(
        f'[{kind} "bite"]\n\t{name} = "{bite}"\n'
        for kind, name in (("filter", "clean"), ("filter", "smudge"), ("diff", "textconv"))
    )


def test_progress_of_an_attempt_is_measured_without_running_its_programs(
    repository: Path, tmp_path: Path, trap: Path
) -> None:
    folder = tmp_path / "worktree"
    worktrees.create(str(repository), str(folder), "corral/one")
    forged = new_repository(tmp_path / "forged", {"README": "x"})
    with open(forged / ".git/config", "a") as file:
        file.write(set_traps("", trap))
    (folder / ".git").write_text(f"gitdir: {forged}/.git\n")
    write(folder, {".gitattributes": "* filter=bite diff=bite\n", "new": "1\n2\n"})
    os.mkfifo(tmp_path / "pipe")
    (folder / "link").symlink_to(tmp_path / "pipe")  # reading it would block
    diff_stat = git_history.diff_stat_of_worktree(str(repository), str(folder), "main")
    assert (diff_stat.files, diff_stat.added) == (3, 3)
    assert not trap.exists()


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_git_config_of_a_worktree_runs_no_program(
    repository: Path, tmp_path: Path, trap: Path, kind: str
) -> None:
    git(repository, "config", "extensions.worktreeConfig", "true")
    folder = tmp_path / "worktree"
    worktrees.create(str(repository), str(folder), "corral/one")
    file = repository / ".git/worktrees/worktree/config.worktree"
    file.unlink(missing_ok=True)
    text = set_traps("[core]\n\tsparseCheckout = false\n", trap)
    if kind == "folder":
        file.mkdir()
    elif kind == "link":
        (tmp_path / "elsewhere").write_text(text)
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.write_text(text)
    write(folder, {".gitattributes": "* filter=bite diff=bite\n", "README": "changed\n"})
    git_history.diff_stat_of_worktree(str(repository), str(folder), "main")
    assert worktrees.inspect(str(repository), str(folder)).dirty
    saved = git_history.commit_all(str(repository), str(folder), "leftovers")
    assert git(repository, "show", f"{saved.commit}:README") == "changed"
    assert not trap.exists()
    if kind == "file":
        assert "sparseCheckout" in file.read_text(), "other settings are kept"
