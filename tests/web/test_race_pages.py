"""The race pages over HTTP: content, actions and errors."""

import json
import re
import threading
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import Future
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from corral.domain.races.model import Race
from corral.kernel.errors import Refused
from corral.kernel.redaction_policy import redaction_notice
from corral.web import race_diffs, races
from corral.web.race_actions import RACE_ACTIONS
from corral.web.races import MAX_SCREENS, allowed_attempt_verbs, allowed_race_verbs
from tests.support.fake_keys import KEY
from tests.support.git_repositories import git
from tests.support.http_server import HttpServer
from tests.support.page_objects import PageClient, collapse_spaces, htmx_headers, iter_pages
from tests.support.race_factory import BAD, RaceFactory
from tests.support.sample_store import HOSTILE

ODD_NAME = "odd\nname & <b>.txt"


class RacePages(PageClient):
    """Race pages with a repository and races."""

    prefix = "races/"

    def __init__(self, http_server: HttpServer, folder: Path, client: httpx.Client) -> None:
        super().__init__(http_server, client)
        self.race_factory = RaceFactory(
            http_server.store, folder, {"app.py": "one\ntwo\nthree\n", "gone": "x\n"}
        )
        for name in ("ada", "grace", "linus"):
            self.store.agents.create(name, command="true")

    def submit_action(self, verb: str, **fields: str) -> str:
        """Submit an action of races and return its message."""
        return unescape(self.submit(verb, **fields).text)

    def create_passed_race(self, *agents: str) -> Race:
        """Create a race whose attempts all passed."""
        race = self.race_factory.start(*agents, checks=["true"])
        for number, agent in enumerate(agents, 1):
            files: dict[str, str | bytes] = {"app.py": f"one\n{agent}\nthree\n"}
            self.race_factory.end(race, number, files | {agent: f"{number}\n"}, provider="plain")
        return self.race_factory.settle(race)


@pytest.fixture
def race_pages(http_server: HttpServer, tmp_path: Path) -> Iterator[RacePages]:
    with http_server.client() as client:
        yield RacePages(http_server, tmp_path, client)


# -- actions --------------------------------------------------------------------------------------


def test_every_race_action_does_what_its_button_says(race_pages: RacePages) -> None:
    submit, store, race_factory = (
        race_pages.submit_action,
        race_pages.store,
        race_pages.race_factory,
    )
    race = race_pages.create_passed_race("ada", "grace")
    assert "winner" in submit("select", id=race.id, attempt="1.2", reason="shorter")
    current = store.races.get(race.id).latest
    assert (current.winner_id, current.reason) == (current.attempts[1].id, "shorter")
    submit("select", id=race.id, attempt="1.1", overrule="1", reason="the better approach")
    current = store.races.get(race.id).latest
    assert (current.winner_id, [selection.verb for selection in current.selections]) == (
        current.attempts[0].id,
        ["select", "overrule"],
    )
    assert "Graft kept" in submit("graft", id=race.id, attempt="1.2", **{"select:grace": "on"})
    (graft,) = store.races.get(race.id).latest.grafts
    assert (graft.kept, graft.files) == (True, ["grace"])
    assert "Merged" in submit("merge", id=race.id, into="main")
    assert git(race_factory.repository, "show", "main:grace") == "2"
    assert "Already" in submit("merge", id=race.id)
    submit("finish", id=race.id, reason="that is it")
    assert store.races.get(race.id).state == "completed"

    # Another node drives it: here only the record changes.
    other = race_factory.start("ada", "grace", host="elsewhere")
    race_factory.begin(other, 1)
    submit("cancel", id=other.id, attempt="1.1", reason="too slow")
    assert store.races.get(other.id).latest.attempts[0].reason == "too slow"
    submit("retry", id=other.id, attempt="1")
    assert store.races.get(other.id).latest.attempts[0].try_number == 2
    race_factory.end(other, 1)
    race_factory.end(other, 2)
    race_factory.settle(other)
    store.agents.create("judge", command="true")
    submit("judge", id=other.id, judge="judge", rubric="is it tested?")
    plan = store.races.get(other.id).plan
    assert (plan.judge, plan.rubric) == ("judge", "is it tested?")
    race_factory.select(other, "1")
    fields = {"id": other.id, "prompt": "Now better", "from": "1"}
    race_pages.submit_rejected("next", "refused", "cannot be enforced", **fields, budget="7")
    assert store.races.get(other.id).budget_micros is None, "the race is unchanged"
    submit("next", **fields)
    current = store.races.get(other.id)
    assert (current.latest.number, current.latest.prompt) == (2, "Now better")
    submit("abandon", id=other.id, round="2", reason="no")
    assert store.races.get(other.id).latest.state == "abandoned"
    submit("abandon", id=other.id, reason="stop_after")
    assert (store.races.get(other.id).state, store.races.get(other.id).reason) == (
        "abandoned",
        "stop_after",
    )
    race_pages.submit_rejected(
        "start", "invalid", "'much'", project=race_factory.project, prompt="x", budget="much"
    )
    assert {*RACE_ACTIONS} - race_pages.done == {"races/start"}, (
        "a real race is started in the browser"
    )


