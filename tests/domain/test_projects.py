"""Projects: registration, lookup, lists, archiving and deletion."""

import os
from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.projects.model import Project, ProjectState
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import Ambiguous, IllegalMove, Invalid, NotFound
from corral.kernel.pagination import encode_cursor
from tests.support.grouped_cases import each_case
from tests.support.store import (
    list_events,
    raises_without_change,
    rows,
    shared_length,
    unchanged,
    walk,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    return tmp_path / "shop"


def register_projects(store: Corral, tmp_path: Path, count: int) -> list[Project]:
    """Register projects in directories of their own, in order."""
    projects = []
    for n in range(count):
        (tmp_path / f"p{n}").mkdir()
        projects.append(store.projects.register(tmp_path / f"p{n}"))
    return projects


# -- register --------------------------------------------------------------------------------


def test_register_creates_a_project(store: Corral, clock: ManualClock, folder: Path) -> None:
    project = store.projects.register(str(folder), command="claude", prompt="hello")
    assert project.id.startswith("prj_")
    assert (project.dir, project.name) == (os.path.realpath(folder), "shop")
    assert (project.command, project.prompt, project.state) == (
        "claude",
        "hello",
        ProjectState.ACTIVE,
    )
    assert (project.created_at, project.updated_at, project.last_run_at) == (
        clock.now(),
        clock.now(),
        None,
    )
    assert store.projects.get(project.id) == store.projects.by_dir(folder) == project
    assert rows(store, "SELECT kind, verb, subject, project_id FROM events") == [
        ("project", "register", project.id, project.id)
    ]


def test_register_again_is_idempotent_and_writes_nothing(store: Corral, folder: Path) -> None:
    project = store.projects.register(folder, command="claude", prompt="hello")
    with unchanged(store):
        assert store.projects.register(folder, command="claude", prompt="hello") == project
        assert store.projects.register(folder) == project


def test_omitted_arguments_keep_their_values(
    store: Corral, clock: ManualClock, folder: Path
) -> None:
    project = store.projects.register(folder, command="claude", prompt="hello")
    clock.advance(5)
    changed = store.projects.register(folder, command="codex")
    assert (changed.id, changed.command, changed.prompt) == (project.id, "codex", "hello")
    assert (changed.created_at, changed.updated_at) == (project.created_at, clock.now())
    assert list_events(store) == ["project.register", "project.change"]


def test_none_clears_a_value(store: Corral, folder: Path) -> None:
    store.projects.register(folder, command="claude", prompt="hello")
    assert store.projects.register(folder, prompt=None).prompt is None
    assert store.projects.register(folder, command=None).command is None


def test_symlink_and_trailing_slash_resolve_to_same_project(
    store: Corral, folder: Path, tmp_path: Path
) -> None:
    project = store.projects.register(folder)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "chain").symlink_to(tmp_path / "link")
    for path in (
        f"{folder}/",
        f"{folder}//",
        f"{folder}/.",
        f"{folder}/../shop",
        tmp_path / "link",
        f"{tmp_path}/chain/",
    ):
        assert store.projects.register(path).id == project.id
        assert store.projects.by_dir(path).id == project.id


