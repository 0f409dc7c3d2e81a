"""Races in a real browser, with real attempts of a real daemon."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corral.domain.races.model import Race
from tests.support.git_repositories import new_repository
from tests.support.home import wait_until
from tests.support.race_factory import BAD, RaceFactory
from tests.web.browser.conftest import BrowserTab, LiveSite

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

# For real worktrees, processes and checks on a busy machine.
LONG = 60_000


def card(page: "Page", number: int) -> "Locator":
    return page.locator(".attempt").nth(number - 1)


def button(page: "Page", number: int, name: str) -> "Locator":
    return card(page, number).get_by_role("button", name=name)


def wait_for_state(page: "Page", number: int, state: str) -> None:
    card(page, number).locator("header .state", has_text=state).wait_for(timeout=LONG)


def submit_dialog(page: "Page", dialog: str) -> None:
    page.click(f"#{dialog} button:not([data-closes])")


def wait_for_notice(page: "Page", text: str) -> None:
    page.locator("#notices", has_text=text).wait_for(timeout=LONG)


@pytest.fixture
def race_factory(live_site: LiveSite, request: pytest.FixtureRequest) -> RaceFactory:
    """A repository of the test; the daemon does not drive its races."""
    folder = live_site.sample.folder / request.node.name
    return RaceFactory(live_site.store, folder, {"app.py": "one\ntwo\nthree\n"}, host="elsewhere")


def create_undecided_race(live_site: LiveSite, race_factory: RaceFactory) -> Race:
    """A race on the daemon's node that waits for a selection."""
    race = race_factory.start("ada", "grace", "linus", checks=["true"])
    race_factory.end(race, 1, {"app.py": "one\nTWO\nthree\n"})
    race_factory.end(
        race, 2, {"app.py": "one\n2\nthree\n", "more.py": "x = 1\n"}, cost_micros=500_000
    )
    race_factory.end(race, 3, {"app.py": "broken\n"}, checks=[BAD])
    race_factory.settle(race)
    race_factory.move_to_node(race, live_site.machine.name)
    return live_site.store.races.get(race.id)


