"""Exports are atomic: complete, or absent."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.adapters import exports
from corral.adapters.exports import CommitTree
from corral.kernel.errors import Invalid, Refused
from tests.support.errors import because
from tests.support.git_repositories import commit, git, write

pytestmark = pytest.mark.usefixtures("plain_git")
ODD = os.fsdecode(b"odd %\n\xff")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "repository"
    write(top, {"README": "hello\n", "bin/tool": "#!/bin/sh\n", ODD: "odd", "deep/er/x": b"\0\1"})
    (top / "bin/tool").chmod(0o755)
    (top / "deep/link").symlink_to("../README")
    (top / "to-folder").symlink_to("deep/er")
    write(top, {".gitattributes": "README export-ignore\n*.txt text eol=crlf\n", "a.txt": "a\n"})
    git(top, "init", "-q", "-b", "main")
    commit(top, {}, "first")
    return top


def export(repository: Path, target: Path, **options: object) -> exports.ExportManifest:
    trees = {"round-1-winner": CommitTree(str(repository), "main")}
    files = {"logs/round-1/attempt-1.log": b"one\n", "logs/round-1/attempt-2.log": [b"t", b"wo\n"]}
    return exports.write_export(target, trees=trees, files=files, **options)


def test_export_writes_exact_files_and_a_manifest(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "race"
    before = os.umask(0o077)
    try:
        export_result = export(repository, target)
    finally:
        os.umask(before)
    winner = target / "round-1-winner"
    for name in ("README", "bin/tool", "a.txt", ODD, "deep/er/x"):
        assert (winner / name).read_bytes() == (repository / name).read_bytes()
    assert os.access(winner / "bin/tool", os.X_OK)
    assert not os.access(winner / "README", os.X_OK)
    assert os.readlink(winner / "deep/link") == "../README"
    assert (target / "logs/round-1/attempt-2.log").read_bytes() == b"two\n"
    manifest = json.loads((target / "manifest.json").read_text())
    entries = {entry["path"]: entry for entry in manifest["entries"]}
    assert entries["round-1-winner/README"] == {
        "path": "round-1-winner/README",
        "size": 6,
        "sha256": sha256(b"hello\n").hexdigest(),
        "mode": "100644",
    }
    assert entries["round-1-winner/bin/tool"]["mode"] == "100755"
    assert manifest["commits"] == {"round-1-winner": git(repository, "rev-parse", "main")}
    assert len(entries) == len(export_result.entries) == 10
    assert exports.verify_export(target) == []
    assert [path.name for path in target.parent.iterdir()] == ["race"]


@given(st.binary(max_size=30))
def test_every_path_in_a_manifest_can_be_decoded(path: bytes) -> None:
    assert unquote_to_bytes(exports._encode_path(path)) == path


def test_verify_lists_changed_files(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "race"
    export(repository, target)
    winner = target / "round-1-winner"
    (winner / "README").write_text("other")
    (winner / "deep/er/x").unlink()
    (winner / "bin/tool").chmod(0o644)
    (winner / "to-folder").unlink()
    (winner / "to-folder").symlink_to("/etc")
    (winner / "new").write_text("x")
    assert sorted(exports.verify_export(target)) == [
        "round-1-winner/README is changed",
        "round-1-winner/bin/tool is of a different mode",
        "round-1-winner/deep/er/x is missing",
        "round-1-winner/new is not in the manifest",
        "round-1-winner/to-folder is a different symlink",
    ]


def test_existing_export_is_kept_replaced_or_rejected(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "race"
    export(repository, target)
    inode = target.stat().st_ino
    export(repository, target)
    assert target.stat().st_ino == inode, "an identical export is kept"
    commit(repository, {"README": "second\n"})
    with pytest.raises(Refused, check=because("export_exists")):
        export(repository, target)
    export(repository, target, existing="replace")
    assert (target / "round-1-winner/README").read_text() == "second\n"
    (target / "mine").write_text("user data")
    commit(repository, {"README": "third\n"})
    with pytest.raises(Refused, check=because("not_an_export")):
        export(repository, target, existing="replace")
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(Refused, check=because("not_an_export")):
        export(repository, other)  # --replace would not help
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "race", "repository"]


@pytest.mark.parametrize(
    "link", ["/etc/passwd", "../x", "../../x", "deep/../../x", "to-folder/../../../../x", ".."]
)
def test_symlink_out_of_the_tree_is_rejected(repository: Path, tmp_path: Path, link: str) -> None:
    (repository / "bad").symlink_to(link)
    commit(repository, {})
    with pytest.raises(Refused, check=because("link_outside_tree", link="bad")):
        export(repository, tmp_path / "race")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repository"]


@pytest.mark.parametrize("name", [b"..", b".git", b".GIT", b"."])
def test_path_traversal_is_rejected(repository: Path, tmp_path: Path, name: bytes) -> None:
    blob = git(repository, "hash-object", "-w", "--stdin", given=b"evil")
    command = ("hash-object", "-t", "tree", "-w", "--stdin", "--literally")
    tree = git(repository, *command, given=b"100644 evil\0" + bytes.fromhex(blob))
    above = git(repository, *command, given=b"40000 " + name + b"\0" + bytes.fromhex(tree))
    commit = git(repository, "commit-tree", above, "-m", "evil")
    trees = {"winner": CommitTree(str(repository), commit)}
    with pytest.raises(Refused, check=because("outside_tree")):
        exports.write_export(tmp_path / "race", trees=trees, files={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repository"]


def test_invalid_names_and_sources_are_rejected(repository: Path, tmp_path: Path) -> None:
    for name in ("../x", "/x", "a//b", "", "manifest.json", "a/./b", "x\0"):
        with pytest.raises(Invalid):
            exports.write_export(tmp_path / "race", trees={}, files={name: b""})
    with pytest.raises(Invalid):
        exports.write_export(tmp_path / "race", trees={}, files={"a": b"", "a/b": b""})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("repository/README")
    for source in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), tmp_path / "nowhere"):
        with pytest.raises(Refused):
            exports.write_export(tmp_path / "race", trees={}, files={"a": source})
    with pytest.raises(Refused, check=because("unknown_commit")):
        exports.write_export(
            tmp_path / "race", trees={"a": CommitTree(str(repository), "nope")}, files={}
        )
    assert not (tmp_path / "race").exists()
    assert exports.find_leftovers(tmp_path) == []


def test_submodule_is_listed_and_not_exported(repository: Path, tmp_path: Path) -> None:
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    git(repository, "commit", "-qm", "sub")
    export_result = export(repository, tmp_path / "race")
    assert [entry.mode for entry in export_result.entries if entry.path.endswith("/sub")] == [
        "160000"
    ]
    assert exports.verify_export(tmp_path / "race") == []


def test_full_disk_is_reported_and_leaves_no_files(repository: Path, tmp_path: Path) -> None:
    commit(repository, {"big": b"x" * 300_000})
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from corral.adapters import exports; from corral.kernel.errors import Refused\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "trees = {'w': exports.CommitTree(sys.argv[1], 'main')}\n"
        "try: exports.write_export(Path(sys.argv[2]), trees=trees, files={})\n"
        "except Refused as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(repository), str(tmp_path / "race")],
        capture_output=True,
        text=True,
    )
    assert result.stdout.strip(), result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repository"]


CRASH = """
import os, sys
from pathlib import Path
from corral.adapters import exports
remaining = int(sys.argv[3])
def counted(function):
    def call(*args, **kwargs):
        global remaining
        remaining -= 1
        if remaining == 0:
            os._exit(9)
        return function(*args, **kwargs)
    return call