def test_race_action_error_is_shown(race_pages: RacePages) -> None:
    submit_rejected, race_factory = race_pages.submit_rejected, race_pages.race_factory
    race = race_factory.start("ada", "grace", "linus")
    race_factory.end(race, 1)
    race_factory.end(race, 2, checks=[BAD])
    race_factory.end(race, 3, state="failed", reason="crashed")
    submit_rejected("select", "illegal_move", "Cannot select", id=race.id, attempt="1")
    race_factory.settle(race)
    submit_rejected("select", "refused:checks_failed", id=race.id, attempt="2")
    submit_rejected(
        "select", "invalid", "The reason is required", id=race.id, attempt="2", overrule="1"
    )
    submit_rejected("select", "refused:attempt_failed", id=race.id, attempt="3")
    submit_rejected("select", "not_found:unknown_attempt", id=race.id, attempt="1.9")
    submit_rejected("select", "not_found", "No race has the id", id="rac_zzz", attempt="1")
    submit_rejected("select", "invalid", "The attempt is required", id=race.id)
    submit_rejected("graft", "invalid", "Select the files", id=race.id, attempt="2")
    submit_rejected("graft", "refused:no_winner", id=race.id, attempt="2", **{"select:made": "on"})
    submit_rejected("next", "conflict:round_open", id=race.id)
    submit_rejected(
        "next", "invalid", "Invalid number for the round", id=race.id, **{"from": "first"}
    )
    submit_rejected("retry", "conflict", "has passed", id=race.id, attempt="1")
    submit_rejected("cancel", "illegal_move", "Cannot cancel", id=race.id, attempt="1")
    submit_rejected("judge", "invalid", "has no judge", id=race.id)
    submit_rejected("finish", "conflict", "Select its winner or abandon it first", id=race.id)
    submit_rejected("abandon", "not_found", "has no round 7", id=race.id, round="7")
    submit_rejected("merge", "refused:no_winner", id=race.id)
    submit_rejected("start", "invalid", "The prompt is required", project=race_factory.project)
    submit_rejected("start", "invalid", "The project is required", prompt="x")
    race_pages.store.races.select(race.id, "1")
    submit_rejected("select", "illegal_move:already_decided", id=race.id, attempt="1")
    submit_rejected(
        "graft", "refused", "is the winner", id=race.id, attempt="1", **{"select:made": "on"}
    )
    submit_rejected("merge", "refused:unknown_branch", id=race.id, into="nowhere")


