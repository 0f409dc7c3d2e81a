"""Runs that a sandbox keeps in their worktree: nothing that they leave there lets the next one out,
nor is run by whoever keeps it."""

from pathlib import Path

import pytest

from corral.adapters import sandbox, worktrees
from corral.adapters.sandbox import Kind
from corral.rooms.runs.model import Run, RunState
from tests.support.keeping import Home
from tests.support.repositories import git, new_repository


@pytest.fixture(params=[Kind.BUBBLEWRAP, Kind.LANDLOCK])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    if (why := sandbox.probe().why_not.get(kind)) is not None:
        pytest.skip(f"{kind} does not work here: {why}")
    return kind


@pytest.fixture
def tree(home: Home) -> Path:
    """A worktree of the project's repository."""
    repository = new_repository(home.folder / "repository")
    where = home.folder / "tree"
    worktrees.make(str(repository), str(where), "corral/race/one")
    return where


def sandboxed(
    home: Home, kind: Kind, tree: Path, script: str, *, project: Path | None = None
) -> Run:
    """A run of a shell script, kept in the worktree until it has ended."""
    with home.store() as store:
        asked = store.runs.ask(
            command=["/bin/sh", "-ec", script],
            project=store.projects.register(project or home.folder / "repository").id,
            dir=str(tree),
            sandbox=kind,
        )
        store.runs.start_queued()
    return home.ended(asked.id)


def test_it_may_commit_in_its_worktree_and_change_nothing_else(
    home: Home, kind: Kind, tree: Path
) -> None:
    named = "-c user.name=ada -c user.email=ada@example.org"
    script = f"echo x > made && git add made && git {named} commit -qm made"
    assert sandboxed(home, kind, tree, script).state is RunState.COMPLETED
    assert git(home.folder / "repository", "log", "-1", "--format=%s", "corral/race/one") == "made"
    # It may be let write there: into a place of its own that only looks like it.
    sandboxed(home, kind, tree, f"echo x > {home.folder}/repository/README")
    assert (home.folder / "repository" / "README").read_text() == "hello\n"


def test_what_it_writes_for_git_lets_the_next_one_out_of_nothing(
    home: Home, kind: Kind, tree: Path
) -> None:
    precious = home.folder / "precious"
    precious.mkdir()
    own = tree / "evil" / "worktrees" / "w"
    script = f"""
        mkdir -p {own} evil/refs && ln -s {precious} evil/objects
        echo 'ref: refs/heads/corral/race/one' | tee evil/HEAD > {own}/HEAD
        echo ../.. > {own}/commondir && echo {tree}/.git > {own}/gitdir
        echo 'gitdir: {own}' > .git
    """
    assert sandboxed(home, kind, tree, script).state is RunState.COMPLETED
    shown = git(tree, "rev-parse", "--path-format=absolute", "--git-common-dir")
    assert shown == str(tree / "evil"), "git itself is taken in"
    sandboxed(home, kind, tree, f"echo x > {precious}/x")
    assert not list(precious.iterdir())


def test_whoever_keeps_it_runs_nothing_that_was_left_for_git(
    home: Home, kind: Kind, tree: Path
) -> None:
    mark = home.folder / "run-by-another"
    script = f"""
        rm .git && git init -q . && git add README
        git config core.fsmonitor 'touch {mark}; false'
        git config filter.out.clean 'touch {mark}; cat'
        echo '* filter=out' > .gitattributes
        touch README
    """
    first = sandboxed(home, kind, tree, script)
    assert first.state is RunState.COMPLETED
    second = sandboxed(home, kind, tree, "true")
    assert not mark.exists()
    with home.store() as store:
        told = store.runs.launch_of(second.id).environment["git"]
    head = git(home.folder / "repository", "rev-parse", "corral/race/one")
    assert told == {"commit": head, "branch": "corral/race/one", "dirty": False}


@pytest.mark.parametrize("inside", ["", "src"])
def test_where_only_the_worktree_could_say_whose_it_is_nobody_is_let_in(
    home: Home, kind: Kind, tree: Path, inside: str
) -> None:
    """The project's own folder is a worktree: an agent in there would write what the next one is
    kept in by."""
    project = tree / inside
    project.mkdir(exist_ok=True)
    ended = sandboxed(home, kind, project, "touch made", project=project)
    assert ended.state is RunState.FAILED
    assert "the project's own folder" in str(ended.reason)
    assert not (project / "made").exists()