def test_race_is_started_watched_selected_continued_and_abandoned(
    live_site: LiveSite, tab: BrowserTab, tmp_path: Path, take_picture: Callable[..., None]
) -> None:
    store = live_site.store
    go_file = tmp_path / "go"
    wait = f"while [ ! -e {go_file} ]; do sleep 0.05; done"
    script = f"cat >/dev/null; echo working as $0; echo made by $0 > made; {wait}; echo done $0"
    for name in ("quick", "bold"):
        file = tmp_path / name
        file.write_text(script + "\n")
        store.agents.create(name, command=f"sh {file}")
    project = store.projects.register(new_repository(tmp_path / "repository")).id
    page = tab.go("/races")
    page.click("text=New race")
    page.select_option("#new-race [name=project]", project)
    page.fill("#new-race [name=prompt]", "Make it")
    page.fill("#new-race [name=agents]", "quick,unknown-agent")
    submit_dialog(page, "new-race")
    page.locator("#new-race .problem", has_text="unknown-agent").wait_for(timeout=LONG)
    tab.faults.clear()  # the browser logs every response of that kind
    page.fill("#new-race [name=agents]", "quick,bold")
    page.fill("#new-race [name=checks]", "test -s made\ntrue")
    submit_dialog(page, "new-race")
    page.wait_for_url("**/races/rac_*", timeout=LONG)
    page.locator("h1", has_text="Make it").wait_for()

    # Both run; their terminals and diffs are updated live.
    for number, name in ((1, "quick"), (2, "bold")):
        wait_for_state(page, number, "running")
        page.wait_for_function(
            "([n, text]) => document.querySelectorAll('.attempt')[n].querySelector('.xterm-rows')"
            "?.innerText.includes(text)",
            arg=[number - 1, f"working as {tmp_path}"[:20]],
            timeout=LONG,
        )
        card(page, number).locator(".plus", has_text="+1").wait_for(timeout=LONG)
        assert name in card(page, number).inner_text()
    take_picture(page, "race-live")
    go_file.touch()
    page.locator(".round-summary", has_text="select the winner").wait_for(timeout=LONG)
    assert card(page, 1).locator(".checks .state.good").count() == 2
    assert card(page, 1).locator(".screen[data-written]").count() == 1

    button(page, 2, "Select").click()
    assert page.input_value("#select [name=attempt]") == "1.2"
    page.click("#select >> text=Cancel")
    button(page, 2, "Select").click()
    page.fill("#select [name=reason]", "bold is better")
    submit_dialog(page, "select")
    card(page, 2).locator(".chip", has_text="winner").wait_for(timeout=LONG)
    page.locator(".round-summary", has_text="bold is better").wait_for()
    race = store.races.get(page.url.rpartition("/")[2])
    assert race.latest.reason == "bold is better"
    assert str(race.latest.decided_by).startswith("token:"), "the token of the link selected it"

    go_file.unlink()
    page.click("#verbs >> text=Next round")
    assert page.input_value("#next [name=from]") == "1"
    page.fill("#next [name=prompt]", "Make it again")
    submit_dialog(page, "next")
    page.locator("h2", has_text="Round 2").wait_for(timeout=LONG)
    assert page.locator(".lineage .node").count() == 2
    assert page.locator(".lineage .edge").count() == 1
    wait_for_state(page, 1, "running")
    button(page, 1, "Cancel").click()
    submit_dialog(page, "cancel")
    wait_for_state(page, 1, "cancelled")
    page.click("#verbs >> text=Abandon")
    page.fill("#abandon [name=reason]", "it was only a test")
    submit_dialog(page, "abandon")
    page.locator("#headline", has_text="abandoned").wait_for(timeout=LONG)
    go_file.touch()

    def is_over() -> bool:
        runs = [
            attempt.run_id for attempt in store.races.get(race.id).latest.attempts if attempt.run_id
        ]
        return not any(store.runs.get(run).is_live for run in runs)

    wait_until(is_over, "the runs of the race have ended", 60)


def test_failed_attempt_is_retried(live_site: LiveSite, tab: BrowserTab, tmp_path: Path) -> None:
    file = tmp_path / "agent"
    file.write_text("cat >/dev/null; exit 3\n")
    live_site.store.agents.create("unstable", command=f"sh {file}")
    repository = str(new_repository(tmp_path / "repository"))
    race = live_site.machine.json(
        *("race", "start", "Do it", "--agents", "unstable", "--project", repository, "--json")
    )
    live_site.store.races.wait(race["id"], timeout_ms=60_000)
    page = tab.go(f"/races/{race['id']}")
    page.locator(".round-summary", has_text="no attempt passed").wait_for(timeout=LONG)
    file.write_text("cat >/dev/null; echo now it works; echo x > made\n")
    button(page, 1, "Retry").click()
    submit_dialog(page, "retry")
    page.locator(".round-summary", has_text="select the winner").wait_for(timeout=LONG)
    assert "attempt 2" in card(page, 1).inner_text()
    page.wait_for_function(
        "document.querySelector('.attempt .xterm-rows')?.innerText.includes('now it works')",
        timeout=LONG,
    )


