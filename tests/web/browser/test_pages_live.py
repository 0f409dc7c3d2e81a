"""The pages in a real browser, served by a real daemon: content, actions and live updates."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import corral
from corral.domain.runs.model import RunState
from corral.kernel.clock import SECOND
from corral.web.navigation import NAVIGATION
from tests.support.home import wait_until
from tests.web.browser.conftest import TAKE_PICTURES, BrowserTab, LiveSite, Window

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def every_page(live_site: LiveSite) -> dict[str, str]:
    """Every kind of page. Pages that differ by a filter are tested by requests."""
    values = {link.title.lower(): link.path for group in NAVIGATION for link in group.links}
    values |= {f"run-{name}": f"/runs/{id}" for name, id in live_site.runs.items()}
    values |= {
        "project": f"/projects/{live_site.sample.projects[0].id}",
        "agent": f"/agents/{live_site.sample.agents[0].id}",
        "session": f"/sessions/{live_site.sample.session.id}",
        "mail-dead": "/mail?state=dead",
        "letter": f"/mail/{live_site.store.mail.dead().items[0].id}",
        "found": "/search?q=login",
        "board-graph": "/board/graph",
        "board-timeline": "/board/timeline",
        "board-costs": "/board/costs",
        "task": f"/board/{live_site.sample.tasks[0].id}",
        "group": f"/groups/{live_site.sample.group.id}",
        "locks-asked": f"/locks?project={live_site.sample.projects[0].id}&path=src",
    }
    message = live_site.store.messages.list(place=live_site.sample.talk.id).items[-1]
    values |= {
        "talk": f"/chat/{live_site.sample.talk.id}",
        "message": f"/messaging/messages/{message.id}",
        "held": "/messaging/approvals",
        "dead": "/messaging/dead?state=refused",
        "wirings": f"/messaging/wirings?place={live_site.sample.room.id}&text=@ada+deploy",
        "channels": "/messaging/channels",
        "channel": f"/messaging/channels/{live_site.sample.room.channel_id}",
    }
    race = f"/races/{live_site.sample.race.id}"
    values |= {
        "race": race,
        "race-decided": f"{race}?round=1",
        "race-under-way": f"/races/{live_site.sample.under_way.id}",
        "race-diff": f"{race}/diff?one=1.2&file=fast.py",
        "race-graft": f"{race}/diff?one=2.1&other=1.1",
        "race-statistics": "/races/statistics",
    }
    return values


# Accessibility checks in one script: a call into the page costs more than the check.
LANDMARKS = {
    "main": 1,
    "nav[aria-label='Main']": 1,
    "h1": 1,
    "nav [aria-current=page]": 1,
    "button:not([aria-label]):not(:has(:not(svg))):empty": 0,
    "input:not([type=hidden]):not([aria-label]):not(label input)": 0,
    "select:not(label select)": 0,
    "textarea:not(label textarea, [aria-label])": 0,
    "img:not([alt])": 0,
    "table:not(:has(caption)):not(.numbers, .u-legend)": 0,
}
COUNT_ELEMENTS = """names => Object.fromEntries(
    names.map(name => [name, document.querySelectorAll(name).length]))"""
FITS_WINDOW = "document.documentElement.scrollWidth <= innerWidth"
# Plots and terminals are redrawn in the frame after a resize.
REDRAWN = "[data-plot], #terminal, .attempt .screen"
NEXT_FRAME = """() => new Promise(resolve =>
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(true))))"""
KEYS = {link.path: link.key for group in NAVIGATION for link in group.links}


def test_every_page_opens_by_its_key_and_fits_any_window(
    live_site: LiveSite, tab: BrowserTab, take_picture: Callable[..., None]
) -> None:
    # Colours do not change the layout: a dark page is only needed for its screenshot.
    modes = ["light", "dark", "phone"] if TAKE_PICTURES else ["light", "phone"]
    page = tab.go("/runs")
    for name, path in every_page(live_site).items():
        if path in KEYS:
            page.evaluate("document.activeElement.blur()")  # a focused field would take the keys
            page.keyboard.press("g")
            page.keyboard.press(KEYS[path])
            page.wait_for_url(tab.base + path)
        else:
            tab.go(path)
        page.wait_for_selector("#feed[data-state=live]", state="attached")
        counts = page.evaluate(COUNT_ELEMENTS, [*LANDMARKS, "[data-plot]", REDRAWN])
        is_redrawn = counts.pop(REDRAWN)
        if counts.pop("[data-plot]"):
            page.wait_for_selector("[data-plot][data-drawn]")
        assert counts == LANDMARKS, path
        for mode in modes:
            if TAKE_PICTURES:
                page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
            tab.resize(mode)
            if is_redrawn:
                page.evaluate(NEXT_FRAME)
            wait_until(partial(page.evaluate, FITS_WINDOW), f"{path} fits into the window", 5)
            take_picture(page, f"{name}-{mode}")
        modes.reverse()  # the next page starts with the current window size
        assert "owned" not in page.title().replace("'owned'", "")


# The vertical offset between a state label and its line.
BASELINE_OFFSET = """() => {
    const bottom = node => { const range = document.createRange(); range.selectNodeContents(node);
        return range.getBoundingClientRect(); };
    const row = document.querySelector('.list tbody tr');
    const state = bottom(row.querySelector('.state').lastChild);
    const beside = bottom(row.querySelector('td[data-label]'));
    return Math.abs((state.top + state.bottom) - (beside.top + beside.bottom)) / 2; }"""


def test_state_and_its_neighbours_share_a_line_on_a_phone(tab: BrowserTab) -> None:
    page = tab.go("/races")
    tab.resize("phone")
    assert page.evaluate(BASELINE_OFFSET) < 1.5


def test_token_leaves_the_url_and_is_hidden_from_scripts(tab: BrowserTab, window: Window) -> None:
    assert window.start_url == f"{tab.base}/"
    page = tab.go("/search")
    assert "crl_" in str(page.context.cookies())
    assert "crl_" not in page.evaluate("document.cookie")


# -- live -----------------------------------------------------------------------------------------


def test_change_of_another_process_is_shown_at_once(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/mail")
    page.wait_for_selector("#feed[data-state=live]")
    with corral.open(live_site.machine.url, actor="user:other") as other_store:
        letter = other_store.mail.put("agent:live", "from another process")
    page.wait_for_selector(f"#{letter.id}")
    live_site.store.mail.drop(letter.id)
    page.wait_for_selector(f"#{letter.id}", state="detached")


def test_overview_follows_a_run_from_start_to_end(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/")
    page.wait_for_selector("#feed[data-state=live]")
    run = live_site.machine.start_agent("scripted", "sleep 600", "--name", "passing-by")
    card = page.locator(".cards .card", has_text="passing-by")
    card.get_by_text("running").wait_for()
    live_site.machine.corral("stop", run.id)
    card.wait_for(state="detached")
    page.locator(".list tr", has_text="passing-by").get_by_text("cancelled").wait_for()


def test_refreshed_part_keeps_open_sections_and_typed_text(
    live_site: LiveSite, tab: BrowserTab
) -> None:
    page = tab.go(f"/sessions/{live_site.sample.session.id}")
    page.wait_for_selector("#feed[data-state=live]")
    page.locator("#turn-3 summary").click()
    before = page.locator(".turn").count()
    live_site.store.sessions.append(live_site.sample.session.id, "user", "one more")
    live_site.store.sessions.rename(live_site.sample.session.id, "Why is the login test flaky?")
    page.wait_for_function(f"() => document.querySelectorAll('.turn').length > {before}")
    assert page.locator("#turn-3 details").get_attribute("open") is not None


def test_lost_connection_is_shown_and_restored(live_site: LiveSite, tab: BrowserTab) -> None:
    tab.page.route("**/api/events*", lambda request: request.abort())
    page = tab.go("/mail")
    page.wait_for_selector("#feed[data-state=lost]")
    letter = live_site.store.mail.put("agent:later", "during the break")
    page.unroute("**/api/events*")
    page.wait_for_selector("#feed[data-state=live]")
    page.wait_for_selector(f"#{letter.id}")
    live_site.store.mail.drop(letter.id)
    tab.faults = [fault for fault in tab.faults if "ERR_FAILED" not in fault]


def test_changes_before_the_feed_is_open_are_shown(live_site: LiveSite, tab: BrowserTab) -> None:
    ids: list[str] = []

    def change_first(route: "Route") -> None:
        ids.append(live_site.store.mail.put("agent:early", "between the page and its feed").id)
        route.continue_()

    tab.page.route("**/api/events*", change_first)
    page = tab.go("/mail")
    page.wait_for_selector("#feed[data-state=live]")
    page.wait_for_selector(f"#{ids[0]}")
    tab.page.unroute("**/api/events*")
    for id in ids:
        live_site.store.mail.drop(id)


# -- the terminal ---------------------------------------------------------------------------------


def terminal_text(page: "Page") -> str:
    return str(page.locator("#terminal .xterm-rows").inner_text())


def wait_for_terminal_text(page: "Page", text: str) -> None:
    page.wait_for_function(
        "text => document.querySelector('#terminal .xterm-rows')?.innerText.includes(text)",
        arg=text,
    )


def test_terminal_shows_colours_takes_input_and_runs_no_markup(
    live_site: LiveSite, tab: BrowserTab
) -> None:
    page = tab.go(f"/runs/{live_site.runs['colours']}")
    wait_for_terminal_text(page, "bold?")
    assert "<b>bold?</b>" in terminal_text(page)
    coloured = page.locator("#terminal .xterm-rows span", has_text="colour").first
    plain = page.locator("#terminal .xterm-rows span", has_text="bold").first
    colour = "element => getComputedStyle(element).color"
    assert coloured.evaluate(colour) != plain.evaluate(colour)
    rgb = page.locator("#terminal .xterm-rows span", has_text="rgb").first
    assert rgb.evaluate(colour) == "rgb(200, 120, 80)"
    page.fill(".screen [name=text]", "good morning")
    page.click(".screen .message-form button")
    wait_for_terminal_text(page, "received good")


def test_terminal_has_the_size_of_its_program(live_site: LiveSite, tab: BrowserTab) -> None:
    draw = r"printf '\033[2J\033[24;80H#\033[24;1Hbottom\033[1;70Hright'; sleep 600"
    run = live_site.machine.start_detached("sh", "-c", draw, options=("--pty",))
    page = tab.go(f"/runs/{run.id}")
    wait_for_terminal_text(page, "bottom")
    page.locator("#terminal.sized").wait_for()
    rows = page.locator("#terminal .xterm-rows > div").all_inner_texts()
    lines = [row.replace("\xa0", " ").rstrip() for row in rows]
    assert len(lines) == 24, lines
    assert lines[0] == " " * 69 + "right", lines
    assert lines[23] == "bottom" + " " * 73 + "#", lines
    tab.resize("phone")
    page.evaluate(NEXT_FRAME)
    assert len(page.locator("#terminal .xterm-rows > div").all_inner_texts()) == 24


def test_sidebar_stays_when_the_page_is_scrolled(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/runs")
    page.evaluate("document.querySelector('main').style.minHeight = '4000px'")
    page.evaluate("window.scrollTo(0, 2000)")
    page.wait_for_function("window.scrollY > 1000")
    assert page.evaluate("document.querySelector('.side').getBoundingClientRect().top") == 0


def test_agent_stream_is_shown_as_its_text(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go(f"/runs/{live_site.runs['talks']}")
    wait_for_terminal_text(page, "I read the code")
    assert '"type"' not in terminal_text(page)


# -- actions --------------------------------------------------------------------------------------


def test_question_is_answered_from_the_overview(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/")
    row = page.locator(".attention-list li", has_text="asks").first
    assert "Do you want to proceed?" in row.inner_text()
    assert row.locator("[name=text]:not([type=hidden])").count() == 0, "only the options"
    labels = [button.inner_text() for button in row.locator("button").all()]
    assert labels == ["1. Yes", "2. Yes, and do not ask again", "3. No"]
    row.get_by_role("button", name="3. No").click()
    page.locator("#notices .notice").wait_for()
    row.wait_for(state="detached")
    page = tab.go(f"/runs/{live_site.runs['asks']}")
    wait_for_terminal_text(page, "No answer.")
    assert "Answered:" not in terminal_text(page)


def test_run_is_stopped_after_confirmation_and_resumed(
    live_site: LiveSite, tab: BrowserTab
) -> None:
    run = live_site.machine.start_agent(
        "scripted", "say here; sleep 600", "--name", "to-be-stopped"
    )
    live_site.machine.in_state(run.id, RunState.RUNNING)
    page = tab.go(f"/runs/{run.id}")
    page.click("#verbs >> text=Stop")
    page.click("#stop >> text=Cancel")
    assert live_site.store.runs.get(run.id).state is RunState.RUNNING
    page.click("#verbs >> text=Stop")
    page.click("#stop button.danger")
    page.locator("#headline").get_by_text("cancelled").wait_for()
    page.click("#verbs >> text=Resume")
    page.fill("#resume textarea", "say I am back")
    page.click("#resume button:not([data-closes])")
    page.wait_for_url(lambda url: "/runs/run_" in url and run.id not in url)
    page.locator("#headline").get_by_text("completed").wait_for()
    wait_for_terminal_text(page, "I am back")


def test_run_is_started_from_the_pages(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/")
    page.click("text=New run")
    page.select_option("#new-run [name=project]", live_site.sample.projects[0].id)
    page.fill("#new-run [name=agent]", "scripted")
    page.fill("#new-run [name=prompt]", "say started from a page")
    page.fill("#new-run [name=timeout]", "soon")
    page.click("#new-run button:not([data-closes])")
    page.locator("#new-run .problem").wait_for()
    assert "duration" in page.inner_text("#new-run .problem")
    assert [fault for fault in tab.faults if "400" not in fault] == []
    tab.faults.clear()  # the browser logs every response of that kind
    page.fill("#new-run [name=timeout]", "5m")
    page.click("#new-run button:not([data-closes])")
    page.wait_for_url("**/runs/run_*")
    page.locator("#headline").get_by_text("completed").wait_for()


def test_dead_letters_are_retried_and_dropped(live_site: LiveSite, tab: BrowserTab) -> None:
    store = live_site.store
    store.settings.set("mail.max_attempts", 1)
    ids = []
    for text in ("one", "two"):
        store.mail.put("hook:gone", text)
        (letter,) = store.mail.claim("hook:gone", owner="o")
        ids.append(store.mail.fail(letter, "no way").id)
    page = tab.go("/mail?state=dead")
    page.locator(f"#{ids[0]}").get_by_text("Resend").click()
    page.wait_for_selector(f"#{ids[0]}", state="detached")
    assert store.mail.get(ids[0]).state == "waiting"
    page.locator(f"#{ids[1]}").get_by_text("Drop").click()
    page.fill("#drop [name=reason]", "not needed")
    page.click("#drop button.danger")
    page.wait_for_selector(f"#{ids[1]}", state="detached")
    dropped = store.mail.get(ids[1])
    assert (dropped.state, dropped.last_error) == ("refused", "not needed")
    store.mail.drop(ids[0])


def test_schedule_is_created_paused_and_deleted(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/schedules")
    page.click("text=New schedule")
    page.fill("#create [name=name]", "tea")
    page.fill("#create [name=mailbox]", "agent:ada")
    page.fill("#create [name=body]", "tea time")
    page.fill("#create [name=rule]", "0 16 * * *")
    page.click("#create button:not([data-closes])")
    row = page.locator("tr", has_text="tea").first
    row.wait_for()
    row.get_by_text("Pause").click()
    row.get_by_text("paused").wait_for()
    row.get_by_text("Delete").click()
    page.click("#delete button.danger")
    row.wait_for(state="detached")


def test_editing_an_agent_creates_a_new_version(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go(f"/agents/{live_site.sample.agents[1].id}")
    page.click("text=Edit")
    page.fill("#edit [name=instructions]", "Build it twice.")
    page.click("#edit button:not([data-closes])")
    page.locator("#v2").wait_for()
    assert "Build it twice." in page.inner_text("#v2")


def test_budget_is_set_and_removed(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/costs")
    page.click("text=New budget")
    page.fill("#budget [name=scope]", f"agent:{live_site.sample.agents[0].id}")
    page.fill("#budget [name=limit]", "77")
    page.click("#budget button:not([data-closes])")
    row = page.locator("tr", has_text="$77.00")
    row.wait_for()
    row.get_by_text("Remove").click()
    page.click("#remove-budget button.danger")
    row.wait_for(state="detached")


def test_setting_is_changed_and_reset(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/settings")
    row = page.locator('[id="mail.retention_ms"]')
    row.get_by_text("Edit").click()
    page.fill("#change [name=value]", "3d")
    page.click("#change button:not([data-closes])")
    row.get_by_text("3d", exact=True).wait_for()
    row.get_by_text("Reset").click()
    row.get_by_text("30d", exact=True).wait_for()


def test_project_is_renamed(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go(f"/projects/{live_site.sample.projects[2].id}")
    page.click("text=Rename")
    page.fill("#rename [name=name]", "tides")
    page.click("#rename button:not([data-closes])")
    page.locator("#notices", has_text="tides").wait_for()
    assert live_site.store.projects.get(live_site.sample.projects[2].id).name == "tides"


def test_search_finds_a_turn_and_links_to_it(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/")
    page.keyboard.press("/")
    page.keyboard.type("tenth of a second")
    page.keyboard.press("Enter")
    page.locator(".results .open").first.click()
    page.wait_for_url("**/sessions/**")
    assert page.locator("#turn-7").is_visible()


# -- keyboard, appearance ---------------------------------------------------------------------


def test_keys_show_help_and_move_through_a_list(tab: BrowserTab) -> None:
    page = tab.go("/runs")
    page.keyboard.press("?")
    page.locator("#keys[open]").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    first = page.locator("main .open").first
    assert first.evaluate("element => element === document.activeElement")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/run_*")


def test_light_and_dark_mode_are_switched_and_kept(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/costs")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    dark = page.evaluate(background)
    assert light != dark
    assert tab.go("/runs").evaluate(background) == dark


def test_phone_has_the_navigation_behind_one_button(tab: BrowserTab) -> None:
    tab.resize("phone")
    page = tab.go("/costs")
    assert not page.locator("#side").is_visible()
    page.click(".menu")
    page.click("#side >> text=Notes")
    page.wait_for_url("**/notes")


def test_every_plot_shows_its_numbers(live_site: LiveSite, tab: BrowserTab) -> None:
    for path, plots in (("/costs", 2), (f"/runs/{live_site.runs['talks']}", 2)):
        page = tab.go(path)
        page.wait_for_selector("[data-plot][data-drawn]")
        assert page.locator(".plot canvas").count() == plots
        for n in range(plots):
            figure = page.locator(".plot").nth(n)
            figure.locator("summary").click()
            assert figure.locator("td").first.is_visible()


def test_reference_of_the_api_is_styled(tab: BrowserTab) -> None:
    """Its style sheet is a file: the content security policy refuses inline styles."""
    page = tab.go("/api/docs")
    assert page.evaluate("getComputedStyle(document.body).maxWidth") == "960px"


def test_ages_are_updated_over_time(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/health")
    stamp = page.locator(".updated-at time")
    at = stamp.get_attribute("data-at")
    assert at is not None
    wait_until(lambda: stamp.inner_text() not in ("now", "1 s ago"), "the age is updated")
    assert live_site.store.now() - int(at) >= SECOND
