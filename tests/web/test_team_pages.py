"""The team pages over HTTP: board, graph, inbox, groups, locks and notes."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest

from corral.adapters.providers.facts import UsageFact
from corral.domain.tasks.model import TRANSITIONS, TaskState
from corral.kernel.clock import HOUR
from corral.kernel.redaction_policy import redaction_notice
from corral.web.tasks import BOARD_COLUMNS, TASK_VERBS, list_task_actions
from corral.web.team_actions import TEAM_ACTIONS
from tests.support.fake_keys import KEY
from tests.support.http_server import HttpServer
from tests.support.page_objects import PageClient, htmx_headers, iter_pages
from tests.support.run_factories import add_run
from tests.support.sample_store import HOSTILE

HOSTILE_TITLE = HOSTILE + "' onfocus=alert(1) \""


class TeamPages(PageClient):
    """Team pages with a project and two agents."""

    def __init__(self, http_server: HttpServer, folder: Path, client: httpx.Client) -> None:
        super().__init__(http_server, client)
        self.project = self.store.projects.register(folder).id
        for name in ("ada", "grace"):
            self.store.agents.create(name)

    def state(self, key: str) -> str:
        return str(self.store.tasks.get(key).state)

    def submit_task(self, key: str) -> str:
        self.store.tasks.claim(self.project, "grace", key=key)
        return self.store.tasks.submit(key, "it is done", agent="grace").id


@pytest.fixture
def team_pages(http_server: HttpServer, tmp_path: Path) -> Iterator[TeamPages]:
    with http_server.client() as client:
        yield TeamPages(http_server, tmp_path, client)


# -- actions --------------------------------------------------------------------------------------


def test_every_team_action_does_what_its_button_says(team_pages: TeamPages) -> None:
    submit, store, project = team_pages.submit, team_pages.store, team_pages.project

    submit("tasks/add", project=project, key="a", title="First", files="src, docs")
    submit("tasks/add", project=project, key="b", title="Then", depends_on="a", role="builder")
    task = store.tasks.get("b")
    assert (task.state, task.depends_on, task.role) == ("pending", ["a"], "builder")
    task_id = store.tasks.get("a").id
    submit("tasks/move", id=task_id, verb="pause")
    assert team_pages.state("a") == "paused"
    submit("tasks/move", id=task_id, verb="resume")
    team_pages.submit_task("a")
    submit("tasks/move", id=task_id, verb="reject", reason="not yet")
    assert (team_pages.state("a"), store.tasks.get("a").reason) == ("ready", "not yet")
    team_pages.submit_task("a")
    submit("tasks/move", id=task_id, verb="accept")
    assert (team_pages.state("a"), team_pages.state("b")) == ("done", "ready")
    submit("tasks/move", id=task_id, verb="reopen", reason="it was not")
    store.tasks.claim(project, "ada", key="a")
    submit("tasks/move", id=task_id, verb="reassign")
    assert (team_pages.state("a"), team_pages.state("b")) == ("ready", "pending")
    submit("tasks/move", id=task_id, verb="cancel", reason="no")
    assert team_pages.state("b") == "blocked"
    submit("tasks/move", id=task_id, verb="skip")
    assert team_pages.state("b") == "ready"

    question = store.questions.ask("Which?", options=["this", "that"], asker="agent:ada").id
    submit("questions/answer", id=question, answer="that")
    assert store.questions.get(question).answer == "that"
    addressed = store.questions.ask("Who?", asker="agent:ada", answerers=["user:bob"]).id
    submit("questions/answer", id=addressed, answer="me")
    assert store.questions.get(addressed).answered_by == "user:bob"
    decision = store.decisions.record("Go", confirm=True, author="agent:ada").id
    submit("decisions/review", id=decision, verdict="reject", reason="too early")
    assert (store.decisions.get(decision).state, store.decisions.get(decision).reason) == (
        "rejected",
        "too early",
    )

    response = submit(
        "groups/create", name="crew", members="agent:ada, agent:grace", roles="builder"
    )
    group = response.headers["HX-Redirect"].rpartition("/")[2]
    submit("groups/post", id=group, text="good morning")
    assert [post.text for post in store.groups.read("crew", member="agent:ada").items] == [
        "good morning"
    ]
    submit("groups/react", id=group, number="1", emoji="\N{THUMBS UP SIGN}")
    store.groups.post(group, "hello", author="agent:ada")
    submit("groups/mark", id=group, number="2")
    submit("groups/leave", id=group)
    submit("groups/join", id=group)
    submit("groups/archive", id=group)
    assert store.groups.get(group).state == "archived"
    direct = submit("groups/send", to="agent:ada", text="for you alone").headers["HX-Redirect"]
    assert "for you alone" in team_pages.client.get(direct).text
    submit("groups/broadcast", text="the build is green")

    lock = store.locks.acquire(project, "src/x.py", "ada")
    submit("locks/revoke", id=lock.id, reason="it is urgent")
    assert store.locks.get(lock.id).state == "revoked"

    submit(
        "notes/add", text="Use tabs.", scope=f"project:{project}", category="style", key="indent"
    )
    (note,) = store.notes.list(project=project).items
    assert (note.category, note.key) == ("style", "indent")
    submit("notes/supersede", id=note.id, text="Use spaces.")
    (note,) = store.notes.list(project=project).items
    assert note.text == "Use spaces."
    submit("notes/forget", id=note.id)
    submit("notes/add", text="For all.", scope="everyone")
    assert [note.text for note in store.notes.list(all=True).items][:1] == ["For all."]
    assert team_pages.done == {*TEAM_ACTIONS}


def test_team_action_error_is_shown(team_pages: TeamPages) -> None:
    team_pages.store.tasks.add(team_pages.project, "a", "First")
    id = team_pages.store.tasks.get("a").id
    team_pages.submit_rejected("tasks/move", "illegal_move", "Cannot accept", id=id, verb="accept")
    team_pages.submit_rejected("tasks/move", "invalid", "Invalid action", id=id, verb="claim")
    team_pages.submit_rejected(
        "tasks/move", "invalid", "Invalid action", id=id, verb="_release_due"
    )
    team_pages.submit_rejected(
        "tasks/move",
        "invalid",
        "The reason is required",
        id=team_pages.submit_task("a"),
        verb="reject",
    )
    team_pages.submit_rejected(
        "tasks/move", "not_found", "No task has the id", id="tsk_zzz", verb="skip"
    )
    team_pages.submit_rejected(
        "tasks/add", "invalid", "is required", project=team_pages.project, key="", title="x"
    )
    team_pages.submit_rejected(
        "tasks/add",
        "invalid",
        "b",
        project=team_pages.project,
        key="b",
        title="x",
        depends_on="nowhere",
    )
    team_pages.submit_rejected("groups/post", "not_found", "No open group", id="nowhere", text="x")
    team_pages.submit_rejected("groups/send", "invalid", "mailbox", to="unknown", text="x")
    team_pages.submit_rejected(
        "groups/mark", "invalid", "Invalid number", id="x", number="\N{SUPERSCRIPT TWO}"
    )
    team_pages.submit_rejected("notes/add", "invalid:unknown_scope", text="x", scope="planet:mars")
    team_pages.submit_rejected("notes/add", "invalid", "'A B'", text="x", category="A B")
    team_pages.submit_rejected("locks/revoke", "not_found", "lck_9", id="lck_9", reason="x")
    question = team_pages.store.questions.ask(
        "Agents only?", asker="agent:ada", answerers=["agent:grace"]
    )
    team_pages.submit_rejected(
        "questions/answer", "refused:not_an_answerer", id=question.id, answer="x"
    )


def test_redaction_is_reported_instead_of_a_redirect(team_pages: TeamPages) -> None:
    response = team_pages.submit("groups/send", to="agent:grace", text=f"use {KEY}")
    (group,) = team_pages.store.groups.list().items
    assert "HX-Redirect" not in response.headers
    assert redaction_notice(["posts.text"]) in unescape(response.text)
    assert f'href="/groups/{group.id}"' in response.text


# -- the board ------------------------------------------------------------------------------------


def test_card_offers_only_the_allowed_transitions() -> None:
    for state in TaskState:
        offered = {choice.verb for choice in list_task_actions(state)}
        assert offered == {*TRANSITIONS.allowed_from(state)} & {*TASK_VERBS}
        for choice in list_task_actions(state):
            to = TRANSITIONS[choice.verb].to
            assert any(
                to in column.states for column in BOARD_COLUMNS if column.name in choice.columns
            )
    assert {state for column in BOARD_COLUMNS for state in column.states} == {*TaskState}


def test_board_shows_some_cards_and_links_to_all(team_pages: TeamPages) -> None:
    team_pages.store.tasks.declare(
        team_pages.project, [{"key": f"t{n}", "title": f"T{n}"} for n in range(120)]
    )
    text = team_pages.client.get(f"/board?project={team_pages.project}").text
    assert len(re.findall(r'class="task row"', text)) == 25
    path = unescape(re.findall(r'href="([^"]*state=ready[^"]*)"', text)[0])
    seen = re.findall(r'<tr id="(tsk_[^"]+)"', "".join(iter_pages(team_pages.client, path)))
    assert len({*seen}) == len(seen) == 120


def test_graph_is_drawn_with_its_critical_path(team_pages: TeamPages) -> None:
    team_pages.store.tasks.declare(
        team_pages.project,
        [
            {"key": "a", "title": HOSTILE_TITLE},
            {"key": "b", "title": "B", "depends_on": ["a"]},
            {"key": "c", "title": "C", "depends_on": ["a", "b"]},
            {"key": "alone", "title": "Alone"},
        ],
    )
    text = team_pages.client.get(f"/board/graph?project={team_pages.project}").text
    assert text.count('class="edge') == 3
    assert text.count('class="edge critical"') == 2
    assert len(re.findall(r'class="node [a-z]+ critical"', text)) == 3
    part = team_pages.client.get(
        f"/board/graph?project={team_pages.project}", headers=htmx_headers("live")
    ).text
    assert part.startswith("<div") or part.lstrip().startswith("<")
    assert "<html" not in part
    assert "<svg" in part


def test_large_graph_is_drawn_in_part_with_a_note(team_pages: TeamPages) -> None:
    team_pages.store.tasks.declare(
        team_pages.project,
        [{"key": "hub", "title": "Hub"}]
        + [{"key": f"t{n}", "title": "T", "depends_on": ["hub"]} for n in range(400)],
    )
    text = team_pages.client.get(f"/board/graph?project={team_pages.project}").text
    assert "300 tasks are shown; 101" in text
    assert text.count('id="node-') == 300


def test_cost_of_a_task_is_that_of_its_run(team_pages: TeamPages) -> None:
    store = team_pages.store
    run = add_run(store, "running", host="elsewhere", lease_until=store.now() + HOUR)
    for key in ("one", "two"):
        store.tasks.add(team_pages.project, key, key)
    now = store.now()
    store.tasks.claim(team_pages.project, "ada", key="one", run=run)
    store.charges.add(UsageFact(model="m", input=10, output=5, cost_micros=2_000_000), run_id=run)
    store.charges.add(
        UsageFact(model="m", input=1, output=1, cost_micros=9_000_000), run_id=run, at=now - HOUR
    )
    costs = {cost.key: cost for cost in store.insights.task_costs(team_pages.project).items}
    assert [*costs] == ["one"]
    assert (costs["one"].cost_micros, costs["one"].tokens) == (2_000_000, 15)
    assert store.insights.task_cost("two") is None
    assert "$2.00" in team_pages.client.get(f"/board/costs?project={team_pages.project}").text
    assert "$2.00" in team_pages.client.get(f"/board/{costs['one'].id}").text


# -- pending decisions ----------------------------------------------------------------------------


def test_overview_shows_questions_for_people_only(team_pages: TeamPages) -> None:
    team_pages.store.questions.ask("For people?", options=["yes"], asker="agent:ada")
    team_pages.store.questions.ask("For grace?", asker="agent:ada", answerers=["agent:grace"])
    team_pages.store.decisions.record("To be confirmed", confirm=True, author="agent:ada")
    text = team_pages.client.get("/").text
    assert "For people?" in text
    assert "To be confirmed" in text
    assert "For grace?" not in text
    assert "For grace?" in team_pages.client.get("/inbox").text
    assert "No open questions." not in team_pages.client.get("/inbox").text


def test_submitted_task_is_reviewed_from_the_overview(team_pages: TeamPages) -> None:
    for key in ("mine", "checked"):
        check = "true" if key == "checked" else None
        team_pages.store.tasks.add(team_pages.project, key, f"Task {key}", check=check)
        team_pages.submit_task(key)
    text = team_pages.decoded_html("/")
    assert "Task mine" in text
    assert "mine submitted by grace" in text
    assert "Task checked" not in text
    id = team_pages.store.tasks.get("mine").id
    team_pages.submit("tasks/move", id=id, verb="accept")
    assert "Task mine" not in team_pages.client.get("/").text


def test_impossible_time_is_rejected(team_pages: TeamPages) -> None:
    team_pages.store.tasks.add(team_pages.project, "a", "First")
    for query in ("at=never", "time=yesterday", "time=9999-01-01T00:00:00", "at=0"):
        answer = team_pages.client.get(f"/board/timeline?project={team_pages.project}&{query}")
        assert answer.status_code == 400, query
    response = team_pages.client.get(
        f"/board/timeline?project={team_pages.project}&at={team_pages.store.now()}"
    )
    assert "from the event log" in response.text
    ahead = team_pages.client.get(
        f"/board/timeline?project={team_pages.project}&at={team_pages.store.now() + 5}"
    )
    assert ahead.status_code == 200, "the browser's clock may be slightly ahead"


def test_several_decisions_are_reviewed_all_or_none(team_pages: TeamPages) -> None:
    record = team_pages.store.decisions.record
    ids = [record(f"Go {n}", confirm=True, author="agent:ada").id for n in range(3)]
    text = team_pages.client.get("/inbox").text
    assert all(f'name="select:{id}"' in text for id in ids)
    team_pages.submit_rejected("decisions/review", "invalid", "Select", verdict="confirm")
    rejected = team_pages.store.decisions.reject(ids[0]).id
    picked = {f"select:{id}": "on" for id in ids}
    team_pages.submit_rejected(
        "decisions/review", "conflict:too_late", rejected, verdict="confirm", **picked
    )
    assert team_pages.store.decisions.get(ids[1]).state == "proposed"
    del picked[f"select:{rejected}"]
    result = team_pages.submit("decisions/review", verdict="confirm", reason="all fine", **picked)
    assert "2 decisions" in result.text
    for id in ids[1:]:
        decision = team_pages.store.decisions.get(id)
        assert (decision.state, decision.reason) == ("confirmed", "all fine")
    for name in ("bob", "eve"):
        record("Whose?", confirm=True, author="agent:ada", answerers=[f"user:{name}"])
    mixed = {
        f"select:{item.id}": "on" for item in team_pages.store.decisions.list(proposed=True).items
    }
    team_pages.submit_rejected(
        "decisions/review", "invalid", "different people", verdict="confirm", **mixed
    )


def test_group_is_paginated_back_to_its_first_post(team_pages: TeamPages) -> None:
    group = team_pages.store.groups.create("crew", members=["agent:ada"]).id
    for n in range(130):
        team_pages.store.groups.post(group, f"post {n}", author="agent:ada")
    seen: list[int] = []
    for text in iter_pages(team_pages.client, f"/groups/{group}"):
        seen = [int(n) for n in re.findall(r'id="post-(\d+)"', text)] + seen
    assert seen == list(range(1, 131))


def test_notes_are_found_by_their_text(team_pages: TeamPages) -> None:
    notes = team_pages.store.notes
    notes.add("The tide is highest at noon.", project=team_pages.project)
    notes.add("Ada likes tea.", agent="ada")
    get = team_pages.client.get
    assert "highest" in get("/notes?q=tide").text
    assert "likes tea" not in get("/notes?q=tide").text
    assert "likes tea" in get("/notes?q=tea&scope=agent:ada").text
    assert "likes tea" not in get(f"/notes?scope=project:{team_pages.project}").text
    assert "Invalid scope" in unescape(get("/notes?scope=mars").text)
    assert get("/notes", params={"q": HOSTILE_TITLE}).status_code == 200


def test_file_experts_are_listed_and_a_folder_without_git_is_reported(
    team_pages: TeamPages,
) -> None:
    team_pages.store.locks.touch(team_pages.project, "src/x.py", "ada")
    text = team_pages.client.get(f"/locks?project={team_pages.project}&path=src").text
    assert "src/x.py" in text
    assert "agent:ada" in text
    text = team_pages.client.get(f"/locks?project={team_pages.project}&forecast=1").text
    assert "not in a git repository" in text
    part = team_pages.client.get(
        f"/locks?project={team_pages.project}&forecast=1", headers=htmx_headers("live")
    )
    assert "git repository" not in part.text


def test_missing_record_says_so(team_pages: TeamPages) -> None:
    for path in ("/board/tsk_zzz", "/inbox/qst_zzz", "/inbox/dec_zzz", "/groups/grp_zzz"):
        assert team_pages.client.get(path).status_code == 404, path
    assert team_pages.client.get("/notes/nte_zzz").status_code == 404
    for path in ("/board?project=nowhere", "/board?state=odd", "/inbox?view=odd"):
        assert team_pages.client.get(path).status_code in (400, 404), path