def test_change_of_another_process_to_a_race_is_shown_at_once(
    live_site: LiveSite, tab: BrowserTab, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada", "grace")
    page = tab.go(f"/races/{race.id}")
    page.wait_for_selector("#feed[data-state=live]")
    wait_for_state(page, 1, "preparing")
    race_factory.end(race, 1, {"a.txt": "1\n"})
    card(page, 1).locator(".rank", has_text="Rank 1").wait_for()
    race_factory.end(race, 2, {"a.txt": "2\n"}, checks=[BAD])
    card(page, 2).get_by_text("9 of 12 passed, 3 failed").wait_for()
    race_factory.settle(race)
    page.locator(".round-summary", has_text="select the winner").wait_for()
    card(page, 1).get_by_text("Location").click()
    race_factory.select(race, "1", reason="from elsewhere")
    page.locator(".attempt.won").wait_for()
    assert card(page, 1).get_by_text("Branch").is_visible(), "opened sections stay open"
    race_factory.next(race, "linus")
    page.locator("h2", has_text="Round 2").wait_for()


def test_person_overrules_and_grafts(
    live_site: LiveSite, tab: BrowserTab, race_factory: RaceFactory
) -> None:
    race = create_undecided_race(live_site, race_factory)
    page = tab.go(f"/races/{race.id}")
    button(page, 3, "Overrule").click()
    submit_dialog(page, "overrule")
    assert page.locator("#overrule[open]").count() == 1, "a reason is required"
    page.fill("#overrule [name=reason]", "the check is wrong")
    submit_dialog(page, "overrule")
    page.locator(".timeline", has_text="the check is wrong").wait_for(timeout=LONG)
    button(page, 1, "Overrule").click()
    page.fill("#overrule [name=reason]", "no, it is not")
    submit_dialog(page, "overrule")
    card(page, 1).locator(".chip", has_text="winner").wait_for(timeout=LONG)

    card(page, 2).get_by_role("link", name="Graft").click()
    page.wait_for_url("**/diff?one=1.1&other=1.2")
    page.click("text=Graft selected files")
    submit_dialog(page, "graft")
    page.locator("#graft .problem", has_text="Select the files").wait_for()
    tab.faults.clear()  # the browser logs every response of that kind
    page.click("#graft >> text=Cancel")
    page.check("[aria-label='Graft more.py']")
    page.click("text=Graft selected files")
    submit_dialog(page, "graft")
    wait_for_notice(page, "Graft kept")
    page.click(".crumb >> text=Make it faster")
    page.locator("section:has(#grafts)", has_text="more.py").wait_for()
    (graft,) = live_site.store.races.get(race.id).latest.grafts
    assert (graft.files, graft.kept) == (["more.py"], True)


def test_diff_is_browsed_by_file_and_by_keyboard(
    live_site: LiveSite, tab: BrowserTab, race_factory: RaceFactory
) -> None:
    race = create_undecided_race(live_site, race_factory)
    page = tab.go(f"/races/{race.id}/diff?one=1.2")
    assert page.locator(".diff del").inner_text() == "two"
    assert page.locator(".diff ins").inner_text() == "2"
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**file=more.py**")
    assert page.locator(".diff ins").inner_text() == "x = 1"
    page.select_option("[name=other]", "1.1")
    page.click("main >> text=Filter")
    page.wait_for_url("**other=1.1**")
    page.locator(".diff ins", has_text="TWO").wait_for()


def test_win_rate_plots_show_their_numbers(
    live_site: LiveSite, tab: BrowserTab, race_factory: RaceFactory
) -> None:
    race = create_undecided_race(live_site, race_factory)
    page = tab.go("/races/statistics?by=agent")
    page.wait_for_selector("#feed[data-state=live]")
    before = page.locator("#rates circle").count()
    assert before >= 2
    row = page.locator("#numbers tr", has_text="linus")
    row_text = row.inner_text()
    race_factory.select(race, "1")
    page.wait_for_function(
        "before => ![...document.querySelectorAll('#numbers tr')]"
        ".some(row => row.innerText === before)",
        arg=row_text,
    )
    page.locator("#numbers summary").click()
    assert not row.is_visible()


def test_read_only_token_sees_races_without_buttons(
    live_site: LiveSite, tab: BrowserTab, race_factory: RaceFactory
) -> None:
    race = create_undecided_race(live_site, race_factory)
    token = live_site.store.tokens.create(f"reader-{race.id[-6:]}", scope="read").value
    page = tab.page
    page.goto("about:blank")  # the previous page would request its parts without a token
    page.context.clear_cookies()
    page.goto(f"{live_site.base}/?token={token}")
    page.goto(f"{live_site.base}/races/{race.id}")
    page.locator(".attempt").first.wait_for()
    assert page.locator("main button").count() == 0
    assert page.locator("dialog:not(#keys)").count() == 0
    assert page.locator("main >> text=Diff").count() == 3