def test_slow_action_is_answered_at_once_and_continues(
    race_pages: RacePages, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    race = race_pages.create_passed_race("ada", "grace")
    race_pages.store.races.select(race.id, "1")
    started, release = threading.Event(), threading.Event()

    def graft(*_: object, **__: object) -> object:
        started.set()
        assert release.wait(30)
        raise Refused("it was refused late")

    monkeypatch.setattr("corral.services.races.winner.graft", graft)
    monkeypatch.setattr("corral.web.background.WAIT_SECONDS", 0.05)
    assert "Still running" in race_pages.submit_action(
        "graft", id=race.id, attempt="2", **{"select:grace": "on"}
    )
    assert started.wait(30)
    release.set()
    for thread in threading.enumerate():
        if thread.name == "page action":
            thread.join(30)
    assert "it was refused late" in caplog.text


def test_action_that_finishes_at_the_deadline_succeeds(
    race_pages: RacePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LateFuture(Future[Any]):
        """Finishes right after a limited wait for its result has timed out."""

        def result(self, timeout: float | None = None) -> Any:
            result = super().result()
            if timeout is not None:
                raise TimeoutError
            return result

    monkeypatch.setattr("corral.web.background.Future", LateFuture)
    race = race_pages.race_factory.start("ada", "grace", host="elsewhere")
    race_pages.submit_action("cancel", id=race.id, attempt="1.1", reason="late")
    assert race_pages.store.races.get(race.id).latest.attempts[0].reason == "late"


def test_redaction_in_a_background_action_is_reported(race_pages: RacePages) -> None:
    race = race_pages.race_factory.start("ada", "grace", host="elsewhere")
    text = race_pages.submit_action("cancel", id=race.id, attempt="1.1", reason=f"was {KEY}")
    attempt = race_pages.store.races.get(race.id).latest.attempts[0]
    assert attempt.reason == "was [redacted]"
    assert redaction_notice(["attempts.reason"]) in text


def test_only_allowed_actions_are_offered(race_pages: RacePages) -> None:
    """Every button of an attempt and a race, in every state."""
    race_factory, store = race_pages.race_factory, race_pages.store
    race = race_factory.start("ada", "grace", "linus")

    def list_offered() -> tuple[list[set[str]], set[str]]:
        current = store.races.get(race.id)
        decided = [item for item in current.rounds if item.winner_id]
        last = decided[-1] if decided else None
        verbs = [
            allowed_attempt_verbs(item, current.latest, last) for item in current.latest.attempts
        ]
        return verbs, allowed_race_verbs(current)

    assert list_offered() == ([{"cancel"}] * 3, {"abandon"})
    race_factory.end(race, 1)
    race_factory.end(race, 2, checks=[BAD])
    race_factory.end(race, 3, state="failed")
    attempts, _ = list_offered()
    assert attempts == [{"diff"}, {"retry", "diff"}, {"retry"}]
    race_factory.settle(race)
    attempts, verbs = list_offered()
    assert attempts == [{"select", "diff"}, {"overrule", "retry", "diff"}, {"retry"}]
    assert verbs == {"abandon"}
    store.races.select(race.id, "1")
    attempts, verbs = list_offered()
    assert attempts == [{"diff"}, {"overrule", "graft", "diff"}, set()]
    assert verbs == {"abandon", "finish", "next", "merge"}
    store.races.finish(race.id)
    assert list_offered()[1] == {"next", "merge"}
    race_factory.next(race, "ada")
    race_factory.end(race, 1, checks=[BAD])
    race_factory.settle(race)
    attempts, verbs = list_offered()
    assert attempts == [{"overrule", "retry", "graft", "diff"}]
    assert verbs == {"abandon", "merge"}


# -- content --------------------------------------------------------------------------------------


def test_race_shows_attempts_with_checks_cost_diff_rank_and_reason(race_pages: RacePages) -> None:
    race_factory = race_pages.race_factory
    race = race_factory.start("ada", "grace", "linus", checks=["pytest -q", "ruff check"])
    race_factory.end(race, 1, cost_micros=990_000)
    race_factory.end(race, 2, cost_micros=120_000)
    race_factory.end(race, 3, checks=[BAD])
    race_factory.judge(race, [[1], [2]], "clearer")
    race_factory.settle(race)
    text = unescape(re.sub(r"<[^>]+>", " ", race_pages.html(f"/races/{race.id}")))
    text = re.sub(r"\s+", " ", text)
    assert "Rank 1 score 0.9" in text
    assert "all checks passed; judges preferred it to 100% of the others" in text
    assert "judges preferred it to 0% of the others; cheapest" in text
    assert "Not ranked score 0.30 its check `pytest -q` exited with 1" in text
    assert "12 of 12 passed · exit status 0 · 2 s" in text
    assert "9 of 12 passed, 3 failed · exit status 1" in text
    assert "ruff check not run: an earlier check failed" in text
    assert "+3 \N{MINUS SIGN}1" in text
    assert "$0.99" in text
    assert "1.1, then 1.2" in text
    assert "input truncated" in text


def test_denied_tools_of_an_attempt_name_the_approving_options(race_pages: RacePages) -> None:
    race = race_pages.race_factory.start("ada", "grace")
    attempt = race_pages.race_factory.begin(race, 1)
    run = race_pages.store.runs.get(str(attempt.run_id))
    race_pages.store.runs.record_denials(run, {"Edit": 2, "Bash": 1})
    text = race_pages.html(f"/races/{race.id}")
    assert "3 denied (Edit ×2, Bash)" in text  # noqa: RUF001
    assert "To approve these, start the race with --yes edit --yes run" in text


def test_part_of_a_race_shows_the_requested_round(
    race_pages: RacePages,
) -> None:
    race = race_pages.create_passed_race("ada", "grace")
    race_pages.store.races.select(race.id, "2", reason="shorter")
    race_pages.race_factory.next(race, "linus")
    part = race_pages.client.get(f"/races/{race.id}", headers=htmx_headers("live")).text
    assert "<html" not in part
    assert "Round 2</h2>" in part
    assert "linus" in part
    assert "based on 1.2, winner of" in collapse_spaces(part)
    first = race_pages.client.get(f"/races/{race.id}?round=1", headers=htmx_headers("live")).text
    assert "Round 1</h2>" in first
    assert "won by 1.2, selected by user:tester: shorter" in unescape(collapse_spaces(first))
    assert f"/races/{race.id}/screens?round=1" in first
    assert "every 4s" in part
    assert "every 4s" not in first


def test_lineage_shows_continued_rounds_and_branches(race_pages: RacePages) -> None:
    race = race_pages.create_passed_race("ada", "grace")
    race_pages.store.races.select(race.id, "1")
    race_pages.race_factory.next(race, "linus")
    race_pages.race_factory.end(race, 1)
    race_pages.race_factory.settle(race)
    race_pages.store.races.select(race.id, "1")
    race_pages.race_factory.next(race, "ada", from_round=1)
    text = race_pages.html(f"/races/{race.id}")
    assert text.count('class="edge critical"') == 2
    assert text.count('id="box-rnd_') == 3
    assert text.count('class="winner"') == 2
    list_html = text[text.index("Show as a list") :]
    rows = re.findall(r"<td>([\d.]+|race base) <code", unescape(list_html))
    assert rows == ["race base", "1.1", "1.1"]


def test_race_list_shows_the_state_of_race_and_round(race_pages: RacePages) -> None:
    race = race_pages.create_passed_race("ada", "grace")
    race_pages.store.races.select(race.id, "1")
    row = re.search(rf'<tr id="{race.id}">.*?</tr>', race_pages.html("/races"), re.DOTALL)
    assert row is not None
    cells = re.findall(r"<td.*?</td>", row[0], re.DOTALL)
    assert "active" in cells[0], "it stays open until a person finishes it"
    assert "completed" in cells[3]


def test_agent_text_in_diffs_and_races_is_never_markup(race_pages: RacePages) -> None:
    race_factory = race_pages.race_factory
    race = race_factory.start("ada", prompt=HOSTILE, variations=[HOSTILE])
    race_factory.end(race, 1, {ODD_NAME: f"{HOSTILE}\n", "app.py": f"one\n{HOSTILE}\nthree"})
    race_factory.settle(race)
    race_pages.store.races.select(race.id, "1", reason=HOSTILE)
    for path in (f"/races/{race.id}", f"/races/{race.id}/diff", "/races", "/races/statistics"):
        text = race_pages.html(path)
        assert "<script>document" not in text, path
        assert "<img" not in text, path
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), path
    diff = race_pages.html(f"/races/{race.id}/diff")
    assert "no newline at end of file" in diff
    links = [unescape(link) for link in re.findall(r'href="([^"]+file=[^"]+)"', diff)]
    (odd_link,) = [link for link in links if "odd" in link]
    assert "<h2 id" in race_pages.html(odd_link)
    assert "&lt;b&gt;.txt" in race_pages.html(odd_link)


def test_attempts_are_compared_with_their_base_and_each_other(race_pages: RacePages) -> None:
    race = race_pages.create_passed_race("ada", "grace")
    single = race_pages.decoded_html(f"/races/{race.id}/diff?one=1.1&file=app.py")
    assert "Changes of attempt 1.1: 2 files" in single
    assert "<del>two</del>" in single
    assert "<ins>ada</ins>" in single
    assert "Graft" not in single
    both = race_pages.decoded_html(f"/races/{race.id}/diff?one=1.1&other=1.2&file=app.py")
    assert "Attempt 1.1 compared with 1.2: 3 files" in both
    assert "<del>ada</del>" in both
    assert "<ins>grace</ins>" in both
    race_pages.store.races.select(race.id, "1")
    with_winner = race_pages.html(f"/races/{race.id}/diff?one=1.1&other=1.2")
    assert "Graft selected files" in with_winner
    assert with_winner.count('form="graft-form"') == 3
    same = race_pages.html(f"/races/{race.id}/diff?one=1.1&other=1.1")
    assert "No differences." in same
    for path, fragment in (
        ("diff?one=1.9", "has no attempt"),
        ("diff?one=1.1&other=zz", "has no attempt"),
    ):
        answer = race_pages.client.get(f"/races/{race.id}/{path}")
        assert (answer.status_code, fragment in unescape(answer.text)) == (404, True), path
    text = unescape(race_pages.html(f"/races/{race.id}/diff?one=1.1&file=nowhere"))
    assert "nowhere" in text


def test_long_diff_is_truncated_with_a_note(
    race_pages: RacePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_diffs, "MAX_LINES", 50)
    monkeypatch.setattr(race_diffs, "MAX_FILES", 10)
    race = race_pages.race_factory.start("ada")
    many: dict[str, str | bytes] = {f"f{n:03}": "x\n" for n in range(30)}
    long = "".join(f"line {n}\n" for n in range(400)) + "y" * 5_000 + "\n"
    race_pages.race_factory.end(race, 1, many | {"a-long": long, "b-wide": "z" * 5_000 + "\n"})
    race_pages.race_factory.settle(race)
    text = race_pages.html(f"/races/{race.id}/diff?one=1.1")
    assert "The diff is truncated" in text
    assert text.count("<ins>") == 50
    assert "10 files are shown; 22 more changed." in text
    assert "(truncated)" in race_pages.html(f"/races/{race.id}/diff?one=1.1&file=b-wide")


def test_race_of_another_node_is_shown_and_its_diff_is_not(race_pages: RacePages) -> None:
    race = race_pages.race_factory.start("ada", host="elsewhere")
    race_pages.race_factory.end(race, 1)
    race_pages.race_factory.settle(race)
    assert "elsewhere" in race_pages.html(f"/races/{race.id}")
    assert "are on elsewhere" in race_pages.html(f"/races/{race.id}/diff")


def test_win_rates_are_shown_with_bounds_and_cost(race_pages: RacePages) -> None:
    for _ in range(3):
        race = race_pages.create_passed_race("ada", "grace")
        race_pages.store.races.select(race.id, "1")
    race = race_pages.create_passed_race("ada", "grace")
    race_pages.store.races.select(race.id, "2")
    text = re.sub(
        r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", race_pages.html("/races/statistics")))
    )
    assert "ada 4 4 3 75.0% 30.1\N{EN DASH}95.4% $0.48 $0.16" in text
    assert "grace 4 4 1 25.0% 4.6\N{EN DASH}69.9% $0.48 $0.48" in text
    plots = race_pages.html("/races/statistics?by=model")
    assert len(re.findall(r"<circle", plots)) == 2
    assert 'x1="30.06%" x2="95.44%"' in plots
    for path in ("/races/statistics?by=odd", "/races/statistics?days=5", "/races?state=odd"):
        assert race_pages.client.get(path).status_code == 400, path
    both = race_pages.client.get(f"/races?state=active&project={race_pages.race_factory.project}")
    assert "not by both" in both.text


def test_race_waiting_for_a_person_is_on_the_overview(race_pages: RacePages) -> None:
    race = race_pages.create_passed_race("ada", "grace")
    text = race_pages.decoded_html("/")
    assert "2 of 2 attempts passed; select the winner" in text
    assert f'href="/races/{race.id}"' in text
    race_pages.store.races.select(race.id, "1")
    assert "select the winner" not in race_pages.html("/")
    assert race_pages.client.get(f"/show/{race.id}").headers["location"] == f"/races/{race.id}"
    assert race_pages.client.get("/search", params={"q": race.id}).status_code == 303


def test_many_attempts_are_paginated_and_few_have_terminals(
    race_pages: RacePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    race_pages.store.settings.set("races.max_attempts", 20)
    race = race_pages.race_factory.start(*["ada"] * 12)
    for number in range(1, 13):
        race_pages.race_factory.begin(race, number)
    text = race_pages.html(f"/races/{race.id}")
    assert text.count('class="attempt row"') == 12
    assert text.count("data-run=") == MAX_SCREENS
    assert f"Terminals of the first {MAX_SCREENS} of" in text
    monkeypatch.setattr(races, "MAX_CARDS", 5)
    text = "".join(iter_pages(race_pages.client, f"/races/{race.id}"))
    seen = re.findall(r'class="attempt row" id="(att_[^"]+)"', text)
    assert seen == [attempt.id for attempt in race_pages.store.races.get(race.id).latest.attempts]
    assert race_pages.client.get(f"/races/{race.id}?after=x").status_code == 400


def test_missing_race_or_attempt_says_so(race_pages: RacePages) -> None:
    race = race_pages.race_factory.start("ada")
    for path in (
        "/races/rac_zzz",
        "/races/rac_zzz/diff",
        "/races/rac_zzz/screens",
        f"/races/{race.id}?round=7",
        f"/races/{race.id}?round=x",
        f"/races/{race.id}/screens?round=9",
    ):
        answer = race_pages.client.get(path)
        assert answer.status_code == 404, path
        assert "Traceback" not in answer.text


# -- output of attempts ---------------------------------------------------------------------------


def parse_events(lines: Iterator[str]) -> Iterator[tuple[str, str, str]]:
    """Return the events of a stream: name, run, text."""
    name = ""
    for line in lines:
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            run, _, data = line[5:].strip().partition(" ")
            yield name, run, b64decode(data).decode() if data else ""
            if name == "end_of_round":
                return


def test_terminals_of_a_round_share_one_stream(
    http_server: HttpServer, race_pages: RacePages, tmp_path: Path
) -> None:
    """The stream has runs with output and a run with deleted output, and ends with the round."""
    race = race_pages.create_passed_race("ada", "grace")
    runs = [attempt.run_id for attempt in race.latest.attempts]
    folder = tmp_path / "written"
    folder.mkdir()
    (folder / "output").write_bytes(b"I was here\n")
    with race_pages.store.transaction() as tx:
        from corral.adapters.processes import process
        from corral.domain.outputs import ops as outputs

        outputs.begin(tx, str(runs[0]), folder=str(folder), host=process.host())
    with race_pages.client.stream("GET", f"/races/{race.id}/screens") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [*parse_events(answer.iter_lines())]
    assert events[-1][0] == "end_of_round"
    first_events = [(name, text) for name, run, text in events if run == runs[0]]
    assert first_events[0] == ("begin", "")
    assert "I was here" in json.dumps(first_events)
    assert first_events[-1] == ("end", "")
    name, _, reason = [event for event in events if event[1] == runs[1]][-1]
    assert name == "end"
    assert runs[1] in reason
