"""Commits of locked or named files through the library."""

from pathlib import Path

import pytest

from corral.api import Corral
from tests.support.git_repositories import IDENTITY, git


@pytest.mark.parametrize("folder", [".", "../link/sub"])
def test_named_file_is_relative_to_the_real_folder(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    for variable, value in IDENTITY.items():
        monkeypatch.setenv(variable, value)
    repository = tmp_path / "repository"
    (repository / "sub").mkdir(parents=True)
    git(repository, "init", "-q")
    (tmp_path / "link").symlink_to(repository)
    for file in (repository / "a.py", repository / "sub" / "a.py"):
        file.write_text("changed")
    store.projects.register(repository)
    store.agents.create("ada")
    monkeypatch.chdir(repository / "sub" if folder == "." else repository)
    result = store.locks.commit(folder, "first", agent="ada", files=["a.py"])
    assert (result.files, result.left) == (["sub/a.py"], ["a.py"])
