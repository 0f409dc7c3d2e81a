"""Behaviour that users of multishot rely on: rounds, attempts, a winner that continues.

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
from tests.support.store import record
from tests.support.threads import Racer

# Runs and worktrees; what races store is tested on both engines in tests/domain.
pytestmark = pytest.mark.parametrize("engine", ["sqlite"])
WAIT_MS = 120_000
WRITES = 'cat >/dev/null; echo "$CORRAL_ATTEMPT" > made'


@pytest.fixture
def live(url: str) -> Iterator[Corral]:
    with corral.open(url, actor="user:tester") as store:
        yield store


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def test_1_four_variations_share_a_base_and_a_fifth_is_rejected(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "ada", "cat > prompt")
    ways = ["carefully", "minimal", "boldly", "quickly"]
    race = live.races.start("Do it", agents="ada", variations=ways, project=str(repository))
    assert [attempt.number for attempt in attempts(race)] == [1, 2, 3, 4]
    trees = {attempt.worktree for attempt in attempts(race)}
    assert len(trees) == 4
    for tree in trees:
        assert git(tree, "merge-base", "HEAD", "main") == git(repository, "rev-parse", "main")
        assert git(tree, "branch", "--show-current").startswith("corral/")
    with pytest.raises(Refused, check=because("too_many_attempts")):
        live.races.start("Do it", agents="ada:5", project=str(repository))
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    assert states(race) == ["completed"] * 4
    assert race.latest.state == "selecting"
    told = [(Path(each.worktree) / "prompt").read_text() for each in attempts(race)]
    assert [text.split("\n\n")[0] for text in told] == ["Do it"] * 4
    assert told[0].rstrip().endswith("carefully")
    assert not (repository / "prompt").exists(), "the user's own directory is left alone"


def test_run_of_a_cancelled_attempt_has_the_stop_reason(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "good", WRITES)
    agent(live, tmp_path, "slow", "exec sleep 600")
    race = live.races.start(
        "Do it", agents="good,slow", checks=["test -f made"], stop_after=1, project=str(repository)
    )
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    assert states(race) == ["completed", "cancelled"]
    lost = attempts(race)[1]
    assert lost.reason == "the attempt could no longer win: enough other attempts passed (1)"
    run = live.runs.wait(lost.run_id or "", timeout_ms=WAIT_MS)
    assert run.reason == f"the attempt was cancelled: {lost.reason}"


def test_2_failed_attempts_cannot_be_selected(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "good", WRITES)
    agent(live, tmp_path, "bad", "exit 3")
    race = live.races.start("Do it", agents="good:3,bad", project=str(repository))
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    assert states(race) == ["completed", "completed", "completed", "failed"]
    assert race.latest.state == "selecting"
    assert "ended (failed with 3)" in (attempts(race)[3].reason or "")
    for overrule in (False, True):
        with pytest.raises(Refused, check=because("attempt_failed", state="failed")):
            live.races.select(race.id, "4", overrule=overrule)

    lost = live.races.start("Do it", agents="bad:2", project=str(repository))
    lost = live.races.wait(lost.id, timeout_ms=WAIT_MS)
    assert (states(lost), lost.latest.state) == (["failed", "failed"], "failed")
    assert "retry" in (lost.latest.reason or "")
    with pytest.raises(Refused, check=because("no_candidate")):
        live.races.select(lost.id)
    (tmp_path / "bad.sh").write_text(WRITES)
    again = live.races.retry(lost.id, "2")
    # Somebody may drive it to its end before we look; the record has the move.
    moves = record(live, again.latest.id)
    assert moves[:3] == ["round.begin", "round.fail", "round.retry"]
    again = live.races.wait(lost.id, timeout_ms=WAIT_MS)
    assert (states(again), again.latest.state) == (["failed", "completed"], "selecting")
    assert attempts(again)[1].try_number == 2
    assert attempts(again)[1].worktree != attempts(lost)[1].worktree, "what it left before stays"
    assert live.races.abandon(lost.id, reason="stop_after").latest.state == "abandoned"


def test_3_one_of_two_concurrent_selections_succeeds(
    url: str, live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "ada", WRITES)
    race = live.races.start("Do it", agents="ada:2", project=str(repository))
    live.races.wait(race.id, timeout_ms=WAIT_MS)

    def select_winner(number: int) -> str:
        with corral.open(url) as store:
            try:
                return store.races.select(race.id, str(number)).latest.winner_id or ""
            except Conflict:
                return "refused"

    chosen = [racer.result() for racer in [Racer(partial(select_winner, each)) for each in (1, 2)]]
    (winner,) = [each for each in chosen if each != "refused"]
    now = live.races.get(race.id).latest
    assert (now.state, now.winner_id) == ("completed", winner)
    assert len(now.selections) == 1
    won = next(each for each in now.attempts if each.id == winner)
    assert (won.state, won.is_winner) == ("completed", True), "it won, and it completed"


def test_4_next_round_starts_with_the_exact_tree_of_the_winner(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    script = (
        "cat >/dev/null; printf 'a\\r\\nb\\000' > bytes; ln -sf bytes link; mkdir -p d; "
        'echo "$CORRAL_ATTEMPT" > d/who; chmod +x d/who; printf x > "$(printf \'new\\nline\')"; '
        "sleep ${SLOW:-0}"
    )
    agent(live, tmp_path, "ada", script)
    race = live.races.start("Do it", agents="ada:2", project=str(repository))
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    second = attempts(race)[1]
    (Path(second.worktree) / "by-hand").write_text("a person's last touch\n")
    race = live.races.select(race.id, "2", reason="it is nicer")
    first = race.latest
    assert (first.winner_id, first.decided_by, first.reason) == (
        second.id,
        "user:tester",
        "it is nicer",
    )
    winner = tree_of(second.worktree)
    assert {"by-hand", "bytes", "d/who", "new\nline"} <= {*winner}
    (tmp_path / "ada.sh").write_text("cat >/dev/null; exit 0")
    race = live.races.next(race.id)
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
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    live.races.select(race.id)
    back = live.races.next(race.id, from_round=1)
    assert (back.latest.number, back.latest.parent_id) == (3, first.id), "also from an earlier one"
    live.races.wait(race.id, timeout_ms=WAIT_MS)


def test_6_logs_of_two_rounds_are_separate_and_ordered(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "ada", "cat >/dev/null; seq 1 300; echo $CORRAL_ATTEMPT")
    race = live.races.start("Do it", agents="ada", project=str(repository))
    live.races.wait(race.id, timeout_ms=WAIT_MS)
    live.races.select(race.id)
    live.races.next(race.id)
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    live.races.select(race.id)
    live.races.export(race.id, str(tmp_path / "out"))
    for number, round in enumerate(race.rounds, 1):
        log = (tmp_path / "out" / "logs" / f"round-{number}-attempt-1.log").read_text()
        wanted = [*map(str, range(1, 301)), round.attempts[0].id]
        assert log.splitlines() == wanted
        assert (tmp_path / "out" / f"round-{number}-winner" / "README").read_text() == "hello\n"
    listed = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {entry["path"] for entry in listed["entries"]} >= {"logs/round-2-attempt-1.log"}


# Stands for a test runner: it writes a JUnit report, and fails where one of two tests did.
REPORT = """
[ -e bad ] && failed='<failure message="no"/>'
echo "<testsuite><testcase name='one'/>${failed:+<testcase name='two'>$failed</testcase>}\
</testsuite>" > report.xml
[ ! -e bad ]
"""


def test_7_attempt_that_fails_a_check_ranks_below_all_that_pass(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "bad", "cat >/dev/null; touch bad")
    agent(live, tmp_path, "good", WRITES)
    # The judge loves what failed: it is not even asked about that.
    praise = 'cat >/dev/null; echo \'{"ranking": [["A", "B"]], "reason": "both"}\''
    agent(live, tmp_path, "judge", praise)
    race = live.races.start(
        "Do it",
        agents="bad,good:2",
        checks=[REPORT, "true"],
        reports=["report.xml"],
        judge="judge",
        project=str(repository),
    )
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    failed, one, other = attempts(race)
    assert [each.passed for each in (failed, one, other)] == [False, True, True]
    assert failed.state == "completed"
    (check,) = failed.checks
    assert check.exit_code == 1, "and what comes behind a gate that is closed is not run"
    assert check.duration_ms > 0
    assert check.tests is not None
    assert (check.tests.passed, check.tests.failed, check.tests.total) == (1, 1, 2)
    assert [each.exit_code for each in one.checks] == [0, 0]
    assert one.checks[0].tests is not None
    assert one.checks[0].tests.passed == 1
    assert failed.rank is None
    assert failed.score is not None
    assert failed.score < min(one.score or 0, other.score or 0)
    assert race.latest.state == "selecting"
    with pytest.raises(Refused, check=because("checks_failed")):
        live.races.select(race.id, "1")
    chosen = live.races.select(race.id, "1", overrule=True, reason="the test is wrong").latest
    assert chosen.winner_id == failed.id
    (selection,) = chosen.selections
    assert (selection.verb, selection.selected_by) == ("overrule", "user:tester")
    assert selection.ranked_first_id in (one.id, other.id), "what the ranking said stands beside it"


JUDGE = """
cat > shown
A=$(grep -n 'begin. diff of solution A' shown | cut -d: -f1)
W=$(grep -n 'winner' shown | tail -1 | cut -d: -f1)
B=$(grep -n 'begin. diff of solution B' shown | cut -d: -f1)
if [ "$W" -gt "$B" ]; then echo 'So: {"ranking": [["B"], ["A"]], "reason": "B is better"}'
else echo '{"ranking": ["A", "B"], "reason": "A is better"}'; fi
"""


def test_8_judge_is_blind_and_shuffled_and_a_person_can_overrule(
    live: Corral, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(live, tmp_path, "plain", "cat >/dev/null; echo loser > text")
    agent(live, tmp_path, "fancy", "cat >/dev/null; echo winner > text")
    agent(live, tmp_path, "judge", JUDGE)
    with pytest.raises(Invalid, match="its own model"):
        live.races.start("x", agents="plain,judge", judge="judge", project=str(repository))
    race = live.races.start(
        "Do it", agents="plain,fancy", judge="judge", samples=2, project=str(repository)
    )
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    round = race.latest
    plain, fancy = round.attempts
    first, second = round.verdicts
    assert [*first.labels.values()] == [*reversed([*second.labels.values()])], "swapped"
    assert [each.ranking for each in (first, second)] == [[[fancy.id], [plain.id]]] * 2
    assert (fancy.rank, plain.rank) == (1, 2)
    for verdict in (first, second):
        assert (verdict.state, verdict.truncated) == ("given", False)
        assert verdict.run_id is not None
        prompt = live.runs.get_launch(verdict.run_id).prompt or ""
        assert live.runs.get(verdict.run_id).title == "judge: Do it"
        for word in ("fancy", "plain", *(each.id for each in round.attempts)):
            assert word not in prompt, "it does not know whose they are"
    chosen = live.races.select(race.id, "1", overrule=True, reason="no frills").latest
    assert chosen.winner_id == plain.id
    assert chosen.selections[0].ranked_first_id == fancy.id
    assert len(chosen.verdicts) == 2, "beside the verdicts, not in their place"


def test_8_truncated_diff_is_marked_and_complete_in_files(
    live: Corral, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.services.races.judge_prompt.MAX_DIFF_BYTES", 8_000)
    agent(live, tmp_path, "ada", "cat >/dev/null; seq 1 3000 > long")
    agent(live, tmp_path, "judge", "cat >/dev/null; ls >&2; echo nonsense")
    race = live.races.start(
        "Do it", agents="ada:2", judge="judge", samples=1, project=str(repository)
    )
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    (verdict,) = race.latest.verdicts
    assert verdict.truncated
    assert (verdict.state, verdict.ranking) == ("failed", None), "nonsense ranks nobody"
    assert race.latest.state == "selecting", "and a person may choose all the same"
    assert verdict.run_id is not None
    folder = Path(live.runs.get(verdict.run_id).cwd)
    whole = "".join(path.read_text() for path in sorted(folder.glob("A-*.diff")))
    assert all(f"+{number}\n" in whole for number in (1, 1500, 3000))


def test_9_credential_is_stored_as_a_reference_only(
    url: str, live: Corral, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "sesame-8f2c61d0b7"
    monkeypatch.setenv("OUTSIDE_KEY", value)
    agent(
        live, tmp_path, "ada", 'cat >/dev/null; echo "it is $KEY"; test -n "$KEY" && echo ok > ok'
    )
    race = live.races.start(
        "Do it", agents="ada", secrets={"KEY": "env:OUTSIDE_KEY"}, project=str(repository)
    )
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    assert states(race) == ["completed"]
    assert (Path(attempts(race)[0].worktree) / "ok").exists(), "the agent had it"
    live.races.select(race.id)
    live.races.export(race.id, str(tmp_path / "out"))
    live.db.backup(tmp_path / "backup.db")
    places = [tmp_path / "out", tmp_path / "backup.db", config.home(), repository]
    for place in places:
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file():
                assert value.encode() not in path.read_bytes(), path
    with pytest.raises(Invalid, match="not a reference"):
        live.races.start("x", agents="ada", secrets={"KEY": value}, project=str(repository))
    monkeypatch.setattr(keyring, "set_password", keyring.backends.fail.Keyring().set_password)
    with pytest.raises(Refused, check=because("no_keyring")):
        live.secrets.save_value("KEY", value, where="keyring")


def test_10_worktrees_of_a_dead_driver_are_listed_and_dirty_ones_kept(
    live: Corral, repository: Path, tmp_path: Path
) -> None:
    agent(live, tmp_path, "ada", WRITES)
    race = live.races.start("Do it", agents="ada:3", project=str(repository))
    race = live.races.wait(race.id, timeout_ms=WAIT_MS)
    one, two, three = attempts(race)
    live.races.select(race.id, "1")
    (Path(two.worktree) / "unsaved").write_text("mine")
    stray = config.home() / "races" / race.id / "stray"
    git(repository, "worktree", "add", "-q", "-b", "stray", str(stray))
    found = {place.worktree: place for place in live.races.clean(orphans=True)}
    assert found[one.worktree].action == "remove"
    assert found[one.worktree].attempt_id == one.id
    assert found[one.worktree].bytes > 0
    assert (found[two.worktree].action, found[two.worktree].uncommitted) == ("keep", 1)
    assert (found[three.worktree].action, found[three.worktree].unmerged) == ("keep", 1)
    assert found[str(stray)].attempt_id is None
    assert all(Path(place).exists() for place in found), "so far it was only said"
    live.races.clean(orphans=True, confirm=True, unmerged=True)
    assert not Path(one.worktree).exists()
    assert not Path(three.worktree).exists()
    assert not stray.exists()
    assert (Path(two.worktree) / "unsaved").read_text() == "mine"
    assert git(repository, "rev-parse", three.branch) == three.commit, "its commits stay"
    winner = live.races.get(race.id).latest.winner_commit
    assert git(repository, "cat-file", "-t", winner or "") == "commit"
    left = live.races.clean(race.id)
    assert [place.worktree for place in left] == [two.worktree]
