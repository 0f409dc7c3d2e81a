"""The dashboard pages over HTTP: content, permissions, errors, actions and formats."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corral.api import Corral
from corral.db.stateful_table import StatefulTable
from corral.kernel.clock import DAY, HOUR, MINUTE, ManualClock
from corral.kernel.exit_status import ExitStatus
from corral.services.store.declarations import find_declarations
from corral.web import render
from corral.web.actions import ACTIONS
from corral.web.channel_actions import CHANNEL_ACTIONS
from corral.web.chat import CHAT_ACTIONS
from corral.web.events import EVENT_KINDS
from corral.web.navigation import NAVIGATION
from corral.web.race_actions import RACE_ACTIONS
from corral.web.team_actions import TEAM_ACTIONS
from tests.support.http_server import HttpServer
from tests.support.page_objects import PageClient, htmx_headers, iter_pages
from tests.support.run_factories import add_run, queued, running
from tests.support.sample_store import HOSTILE, SampleStore
from tests.support.task_factories import fail, project_with
from tests.web.conftest import SampleSite

PAGES = {link.path for group in NAVIGATION for link in group.links} | {
    "/costs?by=agent&days=7",
    "/costs?by=model&days=90",
    "/costs/outcomes?by=day&days=30",
    "/events?kind=letter",
    "/mail?state=all",
    "/mail?state=dead",
    "/mail?state=unconfirmed",
    "/mail?mailbox=agent%3Aada&state=all",
    "/runs?state=live",
    "/runs?state=failed",
    "/runs?new=1",
    "/search?q=login",
    "/search?q=ada&kind=turn",
    "/sessions?all=1",
    "/schedules?all=1",
    "/projects?archived=1",
    "/agents?retired=1",
    "/board/graph",
    "/board/timeline",
    "/board/costs",
    "/board?state=ready",
    "/inbox?view=questions",
    "/inbox?view=decisions",
    "/groups?all=1",
    "/locks?all=1",
    "/notes?all=1",
    "/notes?q=tide",
    "/notes?q=tide&scope=everyone",
    "/notes?category=gotcha",
    "/messaging/approvals",
    "/messaging/dead",
    "/messaging/dead?state=unconfirmed",
    "/messaging/dead?state=refused",
    "/messaging/wirings",
    "/messaging/channels",
    "/messaging/channels?all=1",
    "/races?state=active",
    "/races/statistics",
    "/races/statistics?by=model&days=7",
    "/races/statistics?by=variation",
}


def chat_paths(sample: SampleStore) -> Iterator[str]:
    store = sample.store
    yield f"/chat/{sample.talk.id}"
    for channel in store.channels.list().items:
        yield f"/messaging/channels/{channel.id}"
    for message in store.messages.list().items:
        yield f"/messaging/messages/{message.id}"
    for place in (sample.talk, sample.room):
        yield f"/messaging?place={place.id}"
        yield f"/messaging/wirings?place={place.id}&text=deploy&stranger=1"
        for conversation in store.chat.conversations(place.id):
            yield f"/messaging?session={conversation.session_id}"


def record_paths(sample: SampleStore) -> Iterator[str]:
    """Yield the path of the page of at least one record of each kind."""
    store = sample.store
    for run in store.runs.list(limit=3).items:
        yield f"/runs/{run.id}"
    yield f"/runs?project={sample.projects[0].id}"
    yield f"/projects/{sample.projects[0].id}"
    yield f"/agents/{sample.agents[0].id}"
    yield f"/sessions/{sample.session.id}"
    yield f"/sessions/{sample.session.id}?before=5"
    yield f"/events?subject={sample.session.id}"
    for letter in store.mail.dead().items:
        yield f"/mail/{letter.id}"
    project = sample.projects[0].id
    for view in ("", "/graph", "/timeline", "/costs"):
        yield f"/board{view}?project={project}"
    for task in sample.tasks:
        yield f"/board/{task.id}"
    for item in (*store.questions.list().items, *store.decisions.list().items):
        yield f"/inbox/{item.id}"
    for group in store.groups.list().items:
        yield f"/groups/{group.id}"
    for race in store.races.list().items:
        yield f"/races/{race.id}"
        yield f"/races/{race.id}/diff"
        yield f"/races?project={race.project_id}"
    race = sample.race
    yield from (f"/races/{race.id}?round={number}" for number in (1, 2, 3))
    for query in ("one=1.2", "one=1.2&file=fast.py", "one=1.3", "one=1.1&other=1.2"):
        yield f"/races/{race.id}/diff?{query}"
    yield f"/races/{race.id}/diff?one=1.2&other=1.1&file=x.bin"
    yield from chat_paths(sample)
    yield f"/notes/{sample.note.id}"
    yield f"/notes?scope=project:{project}&q=script"
    yield f"/locks?project={project}&path=src&forecast=1"


@pytest.fixture(scope="module")
def client(sample_site: SampleSite) -> Iterator[httpx.Client]:
    with sample_site.http_server.client() as client:
        yield client


# -- content --------------------------------------------------------------------------------------


def test_every_page_is_complete_html(sample_site: SampleSite, client: httpx.Client) -> None:
    assert_pages(sample_site, client)


def test_every_page_is_complete_html_on_postgresql(sample_site_on_postgresql: SampleSite) -> None:
    with sample_site_on_postgresql.http_server.client() as client:
        assert_pages(sample_site_on_postgresql, client)


def assert_pages(sample_site: SampleSite, client: httpx.Client) -> None:
    for path in [*sorted(PAGES), *record_paths(sample_site.sample)]:
        page = client.get(path)
        assert page.status_code == 200, f"{path}: {page.text[:500]}"
        if "outcomes" not in path:
            assert page.text.startswith("<!doctype html>"), path
            assert page.text.count("<h1>") == 1, path
            assert page.text.count("<main") == 1, path
            ids = re.findall(r'\sid="([^"]+)"', page.text)
            assert len(ids) == len({*ids}), f"{path}: {[i for i in ids if ids.count(i) > 1]}"


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
def test_every_page_of_an_empty_store_is_complete_html(http_server: HttpServer) -> None:
    with http_server.client() as client:
        for path in sorted(PAGES):
            page = client.get(path)
            assert page.status_code == 200, f"{path}: {page.text[:500]}"
        assert "Nothing needs your attention." in client.get("/").text


def test_external_text_is_never_markup_or_terminal_control(
    sample_site: SampleSite, client: httpx.Client
) -> None:
    count = 0
    for path in [*sorted(PAGES), *record_paths(sample_site.sample)]:
        text = client.get(path).text
        assert "<script>document" not in text, path
        assert "<img" not in text, path
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), path
        count += "&lt;script&gt;document.title" in text
    assert count > 3


def test_names_of_every_kind_may_hold_anything(http_server: HttpServer, tmp_path: object) -> None:
    store = http_server.store
    hostile = HOSTILE + "' onfocus=alert(1) \""
    run = add_run(
        store, "failed", name=hostile, title=hostile, command=hostile, reason=hostile, model=hostile
    )
    SampleStore.launch(StoreHolder(store), run)
    store.sessions.open(title=hostile)
    store.secrets.set("x", f"env:{hostile}"[:100])
    store.mail.put("agent:ada", {hostile: hostile}, key=hostile, sender="agent:x")
    store.schedules.create("agent:ada", hostile, every_ms=HOUR, name=hostile)
    store.outputs.log(run, "warn", hostile)
    session = store.sessions.list().items[0]
    store.sessions.append(
        session.id,
        "assistant",
        hostile,
        tool_name=hostile,
        tool_call_id="c",
        arguments={"a": hostile},
    )
    (letter,) = store.mail.list().items
    pages = ["/", "/runs", f"/runs/{run}", "/sessions", f"/sessions/{session.id}", "/mail"]
    pages += [f"/mail/{letter.id}", "/schedules", "/settings", "/events", "/search?q=" + "script"]
    with http_server.client() as client:
        for path in pages:
            page = client.get(path)
            assert page.status_code == 200, path
            assert "<script>document" not in page.text, path
            assert "<img" not in page.text, path
            assert "\x1b" not in page.text, path
            for tag in re.findall(r"<[a-z][^>]*>", page.text):
                assert "onfocus" not in re.sub(r'"[^"]*"', '""', tag), f"{path}: {tag}"
        for query in (hostile, "' OR 1=1 --", '"', "\u202e", "x" * 5_000):
            assert client.get("/search", params={"q": query}).status_code == 200


class StoreHolder:
    def __init__(self, store: Corral) -> None:
        self.store = store


def test_part_of_a_page_is_fetched_alone(client: httpx.Client) -> None:
    part = client.get("/", headers=htmx_headers("live")).text
    assert "<html" not in part
    assert "Needs attention" in part
    page = client.get("/").text
    assert part.strip()[:200] in page
    run = client.get("/runs").text
    path = re.search(r'href="(/runs/run_[^"]+)"', run)
    assert path is not None
    facts = client.get(path[1], headers=htmx_headers("facts")).text
    assert "Directory" in facts
    assert "terminal" not in facts


def test_long_lists_are_paginated_to_their_end(http_server: HttpServer) -> None:
    ids = [add_run(http_server.store, "completed", name=f"r{n}") for n in range(120)]
    with http_server.client() as client:
        text = "".join(iter_pages(client, "/runs"))
    assert re.findall(r'<tr id="(run_[^"]+)"', text) == ids[::-1]


def test_event_log_is_paginated_to_its_start(http_server: HttpServer) -> None:
    letters = [http_server.store.mail.put("agent:ada", n).id for n in range(230)]
    with http_server.client() as client:
        text = "".join(iter_pages(client, "/events?kind=letter"))
    assert re.findall(r'href="/show/(let_\d+)"', text) == letters[::-1]


def test_queued_run_has_not_started_and_says_what_it_waits_for(http_server: HttpServer) -> None:
    run = queued(http_server.store, host=None, labels=["gpu", "big"])
    with http_server.client() as client:
        row = client.get("/runs").text.partition(f'<tr id="{run.id}">')[2].partition("</tr>")[0]
        page = client.get(f"/runs/{run.id}").text
    assert f'data-label="started"><span class="muted">{render.UNKNOWN}</span>' in row
    assert "a slot on any node with big, gpu" in page
    assert f"<dt>Input tokens</dt><dd>{render.UNKNOWN}</dd>" in page, (
        "an unknown value is not shown as zero"
    )


def test_letter_with_an_expired_claim_has_no_owner(
    http_server: HttpServer, clock: ManualClock
) -> None:
    http_server.store.mail.put("agent:ada", "hello")
    http_server.store.mail.claim("agent:ada", owner="ada", lease_ms=HOUR)
    with http_server.client() as client:
        assert "claimed by ada" in client.get("/mail").text
        clock.advance(2 * HOUR)
        assert "claimed by" not in client.get("/mail").text


def test_session_is_paginated_back_to_its_first_turn(http_server: HttpServer) -> None:
    session = http_server.store.sessions.open().id
    for n in range(250):
        http_server.store.sessions.append(session, "user", f"turn {n}")
    seen: list[int] = []
    earlier = r'href="([^"]+before=\d+[^"]*)">Earlier'
    with http_server.client() as client:
        for text in iter_pages(client, f"/sessions/{session}", earlier):
            seen = [int(n) for n in re.findall(r'id="turn-(\d+)"', text)] + seen
    assert seen == list(range(1, 251))


def test_id_redirects_to_its_page(sample_site: SampleSite, client: httpx.Client) -> None:
    run = sample_site.store.runs.list(limit=1).items[0]
    for id in (run.id, sample_site.sample.session.id, sample_site.store.mail.dead().items[0].id):
        response = client.get("/search", params={"q": id})
        assert response.status_code == 303
        assert client.get(response.headers["location"]).status_code == 200
    assert client.get(f"/show/{run.id}").headers["location"] == f"/runs/{run.id}"
    assert client.get("/show/nonsense").status_code == 404
    assert client.get("/search", params={"q": "run_zzzzz"}).status_code == 200


def test_filter_knows_every_event_kind() -> None:
    results = {table.transitions.kind for table in find_declarations(StatefulTable).values()}
    assert results <= {*EVENT_KINDS}, results - {*EVENT_KINDS}


# -- errors ---------------------------------------------------------------------------------------


def test_missing_page_says_so(client: httpx.Client) -> None:
    for path in ("/runs/run_zzz", "/nothing", "/mail/let_999999", "/agents/unknown", "/static/x"):
        page = client.get(path)
        assert page.status_code == 404, path
        assert "Not found" in page.text, path
        assert "Traceback" not in page.text
    for path in (
        "/runs?state=odd",
        "/runs?after=zz",
        "/costs?days=5",
        "/costs?by=odd",
        "/events?before=x",
        "/search?q=a&kind=odd",
        "/static/../pages.py",
    ):
        page = client.get(path)
        assert page.status_code in (400, 404), path
        assert "Traceback" not in page.text


@pytest.mark.parametrize(
    "path",
    ["/static/%2e%2e/pages.py", "/static/..%2fpages.py", "/static/vendor/../../rendering.py"],
)
def test_path_traversal_is_404(http_server: HttpServer, path: str) -> None:
    with http_server.client() as client:
        request = client.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=path.encode())
        page = client.send(request)
    assert page.status_code in (400, 404)
    assert "Route(" not in page.text


def test_page_without_a_token_shows_only_how_to_log_in(sample_site: SampleSite) -> None:
    with sample_site.http_server.anonymous_client() as client:
        for path in ("/", "/runs", "/mail", "/runs/run_1/terminal"):
            page = client.get(path)
            assert page.status_code == 401
            assert "corral up" in page.text
            assert "harbour" not in page.text
        # The error page has the style sheets, which are public.
        assert client.get(render.asset("corral.css")).status_code == 200


def test_read_only_token_sees_no_button_and_is_rejected(sample_site: SampleSite) -> None:
    token = sample_site.store.tokens.create("reader", scope="read").value
    run = sample_site.store.runs.list(limit=1).items[0]
    with sample_site.http_server.client(token) as client:
        for path in [*sorted(PAGES), *record_paths(sample_site.sample)]:
            text = client.get(path).text
            assert "/do/" not in text, path
            assert "data-opens=" not in text.replace('data-opens="keys"', ""), path
        response = client.post("/do/runs/delete", data={"id": run.id}, headers=htmx_headers("x"))
        assert response.status_code == 403
        assert "read-only" in response.text
        assert "<html" not in response.text
    assert sample_site.store.runs.get(run.id).id == run.id


def test_request_with_foreign_origin_cannot_act(
    sample_site: SampleSite, client: httpx.Client
) -> None:
    run = sample_site.store.runs.list(limit=1).items[0]
    answer = client.post(
        "/do/runs/delete", data={"id": run.id}, headers={"Origin": "https://elsewhere.example"}
    )
    assert answer.status_code == 403
    assert sample_site.store.runs.get(run.id).id == run.id


def test_action_error_is_shown_beside_its_form(http_server: HttpServer) -> None:
    with http_server.client() as client:
        pages = PageClient(http_server, client)
        pages.submit_rejected("runs/stop", "not_found", "No run has the id", id="run_zzz")
        pages.submit_rejected("runs/stop", "invalid", "is required")
        pages.submit_rejected("mail/resend", "not_found", "No letter has the id", id="let_1")
        pages.submit_rejected(
            "mail/put", "invalid", "Invalid mailbox", mailbox="nonsense", body="x"
        )
        pages.submit_rejected(
            "schedules/create", "invalid", "duration", mailbox="agent:a", body="x", rule="soon"
        )
        pages.submit_rejected(
            "settings/set", "invalid", "duration", name="mail.retention_ms", value="long"
        )
        pages.submit_rejected("settings/set", "invalid:unknown_setting", name="no.such", value="1")
        pages.submit_rejected("budgets/set", "invalid", "'much'", scope="all", limit="much")
        pages.submit_rejected("nothing/here", "invalid", "Unknown action")
        fragment = client.post("/do/runs/stop", headers=htmx_headers("x"))
        assert "HX-Retarget" not in fragment.headers
        assert client.post("/do/mail/put", content=b"\xff=\xfe").status_code == 400
        assert client.post("/do/mail/put", content=b"a=" + b"x" * 2_000_000).status_code == 400
        assert client.get("/do/mail/put").status_code == 405


# -- actions --------------------------------------------------------------------------------------


def test_every_action_does_what_its_button_says(http_server: HttpServer, tmp_path: object) -> None:
    """One pass through all general actions; chat, team and race actions have their own files."""
    store = http_server.store
    done: set[str] = set()
    with http_server.client() as client:

        def submit(action: str, **fields: str) -> httpx.Response:
            answer = client.post(f"/do/{action}", data=fields, headers=htmx_headers("x"))
            assert answer.status_code == 200, f"{action}: {answer.text}"
            assert "HX-Redirect" in answer.headers or answer.headers["HX-Trigger"] == "corral:done"
            done.add(action)
            return answer

        project = store.projects.register(str(tmp_path))
        response = submit(
            "runs/start",
            prompt="say hi",
            agent="scripted",
            project=project.id,
            budget="2",
            timeout="5m",
        )
        run = store.runs.get(response.headers["HX-Redirect"].rpartition("/")[2])
        launch = store.runs.get_launch(run.id)
        assert (launch.prompt, launch.budget_micros, launch.timeout_ms) == (
            "say hi",
            2_000_000,
            5 * MINUTE,
        )
        submit("runs/stop", id=run.id)
        assert store.runs.get(run.id).state == "cancelled"
        submit("runs/resume", id=run.id, prompt="go on")
        resumed = store.runs.list(limit=1).items[0]
        assert resumed.session_id == run.session_id
        running = add_run(
            store,
            "running",
            session_id=run.session_id,
            host="elsewhere",
            lease_until=store.now() + HOUR,
        )
        submit("runs/send", id=running, text="hello")
        assert [letter.body for letter in store.mail.list().items] == ["hello"]
        submit("runs/delete", id=run.id)
        submit("sessions/close", id=str(run.session_id))
        submit("sessions/reopen", id=str(run.session_id))

        submit("mail/put", mailbox="agent:ada", body="look")
        letter = store.mail.list(mailbox="agent:ada").items[0]
        submit("mail/drop", id=letter.id, reason="a mistake")
        assert store.mail.get(letter.id).state == "refused"
        submit("mail/resend", id=letter.id)
        (claimed,) = store.mail.claim("agent:ada", owner="o")
        store.mail.begin_delivery(claimed)
        submit("mail/resolve", id=letter.id, arrived="yes")
        assert store.mail.get(letter.id).state == "done"

        submit("schedules/create", mailbox="agent:ada", body="x", rule="10m", name="often")
        submit(
            "schedules/create",
            mailbox="agent:ada",
            body="x",
            rule="0 9 * * 1-5",
            time_zone="Europe/Berlin",
        )
        often = next(s for s in store.schedules.list().items if s.name == "often")
        for verb in ("run", "pause", "resume", "delete"):
            submit(f"schedules/{verb}", id=often.id)
        assert store.schedules.get(often.id).state == "cancelled"
        timer = store.timers.set("agent:ada", "x", delay_ms=HOUR)
        submit("timers/cancel", id=timer.id)

        submit("projects/rename", id=project.id, name="other")
        submit("projects/archive", id=project.id)
        result = store.projects.get(project.id)
        assert (result.name, result.state) == ("other", "archived")

        agent = store.agents.create("ada", instructions="a")
        submit("agents/edit", id=agent.id, role="reviewer", model="", instructions="b")
        edited = store.agents.get("ada")
        assert (edited.version, edited.role, edited.instructions) == (2, "reviewer", "b")
        submit("agents/retire", id=agent.id)
        submit("agents/restore", id=agent.id)

        submit("settings/set", name="mail.retention_ms", value="7d")
        assert store.settings.get("mail.retention_ms").value == 7 * DAY
        submit("settings/set", name="mail.backoff_ms", value="5s, 1m")
        assert store.settings.get("mail.backoff_ms").value == [5_000, 60_000]
        submit("settings/set", name="mail.max_attempts", value="3")
        submit("settings/unset", name="mail.max_attempts")
        submit("budgets/set", scope="all", limit="20", period="day")
        assert store.budgets.get("all", period="day").limit_micros == 20_000_000
        submit("budgets/remove", scope="all", period="day")

        alert = store.alerts.add(["crashed"], target_kind="mailbox", target="user:me")
        submit("alerts/test", id=alert.id)
        submit("alerts/remove", id=alert.id)
    assert done == {*ACTIONS} - {*TEAM_ACTIONS, *RACE_ACTIONS, *CHANNEL_ACTIONS, *CHAT_ACTIONS}


def test_form_works_without_scripts(http_server: HttpServer) -> None:
    with http_server.client() as client:
        answer = client.post(
            "/do/mail/put",
            data={"mailbox": "agent:ada", "body": "x"},
            headers={"Referer": f"{http_server.url}/mail?state=all"},
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/mail?state=all")
        response = client.post(
            "/do/mail/put",
            data={"mailbox": "agent:ada", "body": "x"},
            headers={"Referer": "https://elsewhere.example//evil"},
        )
        assert response.headers["location"] == "/evil"


# -- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (90_000, "1 m 30 s"),
        (60_000, "1 m"),
        (7_500_000, "2 h 5 m"),
        (DAY + HOUR, "1 d 1 h"),
        (None, "\N{EN DASH}"),
    ],
)
def test_durations_have_at_most_two_units(ms: int | None, text: str) -> None:
    assert render.format_span(ms) == text


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.00"),
        (1, "< $0.01"),
        (5_000, "$0.01"),
        (1_234_567, "$1.23"),
        (12_345_000_000, "$12,345.00"),
        (-25_610_000, "\N{MINUS SIGN}$25.61"),
    ],
)
def test_money_is_shown_in_dollars_and_cents(micros: int, text: str) -> None:
    assert render.short_usd(micros) == text


@pytest.mark.parametrize(
    ("bytes", "text"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (20 << 30, "20 GiB")]
)
def test_sizes_are_shown_in_powers_of_1024(bytes: int, text: str) -> None:
    assert render.format_size(bytes) == text


def test_denied_calls_are_shown_beside_the_state(http_server: HttpServer) -> None:
    run = running(http_server.store)
    http_server.store.runs.record_denials(run, {"Edit": 2, "Bash": 1})
    text = "3 denied (Edit ×2, Bash)"  # noqa: RUF001
    http_server.store.internal.runs.record_end(
        http_server.store.runs.get(run.id), ExitStatus(exit_code=0)
    )
    with http_server.client() as client:
        for page in ("/", "/runs", f"/runs/{run.id}"):
            assert text in client.get(page).text, page


def test_new_run_has_the_selected_approvals(http_server: HttpServer, tmp_path: object) -> None:
    project = http_server.store.projects.register(str(tmp_path))
    fields = {"prompt": "say hi", "agent": "scripted", "project": project.id}
    with http_server.client() as client:
        assert 'name="approvals"' in client.get("/runs").text
        for choice, approvals in (("edit,run", ["edit", "run"]), ("", [])):
            response = client.post(
                "/do/runs/start", data=fields | {"approvals": choice}, headers=htmx_headers("x")
            )
            id = response.headers["HX-Redirect"].rpartition("/")[2]
            assert http_server.store.runs.get_launch(id).approvals == approvals


def test_comment_of_an_accepted_task_is_not_shown_as_an_error(
    http_server: HttpServer, tmp_path: Path
) -> None:
    store = http_server.store
    project = project_with(store, tmp_path, "A", "B", agents=("ada",))
    claim = store.tasks.claim(project, "ada", key="A")
    assert claim is not None
    store.tasks.submit(claim, "it works")
    store.tasks.accept(claim, note="well done")
    fail(store, project, "B", "no way")
    with http_server.client() as client:
        page = client.get(f"/board?project={project}").text
    assert '<small class="detail good">well done</small>' in page
    assert '<small class="detail bad">no way</small>' in page
