"""Races in difficult repositories: dirty, detached, with submodules, on a full disk.

On SQLite only: git, disks and processes do not depend on the engine.
"""

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import corral
from corral.adapters.processes import process
from corral.adapters.sandbox import sandbox
from corral.api import Corral
from corral.db.database import Database
from corral.domain.runs import dispatch
from corral.domain.runs.model import Run
from corral.errors import Conflict, Refused
from corral.services.races import progress
from corral.services.races.progress import MIN_INTERVAL
from corral.services.runs import dispatch as starter
from tests.support.errors import because
from tests.support.full_disk import fill
from tests.support.race_helpers import agent, attempts, git, make_repository, states

WAIT_MS = 120_000
NEWLINE = "a\nname"


@pytest.fixture(params=["sqlite"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def live_store(url: str, tmp_path: Path) -> Iterator[Corral]:
    with corral.open(url, actor="user:tester") as store:
        agent(store, tmp_path, "ada", 'cat >/dev/null; echo "$CORRAL_ATTEMPT" > made')
        yield store


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def test_dirty_base_is_rejected_included_or_ignored(live_store: Corral, repository: Path) -> None:
    (repository / "README").write_text("changed\n")
    (repository / NEWLINE).write_text("new\n")
    with pytest.raises(Conflict, check=because("uncommitted_changes")):
        live_store.races.start("Do it", agents="ada", project=str(repository))
    assert live_store.races.list().items == []
    including = live_store.races.start(
        "Do it", agents="ada", project=str(repository), dirty="include"
    )
    ignoring = live_store.races.start(
        "Do it", agents="ada", project=str(repository), dirty="ignore"
    )
    tree = Path(attempts(including)[0].worktree)
    assert ((tree / "README").read_text(), (tree / NEWLINE).read_text()) == ("changed\n", "new\n")
    assert (Path(attempts(ignoring)[0].worktree) / "README").read_text() == "hello\n"
    result = git(repository, "status", "--porcelain")
    assert result.startswith("M README"), "files and index are unchanged"
    for race in (including, ignoring):
        assert live_store.races.wait(race.id, timeout_ms=WAIT_MS).latest.state == "selecting"


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])  # the claim expires in the database
def test_run_of_a_crashed_claimant_is_started_by_the_waiting_driver(
    live_store: Corral, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No daemon runs, and no other run ends after the claim has expired."""
    monkeypatch.setattr(dispatch, "CLAIM_MS", 100)

    def claim_and_crash(database: Database) -> list[Run]:
        (run,) = live_store.runs.list(state="queued").items
        database.write(lambda tx: dispatch.claim(tx, run.id, host=process.host()))
        return []

    with monkeypatch.context() as crashing:
        crashing.setattr(starter, "start_queued", claim_and_crash)
        race = live_store.races.start("Do it", agents="ada", project=str(repository))
    assert live_store.races.wait(race.id, timeout_ms=WAIT_MS).latest.state == "selecting"


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])  # each handle has its own wake-ups
def test_waiting_for_a_race_does_not_spin(
    live_store: Corral, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`advance` writes to the store; the waiting loop must not be woken by its own commits."""
    advance, calls = progress.advance_race, []
    monkeypatch.setattr(
        progress, "advance_race", lambda *arguments: calls.append(1) or advance(*arguments)
    )
    monkeypatch.setattr(starter, "start_queued", lambda database: [])
    race = live_store.races.start("Do it", agents="ada", project=str(repository))
    calls.clear()
    start = time.monotonic()
    with pytest.raises(Refused):
        live_store.races.wait(race.id, timeout_ms=1_000)
    assert len(calls) <= 1 + (time.monotonic() - start) / MIN_INTERVAL


def test_detached_head_races_and_merges_into_the_named_branch(
    live_store: Corral, repository: Path
) -> None:
    git(repository, "checkout", "-q", "--detach")
    race = live_store.races.start("Do it", agents="ada", project=str(repository))
    live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    live_store.races.select(race.id)
    with pytest.raises(Refused, check=because("detached_head")):
        live_store.races.merge(race.id)
    assert live_store.races.merge(race.id, into="main").outcome == "merged"
    assert git(repository, "show", "main:made") == attempts(live_store.races.get(race.id))[0].id


def test_conflict_is_reported_by_file_and_nothing_is_forced(
    live_store: Corral, repository: Path
) -> None:
    race = live_store.races.start("Do it", agents="ada", project=str(repository))
    live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    live_store.races.select(race.id)
    (repository / "made").write_text("user change\n")
    git(repository, "add", "made")
    git(repository, "commit", "-qm", "user commit")
    before = git(repository, "rev-parse", "main")
    merge = live_store.races.merge(race.id)
    assert merge.outcome == "conflicts"
    assert [conflict.name for conflict in merge.conflicts] == ["made"]
    assert git(repository, "rev-parse", "main") == before
    assert git(repository, "status", "--porcelain") == ""
    assert live_store.races.get(race.id).merged_commit is None


def test_directory_without_git_gets_a_private_repository(
    live_store: Corral, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "text").write_text("hello\n")
    race = live_store.races.start("Do it", agents="ada:2", project=str(folder))
    assert race.managed_repository
    assert [*os.listdir(folder)] == ["text"], "the folder is unchanged"
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    live_store.races.select(race.id, "2")
    assert (Path(attempts(race)[0].worktree) / "text").read_text() == "hello\n"
    with pytest.raises(Refused, check=because("not_a_repository")):
        live_store.races.merge(race.id)
    live_store.races.export(race.id, str(tmp_path / "out"))
    assert (tmp_path / "out" / "round-1-winner" / "made").exists()


def test_repository_with_a_submodule_is_raced_including(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    inner = make_repository(tmp_path / "inner")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    git(repository, "commit", "-qm", "with a submodule")
    race = live_store.races.start("Do it", agents="ada", project=str(repository))
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    assert race.latest.state == "selecting", attempts(race)[0].reason
    assert (Path(attempts(race)[0].worktree) / "sub" / "README").read_text() == "hello\n"


def test_project_in_a_subdirectory_is_raced_in_that_subdirectory(
    live_store: Corral, repository: Path
) -> None:
    inside = repository / "part"
    inside.mkdir()
    (inside / "file").write_text("x\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "part")
    race = live_store.races.start(
        "Do it", agents="ada", checks=["test -e made"], project=str(inside)
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    assert attempts(race)[0].passed
    assert (Path(attempts(race)[0].worktree) / "part" / "made").exists()


def test_worktree_removed_by_hand_loses_nothing(live_store: Corral, repository: Path) -> None:
    race = live_store.races.start("Do it", agents="ada:2", project=str(repository))
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    shutil.rmtree(attempts(race)[0].worktree)
    latest = live_store.races.select(race.id, "1").latest
    assert latest.winner_commit == attempts(race)[0].commit
    actions = {item.worktree: item.action for item in live_store.races.clean(race.id, confirm=True)}
    assert actions[attempts(race)[0].worktree] == "removed"


def test_worktree_unknown_to_git_is_kept_and_blocks_no_other(
    live_store: Corral, repository: Path
) -> None:
    race = live_store.races.start("Do it", agents="ada:2", project=str(repository))
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    unknown, other = (Path(item.worktree) for item in attempts(race))
    (unknown / "unsaved").write_text("unsaved work")
    shutil.rmtree((unknown / ".git").read_text().removeprefix("gitdir: ").strip())
    result = live_store.races.clean(race.id, confirm=True, unmerged=True)
    assert {item.worktree: item.action for item in result} == {
        str(unknown): "keep",
        str(other): "removed",
    }
    assert "git does not know" in result[0].reason
    assert (unknown / "unsaved").read_text() == "unsaved work"


def test_existing_branch_fails_the_attempt_and_a_retry_uses_another(
    live_store: Corral, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.domain.races.ops.make_branch_name", lambda *_: "taken")
    monkeypatch.setattr("corral.domain.races.attempts.make_branch_name", lambda *_: "free")
    (repository / "other").write_text("x")
    git(repository, "checkout", "-qb", "taken")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "other work")
    git(repository, "checkout", "-q", "main")
    race = live_store.races.start("Do it", agents="ada", project=str(repository))
    assert (race.latest.state, states(race)) == ("failed", ["failed"])
    assert "taken" in (attempts(race)[0].reason or "")
    live_store.races.retry(race.id, "1")
    assert live_store.races.wait(race.id, timeout_ms=WAIT_MS).latest.state == "selecting"
    assert git(repository, "log", "-1", "--format=%s", "taken") == "other work"


def test_hanging_check_is_killed_and_fails(live_store: Corral, repository: Path) -> None:
    race = live_store.races.start(
        "Do it",
        agents="ada",
        checks=["sleep 600 & sleep 600"],
        check_timeout_ms=1_000,
        project=str(repository),
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    (attempt,) = attempts(race)
    assert (race.latest.state, attempt.passed) == ("failed", False)
    assert attempt.checks[0].exit_code == 124
    assert attempt.checks[0].duration_ms >= 1_000


def test_failing_setup_ends_its_attempt_with_the_reason(
    live_store: Corral, repository: Path
) -> None:
    race = live_store.races.start(
        "Do it", agents="ada", setup="echo no network >&2; exit 9", project=str(repository)
    )
    assert states(race) == ["failed"]
    assert "set-up exited with 9: no network" in (attempts(race)[0].reason or "")


def test_full_disk_leaves_a_consistent_race(
    live_store: Corral, repository: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "large").write_bytes(os.urandom(200_000))
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "large")
    monkeypatch.setattr("corral.config.races_folder", lambda: small_disk / "races")
    fill(small_disk / "ballast")
    race = live_store.races.start("Do it", agents="ada", project=str(repository))
    assert (race.latest.state, states(race)) == ("failed", ["failed"])
    assert "cannot be created" in (attempts(race)[0].reason or "")
    assert git(repository, "branch", "--format=%(refname:short)") == "main", "no empty branch"
    (small_disk / "ballast").unlink()
    live_store.races.retry(race.id, "1")
    assert live_store.races.wait(race.id, timeout_ms=WAIT_MS).latest.state == "selecting"


def test_full_disk_during_select_merge_export_and_clean_changes_nothing(
    live_store: Corral, small_disk: Path
) -> None:
    repository = make_repository(small_disk / "repository")
    race = live_store.races.start("Do it", agents="ada:2", project=str(repository))
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    (Path(attempts(race)[0].worktree) / "by-hand").write_bytes(os.urandom(50_000))
    before, ballast = git(repository, "rev-parse", "main"), small_disk / "ballast"

    def fail_on_full_disk(operation: Callable[[], object]) -> None:
        fill(ballast)
        with pytest.raises(Refused) as result:
            operation()
        print(result.value.message)
        ballast.unlink()
        assert git(repository, "status", "--porcelain") == ""
        assert git(repository, "rev-parse", "main") == before
        assert os.listdir(small_disk) == ["repository"]

    fail_on_full_disk(lambda: live_store.races.select(race.id, "1"))
    assert live_store.races.get(race.id).latest.state == "selecting"
    winner = live_store.races.select(race.id, "1").latest
    assert len(git(repository, "ls-tree", winner.winner_commit or "", "by-hand")) > 0
    out = small_disk / "out"
    fail_on_full_disk(lambda: live_store.races.export(race.id, str(out)))
    fail_on_full_disk(lambda: live_store.races.merge(race.id))
    assert live_store.races.get(race.id).merged_commit is None
    fill(ballast)
    items = live_store.races.clean(race.id, confirm=True, unmerged=True)
    ballast.unlink()
    for item in items:
        assert item.action == ("removed" if not os.path.exists(item.worktree) else "keep"), item
    assert live_store.races.merge(race.id).outcome == "merged"
    live_store.races.export(race.id, str(out))
    assert (out / "round-1-winner" / "by-hand").stat().st_size == 50_000
    live_store.races.clean(confirm=True, unmerged=True)
    assert [item.worktree for item in live_store.races.clean(race.id)] == []


def test_attempt_is_confined_to_its_worktree_or_reported_unconfined(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    # No script file: it would be below /tmp, and a sandbox may have its own /tmp.
    script = f"cat >/dev/null; echo in > made; echo out 2>/dev/null > {outside}; :"
    live_store.agents.create("escaping", command=shlex.join(["sh", "-c", script]))
    race = live_store.races.start(
        "Do it", agents="escaping", sandbox="auto", project=str(repository)
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    (attempt,) = attempts(race)
    assert attempt.state == "completed", attempt.reason
    assert (Path(attempt.worktree) / "made").read_text() == "in\n"
    assert attempt.sandbox in ("bubblewrap", "landlock", "none")
    assert outside.exists() == (attempt.sandbox == "none"), attempt.sandbox
    print(f"sandbox: {attempt.sandbox}")


@pytest.mark.parametrize("unsandboxed_commands", [False, True])
def test_setup_and_checks_are_confined_unless_exempted(
    live_store: Corral, repository: Path, tmp_path: Path, unsandboxed_commands: bool
) -> None:
    kind = sandbox.probe_sandboxes().kind
    if kind is sandbox.SandboxKind.NONE:
        pytest.skip("no sandbox is available")
    outside = {name: tmp_path / name for name in ("set-up", "check")}
    live_store.agents.create("confined", command="sh -c 'cat >/dev/null; echo x > made'")
    race = live_store.races.start(
        "Do it",
        agents="confined",
        setup=f"echo x > {outside['set-up']}; true",
        checks=[f"echo x > {outside['check']}; test -e made"],
        sandbox="auto",
        unsandboxed_commands=unsandboxed_commands,
        project=str(repository),
    )
    (attempt,) = attempts(live_store.races.wait(race.id))
    assert (attempt.passed, attempt.sandbox) == (True, kind), attempt.checks
    assert {file.exists() for file in outside.values()} == {unsandboxed_commands}