def test_relative_and_home_directories_are_resolved(
    store: Corral, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = store.projects.register(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.projects.by_dir("shop").id == project.id
    assert store.projects.by_dir("~/shop").id == project.id


def test_directory_inside_a_project_is_another_project(store: Corral, folder: Path) -> None:
    (folder / "inside").mkdir()
    assert store.projects.register(folder / "inside").id != store.projects.register(folder).id


def test_directories_of_the_same_name_are_two_projects(store: Corral, tmp_path: Path) -> None:
    for parent in "ab":
        (tmp_path / parent / "same").mkdir(parents=True)
    first_project = store.projects.register(tmp_path / "a" / "same")
    second_project = store.projects.register(tmp_path / "b" / "same")
    assert first_project.id != second_project.id
    assert first_project.name == second_project.name == "same"


def test_root_directory_has_a_name(store: Corral) -> None:
    assert (store.projects.register("/").dir, store.projects.register("/").name) == ("/", "/")


@each_case("name", ["ünïcode ☃", "with space", "it's", "a'b\"c", "-dash", "x" * 255])
def test_directory_may_have_any_name(store: Corral, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    project = store.projects.register(tmp_path / name)
    assert store.projects.by_dir(tmp_path / name) == project


@each_case("dir", ["", "a\0b", "\udcff", "x" * 5_000], ids=ascii)
def test_invalid_directory_text_is_rejected(store: Corral, dir: str) -> None:
    with raises_without_change(store, Invalid):
        store.projects.register(dir)
    with raises_without_change(store, Invalid):
        store.projects.by_dir(dir)


def test_missing_directory_or_file_is_rejected(store: Corral, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "missing", tmp_path / "file", tmp_path / "loop"):
        with raises_without_change(store, Invalid):
            store.projects.register(path)


@each_case("text", ["a\0b", "\ud800", "x" * (64 * 1024 + 1)], ids=range(3))
def test_unstorable_command_or_prompt_is_rejected(store: Corral, folder: Path, text: str) -> None:
    with raises_without_change(store, Invalid):
        store.projects.register(folder, command=text)
    with raises_without_change(store, Invalid):
        store.projects.register(folder, prompt=text)
    store.projects.register(folder)
    with raises_without_change(store, Invalid):
        store.projects.register(folder, prompt=text)


# -- lookup ----------------------------------------------------------------------------------


def test_unregistered_directory_is_not_found(store: Corral, folder: Path) -> None:
    with raises_without_change(store, NotFound) as caught:
        store.projects.by_dir(folder)
    assert caught.value.details["reason"] == "not_registered"


def test_project_of_a_deleted_directory_is_still_found(store: Corral, folder: Path) -> None:
    project = store.projects.register(folder)
    folder.rmdir()
    assert store.projects.by_dir(folder) == project


def test_id_can_be_shortened_to_a_unique_prefix(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    first_project = register_projects(store, tmp_path, 1)[0]
    clock.advance(HOUR)
    (tmp_path / "other").mkdir()
    second_project = store.projects.register(tmp_path / "other")
    shared = shared_length(first_project.id, second_project.id)
    assert store.projects.get(second_project.id[: shared + 1]) == second_project
    assert store.projects.get(f" {second_project.id[4 : shared + 1].upper()} ") == second_project
    with raises_without_change(store, Ambiguous) as caught:
        store.projects.get(first_project.id[:shared])
    assert caught.value.details["candidates"] == [first_project.id, second_project.id]


def test_list_of_candidates_is_truncated(store: Corral, tmp_path: Path) -> None:
    projects = register_projects(store, tmp_path, 8)
    with raises_without_change(store, Ambiguous) as caught:
        store.projects.get(projects[0].id[:20])
    assert caught.value.details["candidates"] == [project.id for project in projects[:6]]
    assert "…" in caught.value.message


@each_case("verb", ["get", "touch", "archive", "delete"])
def test_unknown_id_is_not_found_and_malformed_id_rejected(
    store: Corral, folder: Path, verb: str
) -> None:
    store.projects.register(folder)
    call = getattr(store.projects, verb)
    with raises_without_change(store, NotFound):
        call("prj_zzz")
    for id in ("", "prj_", "sch_0", "prj_u", "prj_" + "0" * 27, "a\0"):
        with raises_without_change(store, Invalid):
            call(id)


# -- list ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_projects_are_listed_last_run_first(
    store: Corral, clock: ManualClock, tmp_path: Path, limit: int
) -> None:
    projects = register_projects(store, tmp_path, 5)
    for n in (3, 1):
        clock.advance(1)
        store.projects.touch(projects[n].id)
    names = [project.name for project in walk(store.projects.list, limit=limit)]
    assert names == ["p1", "p3", "p4", "p2", "p0"]


def test_projects_with_the_same_run_time_are_all_listed(store: Corral, tmp_path: Path) -> None:
    projects = register_projects(store, tmp_path, 5)
    for project in projects:
        store.projects.touch(project.id)
    result = walk(store.projects.list, limit=2)
    assert [project.id for project in result] == [project.id for project in projects[::-1]]


def test_project_added_between_pages_does_not_disturb_the_list(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    projects = register_projects(store, tmp_path, 5)
    result = walk(store.projects.list, between=lambda: store.projects.touch(projects[4].id))
    assert [project.id for project in result] == [project.id for project in projects[::-1]]


def test_archived_projects_are_listed_only_on_request(store: Corral, tmp_path: Path) -> None:
    projects = register_projects(store, tmp_path, 4)
    store.projects.archive(projects[1].id)
    assert [project.name for project in walk(store.projects.list)] == ["p3", "p2", "p0"]
    result = walk(store.projects.list, archived=True)
    assert [project.name for project in result] == ["p3", "p2", "p1", "p0"]


@each_case(
    "cursor", ["", "x", encode_cursor("a", "b"), encode_cursor(1), encode_cursor(2**70, "~")]
)
def test_invalid_cursor_is_rejected(store: Corral, cursor: str) -> None:
    with raises_without_change(store, Invalid):
        store.projects.list(after=cursor)


# -- changes ---------------------------------------------------------------------------------


def test_touch_records_a_run(store: Corral, clock: ManualClock, folder: Path) -> None:
    project = store.projects.register(folder)
    clock.advance(7)
    touched = store.projects.touch(project.id)
    assert (touched.last_run_at, touched.updated_at) == (clock.now(), project.updated_at)
    assert list_events(store) == ["project.register", "project.touch"]


def test_late_touch_does_not_move_last_run_back(
    store: Corral, clock: ManualClock, folder: Path
) -> None:
    project = store.projects.register(folder)
    last = store.projects.touch(project.id).last_run_at
    clock.advance(-HOUR)
    assert store.projects.touch(project.id).last_run_at == last


def test_rename_changes_only_the_name(store: Corral, clock: ManualClock, folder: Path) -> None:
    project = store.projects.register(folder, command="c")
    clock.advance(1)
    renamed = store.projects.rename(project.id, "The Shop")
    assert (renamed.id, renamed.dir, renamed.command) == (project.id, project.dir, "c")
    assert (renamed.name, renamed.updated_at) == ("The Shop", clock.now())
    assert store.projects.register(folder).name == "The Shop"
    assert list_events(store) == ["project.register", "project.change"]


@each_case("name", ["", "a\0b", "\ud800", "x" * 201], ids=ascii)
def test_unstorable_name_is_rejected(store: Corral, folder: Path, name: str) -> None:
    project = store.projects.register(folder)
    with raises_without_change(store, Invalid):
        store.projects.rename(project.id, name)


def test_registering_an_archived_project_restores_it(store: Corral, folder: Path) -> None:
    project = store.projects.register(folder, prompt="hello")
    assert store.projects.archive(project.id).state is ProjectState.ARCHIVED
    assert store.projects.by_dir(folder).state is ProjectState.ARCHIVED
    with raises_without_change(store, IllegalMove):
        store.projects.archive(project.id)
    with raises_without_change(store, IllegalMove):
        store.projects.rename(project.id, "other")
    restored = store.projects.register(folder)
    assert (restored.id, restored.state, restored.prompt) == (
        project.id,
        ProjectState.ACTIVE,
        "hello",
    )
    assert list_events(store) == ["project.register", "project.archive", "project.restore"]


# -- delete ----------------------------------------------------------------------------------


def test_delete_keeps_the_directory(store: Corral, folder: Path) -> None:
    project = store.projects.register(folder)
    (folder / "work.txt").write_text("work")
    assert store.projects.delete(project.id) == project
    assert (folder / "work.txt").read_text() == "work"
    with raises_without_change(store, NotFound):
        store.projects.by_dir(folder)
    for operation in (store.projects.get, store.projects.delete):
        with raises_without_change(store, NotFound):
            operation(project.id)
    assert list_events(store, project.id) == ["project.register", "project.delete"]


def test_register_after_delete_creates_a_new_project(store: Corral, folder: Path) -> None:
    project = store.projects.register(folder, prompt="hello")
    store.projects.delete(project.id)
    new_project = store.projects.register(folder)
    assert new_project.id != project.id
    assert new_project.prompt is None


def test_delete_removes_settings_of_the_project(store: Corral, folder: Path) -> None:
    project = store.projects.register(folder)
    store.settings.set("mail.max_attempts", 2, scope=f"project:{project.id}")
    store.settings.set("mail.max_attempts", 3, scope="agent:ada")
    store.projects.delete(project.id)
    assert rows(store, "SELECT scope FROM settings") == [("agent:ada",)]


def test_project_is_found_by_unique_name(store: Corral, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "other" / "app").mkdir(parents=True)
    first_project = store.projects.register(tmp_path / "app")
    assert store.projects.get("app") == first_project
    assert store.projects.get(first_project.id[:20]) == first_project
    second_project = store.projects.register(tmp_path / "other" / "app")
    with pytest.raises(Ambiguous) as caught:
        store.projects.get("app")
    assert sorted(caught.value.details["candidates"]) == [first_project.id, second_project.id]
    store.projects.rename(second_project.id, "site")
    assert store.projects.get("site").id == second_project.id
    with pytest.raises(NotFound, check=lambda error: error.details["kind"] == "project"):
        store.projects.get("no such project")
