"""Paths that cannot hold a store, and permissions of the files that Corral creates."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.api import events, mail, settings, store  # noqa: F401 (before the rights are gone)
from corral.kernel.errors import StoreUnavailable
from tests.support.errors import because
from tests.support.processes import NOBODY, Child, as_nobody


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of an unprivileged user, in a place that the user can reach."""
    path = Path(tempfile.mkdtemp(prefix="corral-test-"))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    path.chmod(0o700)
    shutil.rmtree(path)


def open_and_fail(path: Path, *, create: bool = True) -> StoreUnavailable:
    """Return the error when an unprivileged user opens the store."""

    def open_store() -> tuple[str, str]:
        try:
            with corral.open(path, create=create) as opened:
                opened.mail.put("agent:ada", "hello")
        except StoreUnavailable as error:
            return error.message, error.reason
        return "opened", "none"

    with Child(as_nobody(open_store)) as child:
        message, reason = child.result()
    return StoreUnavailable(message, reason=reason)


def make_store(path: Path) -> None:
    def create() -> None:
        with corral.open(path) as opened:
            opened.mail.put("agent:ada", "kept")

    with Child(as_nobody(create)) as child:
        child.result()


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_new_store_in_a_read_only_folder_is_rejected(folder: Path) -> None:
    folder.chmod(0o500)
    error = open_and_fail(folder / "corral.db")
    assert error.reason == "unwritable"
    assert str(folder) in error.message
    assert "permissions" in error.message
    assert read_files(folder) == {}


def test_store_in_a_read_only_folder_is_rejected_and_unchanged(
    folder: Path,
) -> None:
    make_store(folder / "corral.db")
    before = read_files(folder)
    folder.chmod(0o500)
    assert open_and_fail(folder / "corral.db").reason == "unwritable"
    assert read_files(folder) == before


def test_store_with_a_read_only_file_is_rejected_and_unchanged(folder: Path) -> None:
    make_store(folder / "corral.db")
    before = read_files(folder)
    (folder / "corral.db").chmod(0o400)
    assert open_and_fail(folder / "corral.db").reason == "unwritable"
    assert read_files(folder) == before


def test_parent_folder_that_cannot_be_created_is_rejected(folder: Path) -> None:
    folder.chmod(0o500)
    error = open_and_fail(folder / "new" / "corral.db")
    assert error.reason == "unwritable"
    assert list(folder.iterdir()) == []


def test_lock_file_of_another_user_is_rejected(folder: Path) -> None:
    make_store(folder / "corral.db")
    (folder / "corral.db-writers").chmod(0o000)
    before = (folder / "corral.db").read_bytes()
    assert open_and_fail(folder / "corral.db").reason == "unwritable"
    assert (folder / "corral.db").read_bytes() == before


def test_folder_is_rejected_as_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, check=because("unwritable")) as caught:
        corral.open(tmp_path)
    assert caught.value.reason == "unwritable"
    assert list(tmp_path.iterdir()) == []


def test_path_through_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something")
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(tmp_path / "file" / "corral.db")
    assert caught.value.reason == "unwritable"
    assert (tmp_path / "file").read_text() == "something"


def test_store_is_not_created_when_it_must_exist(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No store") as caught:
        corral.open(tmp_path / "new" / "corral.db", create=False)
    assert caught.value.reason == "missing"
    assert list(tmp_path.iterdir()) == []


def test_created_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)  # a permissive umask
    try:
        with corral.open(tmp_path / "a" / "b" / "corral.db") as opened:
            opened.mail.put("agent:ada", "hello")
            list(opened.events.follow(timeout_ms=1))
            opened.db.backup(tmp_path / "a" / "copy.db")
            opened.db.restore(tmp_path / "a" / "copy.db")
            modes = {
                str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o777)
                for path in tmp_path.rglob("*")
            }
    finally:
        os.umask(before)
    files = {
        f"a/b/corral.db{end}"
        for end in ("", "-wal", "-shm", "-writers", "-writers-queue", "-move", ".before-restore")
    }
    assert modes == {"a": "0o700", "a/b": "0o700", "a/copy.db": "0o600"} | dict.fromkeys(
        files, "0o600"
    )


def test_existing_folder_keeps_its_permissions(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    corral.open(shared / "corral.db").close()
    assert oct(shared.stat().st_mode & 0o777) == "0o755"