for name in ("rename", "mkdir", "symlink", "fsync", "makedirs"):
    setattr(os, name, counted(getattr(os, name)))
exports.delete_tree = counted(exports.delete_tree)
trees = {"w": exports.CommitTree(sys.argv[1], "main")}
exports.write_export(Path(sys.argv[2]), trees=trees, files={"logs/a": b"x"}, existing="replace")
"""


def test_crash_leaves_the_old_or_the_new_export(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "race"
    target.parent.mkdir()
    exports.write_export(target, trees={}, files={"old": b"old"})
    outcomes = []
    for point in range(1, 200, 3):
        command = [sys.executable, "-c", CRASH, str(repository), str(target), str(point)]
        code = subprocess.run(command, check=False).returncode
        exports.delete_leftovers(target.parent)
        assert [path.name for path in target.parent.iterdir()] == ["race"]
        assert exports.verify_export(target) == []
        outcomes.append((target / "old").exists())
        if code == 0:
            break
    assert outcomes[0] is True
    assert outcomes[-1] is False
    assert code == 0


def test_export_in_progress_is_not_a_leftover(tmp_path: Path) -> None:
    def slowly() -> object:
        assert exports.find_leftovers(tmp_path) == []
        assert len([*tmp_path.iterdir()]) == 1
        yield b"x"

    exports.write_export(tmp_path / "race", trees={}, files={"a": slowly()})
    cut = tmp_path / f".race.{'0' * 32}.part"
    write(cut, {"half": "x"})
    assert exports.find_leftovers(tmp_path) == [cut]
    assert exports.delete_leftovers(tmp_path) == [cut]
    old = tmp_path / f".gone.{'0' * 32}.old"
    write(old, {"whole": "x"})
    exports.delete_leftovers(tmp_path)
    assert (tmp_path / "gone/whole").exists()
