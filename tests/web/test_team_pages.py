"""The pages of a team, as a program sees them: from the board to the notes."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest

from corral.adapters.providers.facts import UsageFact
from corral.domain.tasks.model import MOVES, TaskState
from corral.kernel.clock import HOUR
from corral.web.tasks import BOARD_COLUMNS, TASK_VERBS, list_task_actions
from corral.web.team_actions import TEAM_ACTIONS
from tests.support.http_server import HttpServer
from tests.support.page_objects import PageClient, as_part, iter_pages
from tests.support.run_factories import add_run
from tests.support.sample_store import HOSTILE

BAD = HOSTILE + "' onfocus=alert(1) \""


class Team(PageClient):
    """A project with two agents."""

    def __init__(self, served: HttpServer, folder: Path, client: httpx.Client) -> None:
        super().__init__(served, client)
        self.project = self.store.projects.register(folder).id
        for name in ("ada", "grace"):
            self.store.agents.create(name)

    def state(self, key: str) -> str:
        return str(self.store.tasks.get(key).state)

    def submitted(self, key: str) -> str:
        self.store.tasks.claim(self.project, "grace", key=key)
        return self.store.tasks.submit(key, "it is done", agent="grace").id


@pytest.fixture
def team(served: HttpServer, tmp_path: Path) -> Iterator[Team]:
    with served.client() as client:
        yield Team(served, tmp_path, client)


# -- what they do ---------------------------------------------------------------------------------


def test_every_action_of_a_team_does_what_its_button_says(team: Team) -> None:
    act, store, project = team.act, team.store, team.project

    act("tasks/add", project=project, key="a", title="First", files="src, docs")
    act("tasks/add", project=project, key="b", title="Then", needs="a", role="builder")
    found = store.tasks.get("b")
    assert (found.state, found.depends_on, found.role) == ("pending", ["a"], "builder")
    a = store.tasks.get("a").id
    act("tasks/move", id=a, verb="pause")
    assert team.state("a") == "paused"
    act("tasks/move", id=a, verb="resume")
    team.submitted("a")
    act("tasks/move", id=a, verb="reject", reason="not yet")
    assert (team.state("a"), store.tasks.get("a").reason) == ("ready", "not yet")
    team.submitted("a")
    act("tasks/move", id=a, verb="accept")
    assert (team.state("a"), team.state("b")) == ("done", "ready")
    act("tasks/move", id=a, verb="reopen", reason="it was not")
    store.tasks.claim(project, "ada", key="a")
    act("tasks/move", id=a, verb="reassign")
    assert (team.state("a"), team.state("b")) == ("ready", "pending")
    act("tasks/move", id=a, verb="cancel", reason="no")
    assert team.state("b") == "blocked"
    act("tasks/move", id=a, verb="skip")
    assert team.state("b") == "ready"

    question = store.questions.ask("Which?", options=["this", "that"], asker="agent:ada").id
    act("questions/answer", id=question, answer="that")
    assert store.questions.get(question).answer == "that"
    named = store.questions.ask("Who?", asker="agent:ada", answerers=["user:bob"]).id
    act("questions/answer", id=named, answer="me")
    assert store.questions.get(named).answered_by == "user:bob"
    decision = store.decisions.record("Go", confirm=True, author="agent:ada").id
    act("decisions/review", id=decision, verdict="reject", reason="too early")
    assert (store.decisions.get(decision).state, store.decisions.get(decision).reason) == (
        "rejected",
        "too early",
    )

    went = act("groups/create", name="crew", members="agent:ada, agent:grace", roles="builder")
    group = went.headers["HX-Redirect"].rpartition("/")[2]
    act("groups/post", id=group, text="good morning")
    assert [post.text for post in store.groups.read("crew", member="agent:ada").items] == [
        "good morning"
    ]
    act("groups/react", id=group, number="1", emoji="\N{THUMBS UP SIGN}")
    store.groups.post(group, "hello", author="agent:ada")
    act("groups/mark", id=group, number="2")
    act("groups/leave", id=group)
    act("groups/join", id=group)
    act("groups/archive", id=group)
    assert store.groups.get(group).state == "archived"
    direct = act("groups/send", to="agent:ada", text="for you alone").headers["HX-Redirect"]
    assert "for you alone" in team.client.get(direct).text
    act("groups/broadcast", text="tea is ready")

    lock = store.locks.acquire(project, "src/x.py", "ada")
    act("locks/revoke", id=lock.id, reason="it is urgent")
    assert store.locks.get(lock.id).state == "revoked"

    act("notes/add", text="Use tabs.", scope=f"project:{project}", category="style", key="indent")
    (note,) = store.notes.list(project=project).items
    assert (note.category, note.key) == ("style", "indent")
    act("notes/supersede", id=note.id, text="Use spaces.")
    (note,) = store.notes.list(project=project).items
    assert note.text == "Use spaces."
    act("notes/forget", id=note.id)
    act("notes/add", text="For all.", scope="everyone")
    assert [note.text for note in store.notes.list(all=True).items][:1] == ["For all."]
    assert team.done == {*TEAM_ACTIONS}


def test_an_error_of_a_team_s_action_is_a_sentence(team: Team) -> None:
    team.store.tasks.add(team.project, "a", "First")
    id = team.store.tasks.get("a").id
    team.refused("tasks/move", "Cannot accept", id=id, verb="accept")
    team.refused("tasks/move", "Invalid action", id=id, verb="claim")
    team.refused("tasks/move", "Invalid action", id=id, verb="_release_due")
    team.refused("tasks/move", "The reason is required", id=team.submitted("a"), verb="reject")
    team.refused("tasks/move", "There is no task", id="tsk_zzz", verb="skip")
    team.refused("tasks/add", "is required", project=team.project, key="", title="x")
    team.refused("tasks/add", "b", project=team.project, key="b", title="x", needs="nowhere")
    team.refused("groups/post", "No open group", id="nowhere", text="x")
    team.refused("groups/send", "mailbox", to="nobody", text="x")
    team.refused("groups/mark", "Invalid number", id="x", number="\N{SUPERSCRIPT TWO}")
    team.refused("notes/add", "Invalid scope", text="x", scope="planet:mars")
    team.refused("notes/add", "'A B'", text="x", category="A B")
    team.refused("locks/revoke", "lck_9", id="lck_9", reason="x")
    question = team.store.questions.ask(
        "Agents only?", asker="agent:ada", answerers=["agent:grace"]
    )
    team.refused("questions/answer", "only agent:grace may", id=question.id, answer="x")


# -- the board ------------------------------------------------------------------------------------


def test_a_card_offers_what_the_table_of_moves_allows_and_nothing_else() -> None:
    for state in TaskState:
        offered = {choice.verb for choice in list_task_actions(state)}
        assert offered == {*MOVES.allowed_from(state)} & {*TASK_VERBS}
        for choice in list_task_actions(state):
            to = MOVES[choice.verb].to
            assert any(
                to in column.states for column in BOARD_COLUMNS if column.name in choice.columns
            )
    assert {state for column in BOARD_COLUMNS for state in column.states} == {*TaskState}


def test_a_board_shows_few_of_many_and_leads_to_all(team: Team) -> None:
    team.store.tasks.declare(team.project, [{"key": f"t{n}", "title": f"T{n}"} for n in range(120)])
    text = team.client.get(f"/board?project={team.project}").text
    assert len(re.findall(r'class="task row"', text)) == 25
    path = unescape(re.findall(r'href="([^"]*state=ready[^"]*)"', text)[0])
    seen = re.findall(r'<tr id="(tsk_[^"]+)"', "".join(iter_pages(team.client, path)))
    assert len({*seen}) == len(seen) == 120


def test_a_graph_is_drawn_with_its_critical_path(team: Team) -> None:
    team.store.tasks.declare(
        team.project,
        [
            {"key": "a", "title": BAD},
            {"key": "b", "title": "B", "depends_on": ["a"]},
            {"key": "c", "title": "C", "depends_on": ["a", "b"]},
            {"key": "alone", "title": "Alone"},
        ],
    )
    text = team.client.get(f"/board/graph?project={team.project}").text
    assert text.count('class="edge') == 3
    assert text.count('class="edge critical"') == 2
    assert len(re.findall(r'class="node [a-z]+ critical"', text)) == 3
    part = team.client.get(f"/board/graph?project={team.project}", headers=as_part("live")).text
    assert part.startswith("<div") or part.lstrip().startswith("<")
    assert "<html" not in part
    assert "<svg" in part


def test_a_large_graph_is_drawn_in_part_and_says_so(team: Team) -> None:
    team.store.tasks.declare(
        team.project,
        [{"key": "hub", "title": "Hub"}]
        + [{"key": f"t{n}", "title": "T", "depends_on": ["hub"]} for n in range(400)],
    )
    text = team.client.get(f"/board/graph?project={team.project}").text
    assert "300 tasks are shown; 101" in text
    assert text.count('id="node-') == 300


def test_what_a_task_cost_is_told_of_the_run_that_did_it(team: Team) -> None:
    store = team.store
    run = add_run(store, "running", host="elsewhere", lease_until=store.now() + HOUR)
    for key in ("one", "two"):
        store.tasks.add(team.project, key, key)
    now = store.now()
    store.tasks.claim(team.project, "ada", key="one", run=run)
    store.charges.add(UsageFact(model="m", input=10, output=5, cost_micros=2_000_000), run_id=run)
    store.charges.add(
        UsageFact(model="m", input=1, output=1, cost_micros=9_000_000), run_id=run, at=now - HOUR
    )
    costs = {cost.key: cost for cost in store.insights.task_costs(team.project).items}
    assert [*costs] == ["one"]
    assert (costs["one"].cost_micros, costs["one"].tokens) == (2_000_000, 15)
    assert store.insights.task_cost("two") is None
    assert "$2.00" in team.client.get(f"/board/costs?project={team.project}").text
    assert "$2.00" in team.client.get(f"/board/{costs['one'].id}").text


# -- what needs somebody --------------------------------------------------------------------------


def test_the_overview_shows_what_people_are_asked_and_not_what_agents_are(team: Team) -> None:
    team.store.questions.ask("For people?", options=["yes"], asker="agent:ada")
    team.store.questions.ask("For grace?", asker="agent:ada", answerers=["agent:grace"])
    team.store.decisions.record("To be confirmed", confirm=True, author="agent:ada")
    text = team.client.get("/").text
    assert "For people?" in text
    assert "To be confirmed" in text
    assert "For grace?" not in text
    assert "For grace?" in team.client.get("/inbox").text
    assert "Nobody waits" not in team.client.get("/inbox").text


def test_what_was_submitted_is_accepted_or_rejected_from_the_overview(team: Team) -> None:
    for key in ("mine", "checked"):
        check = "true" if key == "checked" else None
        team.store.tasks.add(team.project, key, f"Task {key}", check=check)
        team.submitted(key)
    text = team.client.get("/").text
    assert "Task mine" in text
    assert "mine submitted by grace" in text
    assert "Task checked" not in text
    id = team.store.tasks.get("mine").id
    team.act("tasks/move", id=id, verb="accept")
    assert "Task mine" not in team.client.get("/").text


def test_a_moment_that_cannot_be_is_refused_in_words(team: Team) -> None:
    team.store.tasks.add(team.project, "a", "First")
    for asked in ("at=never", "time=yesterday", "time=9999-01-01T00:00:00", "at=0"):
        answer = team.client.get(f"/board/timeline?project={team.project}&{asked}")
        assert answer.status_code == 400, asked
    shown = team.client.get(f"/board/timeline?project={team.project}&at={team.store.now()}")
    assert "from the event log" in shown.text
    ahead = team.client.get(f"/board/timeline?project={team.project}&at={team.store.now() + 5}")
    assert ahead.status_code == 200, "the browser's page may be a moment ahead"


def test_several_decisions_are_judged_together_or_none_of_them(team: Team) -> None:
    record = team.store.decisions.record
    ids = [record(f"Go {n}", confirm=True, author="agent:ada").id for n in range(3)]
    text = team.client.get("/inbox").text
    assert all(f'name="pick:{id}"' in text for id in ids)
    team.refused("decisions/review", "Select", verdict="confirm")
    gone = team.store.decisions.reject(ids[0]).id
    picked = {f"pick:{id}": "on" for id in ids}
    team.refused("decisions/review", gone, verdict="confirm", **picked)
    assert team.store.decisions.get(ids[1]).state == "proposed"
    del picked[f"pick:{gone}"]
    said = team.act("decisions/review", verdict="confirm", reason="all fine", **picked)
    assert "2 decisions" in said.text
    for id in ids[1:]:
        found = team.store.decisions.get(id)
        assert (found.state, found.reason) == ("confirmed", "all fine")
    for name in ("bob", "eve"):
        record("Whose?", confirm=True, author="agent:ada", answerers=[f"user:{name}"])
    apart = {f"pick:{each.id}": "on" for each in team.store.decisions.list(proposed=True).items}
    team.refused("decisions/review", "different people", verdict="confirm", **apart)


def test_a_chat_is_paged_back_to_its_first_post(team: Team) -> None:
    group = team.store.groups.create("crew", members=["agent:ada"]).id
    for n in range(130):
        team.store.groups.post(group, f"post {n}", author="agent:ada")
    seen: list[int] = []
    for text in iter_pages(team.client, f"/groups/{group}"):
        seen = [int(n) for n in re.findall(r'id="post-(\d+)"', text)] + seen
    assert seen == list(range(1, 131))


def test_notes_are_found_by_their_words(team: Team) -> None:
    notes = team.store.notes
    notes.add("The tide is highest at noon.", project=team.project)
    notes.add("Ada likes tea.", agent="ada")
    get = team.client.get
    assert "highest" in get("/notes?q=tide").text
    assert "likes tea" not in get("/notes?q=tide").text
    assert "likes tea" in get("/notes?q=tea&scope=agent:ada").text
    assert "likes tea" not in get(f"/notes?scope=project:{team.project}").text
    assert "Invalid scope" in unescape(get("/notes?scope=mars").text)
    assert get("/notes", params={"q": BAD}).status_code == 200


def test_who_knows_a_file_is_asked_and_a_folder_without_git_is_said(team: Team) -> None:
    team.store.locks.touch(team.project, "src/x.py", "ada")
    text = team.client.get(f"/locks?project={team.project}&path=src").text
    assert "src/x.py" in text
    assert "agent:ada" in text
    text = team.client.get(f"/locks?project={team.project}&forecast=1").text
    assert "not in a git repository" in text
    part = team.client.get(f"/locks?project={team.project}&forecast=1", headers=as_part("live"))
    assert "git repository" not in part.text


def test_what_is_not_there_is_said_in_words(team: Team) -> None:
    for path in ("/board/tsk_zzz", "/inbox/qst_zzz", "/inbox/dec_zzz", "/groups/grp_zzz"):
        assert team.client.get(path).status_code == 404, path
    assert team.client.get("/notes/nte_zzz").status_code == 404
    for path in ("/board?project=nowhere", "/board?state=odd", "/inbox?view=odd"):
        assert team.client.get(path).status_code in (400, 404), path
