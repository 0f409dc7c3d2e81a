"""Behaviours of races that users of multishot rely on: rounds, attempts and winners.

The numbers are those of the study's list of testable behaviours (5.2).
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import keyring
import keyring.backends.fail
import pytest

import corral
from corral import config
from corral.api import Corral
from corral.errors import Conflict, Invalid, Refused
from tests.support.errors import because
from tests.support.race_helpers import agent, attempts, git, make_repository, states, tree_of
from tests.support.store import list_events
from tests.support.threads import Racer

# Runs and worktrees; what races store is tested on both engines in tests/domain.
pytestmark = pytest.mark.parametrize("engine", ["sqlite"])
WAIT_MS = 120_000
WRITE_RESULT = 'cat >/dev/null; echo "$CORRAL_ATTEMPT" > made'


@pytest.fixture
def live_store(url: str) -> Iterator[Corral]:
    with corral.open(url, actor="user:tester") as store:
        yield store


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def test_1_four_variations_share_a_base_and_a_fifth_is_rejected(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live_store, tmp_path, "ada", "cat > prompt")
    styles = ["carefully", "minimal", "boldly", "quickly"]
    race = live_store.races.start("Do it", agents="ada", variations=styles, project=str(repository))
    assert [attempt.number for attempt in attempts(race)] == [1, 2, 3, 4]
    trees = {attempt.worktree for attempt in attempts(race)}
    assert len(trees) == 4
    for tree in trees:
        assert git(tree, "merge-base", "HEAD", "main") == git(repository, "rev-parse", "main")
        assert git(tree, "branch", "--show-current").startswith("corral/")
    with pytest.raises(Refused, check=because("too_many_attempts")):
        live_store.races.start("Do it", agents="ada:5", project=str(repository))
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    assert states(race) == ["completed"] * 4
    assert race.latest.state == "selecting"
    prompts = [(Path(attempt.worktree) / "prompt").read_text() for attempt in attempts(race)]
    assert [text.split("\n\n")[0] for text in prompts] == ["Do it"] * 4
    assert prompts[0].rstrip().endswith("carefully")
    assert not (repository / "prompt").exists(), "the folder of the user is unchanged"


def test_run_of_a_cancelled_attempt_has_the_stop_reason(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live_store, tmp_path, "good", WRITE_RESULT)
    agent(live_store, tmp_path, "slow", "exec sleep 600")
    race = live_store.races.start(
        "Do it", agents="good,slow", checks=["test -f made"], stop_after=1, project=str(repository)
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    assert states(race) == ["completed", "cancelled"]
    lost = attempts(race)[1]
    assert lost.reason == "the attempt could no longer win: enough other attempts passed (1)"
    run = live_store.runs.wait(lost.run_id or "", timeout_ms=WAIT_MS)
    assert run.reason == f"the attempt was cancelled: {lost.reason}"


def test_2_failed_attempts_cannot_be_selected(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live_store, tmp_path, "good", WRITE_RESULT)
    agent(live_store, tmp_path, "bad", "exit 3")
    race = live_store.races.start("Do it", agents="good:3,bad", project=str(repository))
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    assert states(race) == ["completed", "completed", "completed", "failed"]
    assert race.latest.state == "selecting"
    assert "ended (failed with 3)" in (attempts(race)[3].reason or "")
    for overrule in (False, True):
        with pytest.raises(Refused, check=because("attempt_failed", state="failed")):
            live_store.races.select(race.id, "4", overrule=overrule)

    failed = live_store.races.start("Do it", agents="bad:2", project=str(repository))
    failed = live_store.races.wait(failed.id, timeout_ms=WAIT_MS)
    assert (states(failed), failed.latest.state) == (["failed", "failed"], "failed")
    assert "retry" in (failed.latest.reason or "")
    with pytest.raises(Refused, check=because("no_candidate")):
        live_store.races.select(failed.id)
    (tmp_path / "bad.sh").write_text(WRITE_RESULT)
    retried = live_store.races.retry(failed.id, "2")
    # Another driver may finish it first, so the events are checked.
    moves = list_events(live_store, retried.latest.id)
    assert moves[:3] == ["round.begin", "round.fail", "round.retry"]
    retried = live_store.races.wait(failed.id, timeout_ms=WAIT_MS)
    assert (states(retried), retried.latest.state) == (["failed", "completed"], "selecting")
    assert attempts(retried)[1].try_number == 2
    assert attempts(retried)[1].worktree != attempts(failed)[1].worktree, "the old worktree is kept"
    assert live_store.races.abandon(failed.id, reason="stop_after").latest.state == "abandoned"


def test_3_one_of_two_concurrent_selections_succeeds(
    url: str, live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live_store, tmp_path, "ada", WRITE_RESULT)
    race = live_store.races.start("Do it", agents="ada:2", project=str(repository))
    live_store.races.wait(race.id, timeout_ms=WAIT_MS)

    def select_winner(number: int) -> str:
        with corral.open(url) as store:
            try:
                return store.races.select(race.id, str(number)).latest.winner_id or ""
            except Conflict:
                return "refused"

    outcomes = [
        racer.result() for racer in [Racer(partial(select_winner, number)) for number in (1, 2)]
    ]
    (winner,) = [id for id in outcomes if id != "refused"]
    now = live_store.races.get(race.id).latest
    assert (now.state, now.winner_id) == ("completed", winner)
    assert len(now.selections) == 1
    won = next(attempt for attempt in now.attempts if attempt.id == winner)
    assert (won.state, won.is_winner) == ("completed", True), "the winner is completed"


def test_4_next_round_starts_with_the_exact_tree_of_the_winner(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    script = (
        "cat >/dev/null; printf 'a\\r\\nb\\000' > bytes; ln -sf bytes link; mkdir -p d; "
        'echo "$CORRAL_ATTEMPT" > d/who; chmod +x d/who; printf x > "$(printf \'new\\nline\')"; '
        "sleep ${SLOW:-0}"
    )
    agent(live_store, tmp_path, "ada", script)
    race = live_store.races.start("Do it", agents="ada:2", project=str(repository))
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    second = attempts(race)[1]
    (Path(second.worktree) / "by-hand").write_text("a manual change\n")
    race = live_store.races.select(race.id, "2", reason="better names")
    first = race.latest
    assert (first.winner_id, first.decided_by, first.reason) == (
        second.id,
        "user:tester",
        "better names",
    )
    winner = tree_of(second.worktree)
    assert {"by-hand", "bytes", "d/who", "new\nline"} <= {*winner}
    (tmp_path / "ada.sh").write_text("cat >/dev/null; exit 0")
    race = live_store.races.next(race.id)
    for attempt in attempts(race):
        assert tree_of(attempt.worktree) == winner
        assert git(attempt.worktree, "rev-parse", "HEAD") == first.winner_commit
        assert os.readlink(Path(attempt.worktree) / "link") == "bytes"
        assert os.access(Path(attempt.worktree) / "d/who", os.X_OK)
    latest = race.latest
    assert (latest.number, latest.parent_id, latest.base_attempt_id, latest.base_commit) == (
        2,
        first.id,
        second.id,
        first.winner_commit,
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    live_store.races.select(race.id)
    back = live_store.races.next(race.id, from_round=1)
    assert (back.latest.number, back.latest.parent_id) == (3, first.id), (
        "an earlier round can be the base"
    )
    live_store.races.wait(race.id, timeout_ms=WAIT_MS)


def test_6_logs_of_two_rounds_are_separate_and_ordered(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live_store, tmp_path, "ada", "cat >/dev/null; seq 1 300; echo $CORRAL_ATTEMPT")
    race = live_store.races.start("Do it", agents="ada", project=str(repository))
    live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    live_store.races.select(race.id)
    live_store.races.next(race.id)
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    live_store.races.select(race.id)
    live_store.races.export(race.id, str(tmp_path / "out"))
    for number, round in enumerate(race.rounds, 1):
        log = (tmp_path / "out" / "logs" / f"round-{number}-attempt-1.log").read_text()
        wanted = [*map(str, range(1, 301)), round.attempts[0].id]
        assert log.splitlines() == wanted
        assert (tmp_path / "out" / f"round-{number}-winner" / "README").read_text() == "hello\n"
    listed = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {entry["path"] for entry in listed["entries"]} >= {"logs/round-2-attempt-1.log"}


# A fake test runner: it writes a JUnit report and fails if one of two tests failed.
REPORT = """
[ -e bad ] && failed='<failure message="no"/>'
echo "<testsuite><testcase name='one'/>${failed:+<testcase name='two'>$failed</testcase>}\
</testsuite>" > report.xml
[ ! -e bad ]
"""


def test_7_attempt_that_fails_a_check_ranks_below_all_that_pass(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live_store, tmp_path, "bad", "cat >/dev/null; touch bad")
    agent(live_store, tmp_path, "good", WRITE_RESULT)
    # The judge would rank the failed attempt first, but is not asked about it.
    praise = 'cat >/dev/null; echo \'{"ranking": [["A", "B"]], "reason": "both"}\''
    agent(live_store, tmp_path, "judge", praise)
    race = live_store.races.start(
        "Do it",
        agents="bad,good:2",
        checks=[REPORT, "true"],
        reports=["report.xml"],
        judge="judge",
        project=str(repository),
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    failed, first, second = attempts(race)
    assert [attempt.passed for attempt in (failed, first, second)] == [False, True, True]
    assert failed.state == "completed"
    (check,) = failed.checks
    assert check.exit_code == 1, "checks after a failed one are not run"
    assert check.duration_ms > 0
    assert check.tests is not None
    assert (check.tests.passed, check.tests.failed, check.tests.total) == (1, 1, 2)
    assert [check.exit_code for check in first.checks] == [0, 0]
    assert first.checks[0].tests is not None
    assert first.checks[0].tests.passed == 1
    assert failed.rank is None
    assert failed.score is not None
    assert failed.score < min(first.score or 0, second.score or 0)
    assert race.latest.state == "selecting"
    with pytest.raises(Refused, check=because("checks_failed")):
        live_store.races.select(race.id, "1")
    chosen = live_store.races.select(race.id, "1", overrule=True, reason="the test is wrong").latest
    assert chosen.winner_id == failed.id
    (selection,) = chosen.selections
    assert (selection.verb, selection.selected_by) == ("overrule", "user:tester")
    assert selection.ranked_first_id in (first.id, second.id), "the ranking is kept"


JUDGE = """
cat > shown
A=$(grep -n 'begin. diff of solution A' shown | cut -d: -f1)
W=$(grep -n 'winner' shown | tail -1 | cut -d: -f1)
B=$(grep -n 'begin. diff of solution B' shown | cut -d: -f1)
if [ "$W" -gt "$B" ]; then echo 'So: {"ranking": [["B"], ["A"]], "reason": "B is better"}'
else echo '{"ranking": ["A", "B"], "reason": "A is better"}'; fi
"""


def test_8_judge_is_blind_and_shuffled_and_a_person_can_overrule(
    live_store: Corral, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(live_store, tmp_path, "plain", "cat >/dev/null; echo loser > text")
    agent(live_store, tmp_path, "fancy", "cat >/dev/null; echo winner > text")
    agent(live_store, tmp_path, "judge", JUDGE)
    with pytest.raises(Invalid, match="its own model"):
        live_store.races.start("x", agents="plain,judge", judge="judge", project=str(repository))
    race = live_store.races.start(
        "Do it", agents="plain,fancy", judge="judge", samples=2, project=str(repository)
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    round = race.latest
    plain, fancy = round.attempts
    first, second = round.verdicts
    assert [*first.labels.values()] == [*reversed([*second.labels.values()])], "swapped"
    assert [verdict.ranking for verdict in (first, second)] == [[[fancy.id], [plain.id]]] * 2
    assert (fancy.rank, plain.rank) == (1, 2)
    for verdict in (first, second):
        assert (verdict.state, verdict.truncated) == ("given", False)
        assert verdict.run_id is not None
        prompt = live_store.runs.get_launch(verdict.run_id).prompt or ""
        assert live_store.runs.get(verdict.run_id).title == "judge: Do it"
        for name in ("fancy", "plain", *(attempt.id for attempt in round.attempts)):
            assert name not in prompt, "the judge does not see the authors"
    chosen = live_store.races.select(race.id, "1", overrule=True, reason="simpler").latest
    assert chosen.winner_id == plain.id
    assert chosen.selections[0].ranked_first_id == fancy.id
    assert len(chosen.verdicts) == 2, "the verdicts are kept"


def test_8_truncated_diff_is_marked_and_complete_in_files(
    live_store: Corral, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.services.races.judge_prompt.MAX_DIFF_BYTES", 8_000)
    agent(live_store, tmp_path, "ada", "cat >/dev/null; seq 1 3000 > long")
    whole = tmp_path / "whole"
    agent(live_store, tmp_path, "judge", f"cat >/dev/null; cat A-*.diff >{whole}; echo invalid")
    race = live_store.races.start(
        "Do it", agents="ada:2", judge="judge", samples=1, project=str(repository)
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    (verdict,) = race.latest.verdicts
    assert verdict.truncated
    assert (verdict.state, verdict.ranking) == ("failed", None), (
        "an invalid verdict ranks no attempt"
    )
    assert race.latest.state == "selecting", "a person can still select"
    assert verdict.run_id is not None
    assert all(f"+{number}\n" in whole.read_text() for number in (1, 1500, 3000))
    assert not (config.home() / "judging" / race.id).exists(), "removed with the verdict"


def test_9_credential_is_stored_as_a_reference_only(
    url: str, live_store: Corral, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "sesame-8f2c61d0b7"
    monkeypatch.setenv("OUTSIDE_KEY", value)
    agent(
        live_store,
        tmp_path,
        "ada",
        'cat >/dev/null; echo "it is $KEY"; test -n "$KEY" && echo ok > ok',
    )
    race = live_store.races.start(
        "Do it", agents="ada", secrets={"KEY": "env:OUTSIDE_KEY"}, project=str(repository)
    )
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    assert states(race) == ["completed"]
    assert (Path(attempts(race)[0].worktree) / "ok").exists(), "the agent got the secret"
    live_store.races.select(race.id)
    live_store.races.export(race.id, str(tmp_path / "out"))
    live_store.db.backup(tmp_path / "backup.db")
    places = [tmp_path / "out", tmp_path / "backup.db", config.home(), repository]
    for place in places:
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file():
                assert value.encode() not in path.read_bytes(), path
    with pytest.raises(Invalid, match="not a reference"):
        live_store.races.start("x", agents="ada", secrets={"KEY": value}, project=str(repository))
    monkeypatch.setattr(keyring, "set_password", keyring.backends.fail.Keyring().set_password)
    with pytest.raises(Refused, check=because("no_keyring")):
        live_store.secrets.save_value("KEY", value, where="keyring")


def test_10_worktrees_of_a_dead_driver_are_listed_and_dirty_ones_kept(
    live_store: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live_store, tmp_path, "ada", WRITE_RESULT)
    race = live_store.races.start("Do it", agents="ada:3", project=str(repository))
    race = live_store.races.wait(race.id, timeout_ms=WAIT_MS)
    first, second, third = attempts(race)
    live_store.races.select(race.id, "1")
    (Path(second.worktree) / "unsaved").write_text("unsaved work")
    stray = config.home() / "races" / race.id / "stray"
    git(repository, "worktree", "add", "-q", "-b", "stray", str(stray))
    listed = {place.worktree: place for place in live_store.races.clean(orphans=True)}
    assert listed[first.worktree].action == "remove"
    assert listed[first.worktree].attempt_id == first.id
    assert listed[first.worktree].bytes > 0
    assert (listed[second.worktree].action, listed[second.worktree].uncommitted) == ("keep", 1)
    assert (listed[third.worktree].action, listed[third.worktree].unmerged) == ("keep", 1)
    assert listed[str(stray)].attempt_id is None
    assert all(Path(place).exists() for place in listed), "a dry run removes nothing"
    live_store.races.clean(orphans=True, confirm=True, unmerged=True)
    assert not Path(first.worktree).exists()
    assert not Path(third.worktree).exists()
    assert not stray.exists()
    assert (Path(second.worktree) / "unsaved").read_text() == "unsaved work"
    assert git(repository, "rev-parse", third.branch) == third.commit, "the commits are kept"
    winner = live_store.races.get(race.id).latest.winner_commit
    assert git(repository, "cat-file", "-t", winner or "") == "commit"
    remaining = live_store.races.clean(race.id)
    assert [place.worktree for place in remaining] == [second.worktree]
