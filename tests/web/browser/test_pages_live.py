"""The pages in a real browser, served by a real daemon: looked at, clicked, and seen to be live."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import corral
from corral.domain.runs.model import RunState
from corral.kernel.clock import SECOND
from corral.web.navigation import NAVIGATION
from tests.support.home import until
from tests.web.browser.conftest import PICTURED, Look, Town, Window

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def every_page(town: Town) -> dict[str, str]:
    """Every kind of page. Pages that differ by a filter are tested by requests."""
    found = {link.title.lower(): link.path for group in NAVIGATION for link in group.links}
    found |= {f"run-{name}": f"/runs/{id}" for name, id in town.runs.items()}
    found |= {
        "project": f"/projects/{town.sample.projects[0].id}",
        "agent": f"/agents/{town.sample.agents[0].id}",
        "session": f"/sessions/{town.sample.session.id}",
        "mail-dead": "/mail?state=dead",
        "letter": f"/mail/{town.store.mail.dead().items[0].id}",
        "found": "/search?q=login",
        "board-graph": "/board/graph",
        "board-timeline": "/board/timeline",
        "board-costs": "/board/costs",
        "task": f"/board/{town.sample.tasks[0].id}",
        "group": f"/groups/{town.sample.group.id}",
        "locks-asked": f"/locks?project={town.sample.projects[0].id}&path=src",
    }
    message = town.store.messages.list(place=town.sample.talk.id).items[-1]
    found |= {
        "talk": f"/chat/{town.sample.talk.id}",
        "message": f"/messaging/messages/{message.id}",
        "held": "/messaging/held",
        "dead": "/messaging/dead?state=refused",
        "wirings": f"/messaging/wirings?place={town.sample.room.id}&text=@ada+deploy",
        "channels": "/messaging/channels",
        "channel": f"/messaging/channels/{town.sample.room.channel_id}",
    }
    race = f"/races/{town.sample.race.id}"
    found |= {
        "race": race,
        "race-decided": f"{race}?round=1",
        "race-under-way": f"/races/{town.sample.under_way.id}",
        "race-diff": f"{race}/diff?one=1.2&file=fast.py",
        "race-graft": f"{race}/diff?one=2.1&other=1.1",
        "race-statistics": "/races/statistics",
    }
    return found


# What a screen reader needs, asked at once: each question to a page costs it more than the answer.
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
COUNTED = """names => Object.fromEntries(
    names.map(name => [name, document.querySelectorAll(name).length]))"""
FITS = "document.documentElement.scrollWidth <= innerWidth"
# Plots and terminals are drawn again in the frame after a change of the window's size.
DRAWN = "[data-plot], #terminal, .attempt .screen"
NEXT_FRAME = """() => new Promise(tell =>
    requestAnimationFrame(() => requestAnimationFrame(() => tell(true))))"""
KEYS = {link.path: link.key for group in NAVIGATION for link in group.links}


def test_every_page_opens_by_its_key_without_a_fault_and_fits_into_any_window(
    town: Town, look: Look, shoot: Callable[..., None]
) -> None:
    # Colours do not change the layout: a dark page is only needed for its picture.
    modes = ["light", "dark", "phone"] if PICTURED else ["light", "phone"]
    page = look.go("/runs")
    for name, path in every_page(town).items():
        if path in KEYS:
            page.evaluate("document.activeElement.blur()")  # a field would take the keys
            page.keyboard.press("g")
            page.keyboard.press(KEYS[path])
            page.wait_for_url(look.base + path)
        else:
            look.go(path)
        page.wait_for_selector("#feed[data-state=live]", state="attached")
        counted = page.evaluate(COUNTED, [*LANDMARKS, "[data-plot]", DRAWN])
        drawn = counted.pop(DRAWN)
        if counted.pop("[data-plot]"):
            page.wait_for_selector("[data-plot][data-drawn]")
        assert counted == LANDMARKS, path
        for mode in modes:
            if PICTURED:
                page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
            look.resize(mode)
            if drawn:
                page.evaluate(NEXT_FRAME)
            until(partial(page.evaluate, FITS), f"{path} fits into the window", 5)
            shoot(page, f"{name}-{mode}")
        modes.reverse()  # the next page begins with the size that the window has
        assert "owned" not in page.title().replace("'owned'", "")


# By how much a state's word stands above or below what stands in the same line.
OFF_THE_LINE = """() => {
    const bottom = node => { const range = document.createRange(); range.selectNodeContents(node);
        return range.getBoundingClientRect(); };
    const row = document.querySelector('.list tbody tr');
    const state = bottom(row.querySelector('.state').lastChild);
    const beside = bottom(row.querySelector('td[data-label]'));
    return Math.abs((state.top + state.bottom) - (beside.top + beside.bottom)) / 2; }"""


def test_on_a_phone_a_state_stands_in_one_line_with_what_is_beside_it(look: Look) -> None:
    page = look.go("/races")
    look.resize("phone")
    assert page.evaluate(OFF_THE_LINE) < 1.5


def test_the_token_leaves_the_address_and_is_kept_from_scripts(look: Look, window: Window) -> None:
    assert window.landed == f"{look.base}/"
    page = look.go("/search")
    assert "crl_" in str(page.context.cookies())
    assert "crl_" not in page.evaluate("document.cookie")


# -- live -----------------------------------------------------------------------------------------


def test_what_another_process_does_is_seen_at_once(town: Town, look: Look) -> None:
    page = look.go("/mail")
    page.wait_for_selector("#feed[data-state=live]")
    with corral.open(town.machine.url, actor="user:other") as elsewhere:
        letter = elsewhere.mail.put("agent:live", "news from elsewhere")
    page.wait_for_selector(f"#{letter.id}")
    town.store.mail.drop(letter.id)
    page.wait_for_selector(f"#{letter.id}", state="detached")


def test_the_overview_follows_a_run_from_its_start_to_its_end(town: Town, look: Look) -> None:
    page = look.go("/")
    page.wait_for_selector("#feed[data-state=live]")
    run = town.machine.asked("scripted", "sleep 600", "--name", "passing-by")
    card = page.locator(".cards .card", has_text="passing-by")
    card.get_by_text("running").wait_for()
    town.machine.corral("stop", run.id)
    card.wait_for(state="detached")
    page.locator(".list tr", has_text="passing-by").get_by_text("cancelled").wait_for()


def test_a_part_that_is_fetched_anew_keeps_what_was_opened_and_typed(
    town: Town, look: Look
) -> None:
    page = look.go(f"/sessions/{town.sample.session.id}")
    page.wait_for_selector("#feed[data-state=live]")
    page.locator("#turn-3 summary").click()
    before = page.locator(".turn").count()
    town.store.sessions.append(town.sample.session.id, "user", "one more")
    town.store.sessions.rename(town.sample.session.id, "Why is the login test flaky?")
    page.wait_for_function(f"() => document.querySelectorAll('.turn').length > {before}")
    assert page.locator("#turn-3 details").get_attribute("open") is not None


def test_a_lost_connection_is_said_and_mended(town: Town, look: Look) -> None:
    look.page.route("**/api/events*", lambda request: request.abort())
    page = look.go("/mail")
    page.wait_for_selector("#feed[data-state=lost]")
    letter = town.store.mail.put("agent:later", "during the break")
    page.unroute("**/api/events*")
    page.wait_for_selector("#feed[data-state=live]")
    page.wait_for_selector(f"#{letter.id}")
    town.store.mail.drop(letter.id)
    look.faults = [fault for fault in look.faults if "ERR_FAILED" not in fault]


def test_what_happens_before_the_line_is_open_is_shown_too(town: Town, look: Look) -> None:
    put: list[str] = []

    def change_first(route: "Route") -> None:
        put.append(town.store.mail.put("agent:early", "between the page and its feed").id)
        route.continue_()

    look.page.route("**/api/events*", change_first)
    page = look.go("/mail")
    page.wait_for_selector("#feed[data-state=live]")
    page.wait_for_selector(f"#{put[0]}")
    look.page.unroute("**/api/events*")
    for id in put:
        town.store.mail.drop(id)


# -- the terminal ---------------------------------------------------------------------------------


def terminal_text(page: "Page") -> str:
    return str(page.locator("#terminal .xterm-rows").inner_text())


def terminal_shows(page: "Page", text: str) -> None:
    page.wait_for_function(
        "text => document.querySelector('#terminal .xterm-rows')?.innerText.includes(text)",
        arg=text,
    )


def test_a_terminal_shows_colours_takes_words_and_runs_no_markup(town: Town, look: Look) -> None:
    page = look.go(f"/runs/{town.runs['colours']}")
    terminal_shows(page, "bold?")
    assert "<b>bold?</b>" in terminal_text(page)
    coloured = page.locator("#terminal .xterm-rows span", has_text="colour").first
    plain = page.locator("#terminal .xterm-rows span", has_text="bold").first
    colour = "element => getComputedStyle(element).color"
    assert coloured.evaluate(colour) != plain.evaluate(colour)
    rgb = page.locator("#terminal .xterm-rows span", has_text="rgb").first
    assert rgb.evaluate(colour) == "rgb(200, 120, 80)"
    page.fill(".screen [name=text]", "good morning")
    page.click(".screen .say button")
    terminal_shows(page, "heard good")


def test_a_terminal_has_the_size_in_which_its_program_draws(town: Town, look: Look) -> None:
    draw = r"printf '\033[2J\033[24;80H#\033[24;1Hbottom\033[1;70Hright'; sleep 600"
    run = town.machine.detached("sh", "-c", draw, options=("--pty",))
    page = look.go(f"/runs/{run.id}")
    terminal_shows(page, "bottom")
    page.locator("#terminal.sized").wait_for()
    rows = page.locator("#terminal .xterm-rows > div").all_inner_texts()
    lines = [row.replace("\xa0", " ").rstrip() for row in rows]
    assert len(lines) == 24, lines
    assert lines[0] == " " * 69 + "right", lines
    assert lines[23] == "bottom" + " " * 73 + "#", lines
    look.resize("phone")
    page.evaluate(NEXT_FRAME)
    assert len(page.locator("#terminal .xterm-rows > div").all_inner_texts()) == 24


def test_the_sidebar_stays_when_the_page_is_scrolled(town: Town, look: Look) -> None:
    page = look.go("/runs")
    page.evaluate("document.querySelector('main').style.minHeight = '4000px'")
    page.evaluate("window.scrollTo(0, 2000)")
    page.wait_for_function("window.scrollY > 1000")
    assert page.evaluate("document.querySelector('.side').getBoundingClientRect().top") == 0


def test_an_agent_s_stream_is_shown_as_its_words(town: Town, look: Look) -> None:
    page = look.go(f"/runs/{town.runs['talks']}")
    terminal_shows(page, "I read the code")
    assert '"type"' not in terminal_text(page)


# -- what can be done -----------------------------------------------------------------------------


def test_a_question_is_answered_from_the_overview(town: Town, look: Look) -> None:
    page = look.go("/")
    row = page.locator(".needs li", has_text="asks").first
    assert "Do you want to proceed?" in row.inner_text()
    assert row.locator("[name=text]:not([type=hidden])").count() == 0, "only the options"
    labels = [button.inner_text() for button in row.locator("button").all()]
    assert labels == ["1. Yes", "2. Yes, and do not ask again", "3. No"]
    row.get_by_role("button", name="3. No").click()
    page.locator("#notices .notice").wait_for()
    row.wait_for(state="detached")
    page = look.go(f"/runs/{town.runs['asks']}")
    terminal_shows(page, "Nobody answered.")
    assert "Answered:" not in terminal_text(page)


def test_a_run_is_stopped_after_a_question_and_resumed(town: Town, look: Look) -> None:
    run = town.machine.asked("scripted", "say here; sleep 600", "--name", "to-be-stopped")
    town.machine.in_state(run.id, RunState.RUNNING)
    page = look.go(f"/runs/{run.id}")
    page.click("#verbs >> text=Stop")
    page.click("#stop >> text=Cancel")
    assert town.store.runs.get(run.id).state is RunState.RUNNING
    page.click("#verbs >> text=Stop")
    page.click("#stop button.danger")
    page.locator("#headline").get_by_text("cancelled").wait_for()
    page.click("#verbs >> text=Resume")
    page.fill("#resume textarea", "say I am back")
    page.click("#resume button:not([data-closes])")
    page.wait_for_url(lambda url: "/runs/run_" in url and run.id not in url)
    page.locator("#headline").get_by_text("completed").wait_for()
    terminal_shows(page, "I am back")


def test_a_run_is_started_from_the_pages(town: Town, look: Look) -> None:
    page = look.go("/")
    page.click("text=New run")
    page.select_option("#new-run [name=project]", town.sample.projects[0].id)
    page.fill("#new-run [name=agent]", "scripted")
    page.fill("#new-run [name=prompt]", "say started from a page")
    page.fill("#new-run [name=timeout]", "soon")
    page.click("#new-run button:not([data-closes])")
    page.locator("#new-run .problem").wait_for()
    assert "duration" in page.inner_text("#new-run .problem")
    assert [fault for fault in look.faults if "400" not in fault] == []
    look.faults.clear()  # a browser notes every answer of that kind
    page.fill("#new-run [name=timeout]", "5m")
    page.click("#new-run button:not([data-closes])")
    page.wait_for_url("**/runs/run_*")
    page.locator("#headline").get_by_text("completed").wait_for()


def test_dead_letters_are_sent_again_and_dropped(town: Town, look: Look) -> None:
    store = town.store
    store.settings.set("mail.max_attempts", 1)
    ids = []
    for text in ("one", "two"):
        store.mail.put("hook:gone", text)
        (letter,) = store.mail.claim("hook:gone", owner="o")
        ids.append(store.mail.fail(letter, "no way").id)
    page = look.go("/mail?state=dead")
    page.locator(f"#{ids[0]}").get_by_text("Resend").click()
    page.wait_for_selector(f"#{ids[0]}", state="detached")
    assert store.mail.get(ids[0]).state == "waiting"
    page.locator(f"#{ids[1]}").get_by_text("Delete").click()
    page.fill("#drop [name=reason]", "not needed")
    page.click("#drop button.danger")
    page.wait_for_selector(f"#{ids[1]}", state="detached")
    dropped = store.mail.get(ids[1])
    assert (dropped.state, dropped.last_error) == ("refused", "not needed")
    store.mail.drop(ids[0])


def test_a_schedule_is_made_paused_and_deleted(town: Town, look: Look) -> None:
    page = look.go("/schedules")
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


def test_an_agent_is_edited_into_a_new_version(town: Town, look: Look) -> None:
    page = look.go(f"/agents/{town.sample.agents[1].id}")
    page.click("text=Edit")
    page.fill("#edit [name=instructions]", "Build it twice.")
    page.click("#edit button:not([data-closes])")
    page.locator("#v2").wait_for()
    assert "Build it twice." in page.inner_text("#v2")


def test_a_budget_is_set_and_taken_back(town: Town, look: Look) -> None:
    page = look.go("/costs")
    page.click("text=New budget")
    page.fill("#budget [name=scope]", f"agent:{town.sample.agents[0].id}")
    page.fill("#budget [name=limit]", "77")
    page.click("#budget button:not([data-closes])")
    row = page.locator("tr", has_text="$77.00")
    row.wait_for()
    row.get_by_text("Remove").click()
    page.click("#unbudget button.danger")
    row.wait_for(state="detached")


def test_a_setting_is_changed_and_taken_back(town: Town, look: Look) -> None:
    page = look.go("/settings")
    row = page.locator('[id="mail.retention_ms"]')
    row.get_by_text("Edit").click()
    page.fill("#change [name=value]", "3d")
    page.click("#change button:not([data-closes])")
    row.get_by_text("3d", exact=True).wait_for()
    row.get_by_text("Reset").click()
    row.get_by_text("30d", exact=True).wait_for()


def test_a_project_is_renamed(town: Town, look: Look) -> None:
    page = look.go(f"/projects/{town.sample.projects[2].id}")
    page.click("text=Rename")
    page.fill("#rename [name=name]", "tides")
    page.click("#rename button:not([data-closes])")
    page.locator("#notices", has_text="tides").wait_for()
    assert town.store.projects.get(town.sample.projects[2].id).name == "tides"


def test_a_search_finds_what_was_said_and_leads_there(town: Town, look: Look) -> None:
    page = look.go("/")
    page.keyboard.press("/")
    page.keyboard.type("tenth of a second")
    page.keyboard.press("Enter")
    page.locator(".hits .open").first.click()
    page.wait_for_url("**/sessions/**")
    assert page.locator("#turn-7").is_visible()


# -- keys, looks ----------------------------------------------------------------------------------


def test_keys_show_help_and_walk_through_a_list(look: Look) -> None:
    page = look.go("/runs")
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


def test_light_and_dark_can_be_switched_and_are_kept(town: Town, look: Look) -> None:
    page = look.go("/costs")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    dark = page.evaluate(background)
    assert light != dark
    assert look.go("/runs").evaluate(background) == dark


def test_a_phone_has_the_whole_navigation_behind_one_button(look: Look) -> None:
    look.resize("phone")
    page = look.go("/costs")
    assert not page.locator("#side").is_visible()
    page.click(".menu")
    page.click("#side >> text=Notes")
    page.wait_for_url("**/notes")


def test_every_plot_shows_its_numbers(town: Town, look: Look) -> None:
    for path, plots in (("/costs", 2), (f"/runs/{town.runs['talks']}", 2)):
        page = look.go(path)
        page.wait_for_selector("[data-plot][data-drawn]")
        assert page.locator(".plot canvas").count() == plots
        for n in range(plots):
            figure = page.locator(".plot").nth(n)
            figure.locator("summary").click()
            assert figure.locator("td").first.is_visible()


def test_ages_are_told_anew_as_time_goes_by(town: Town, look: Look) -> None:
    page = look.go("/health")
    stamp = page.locator(".asof time")
    at = stamp.get_attribute("data-at")
    assert at is not None
    until(lambda: stamp.inner_text() not in ("now", "1 s ago"), "it has aged")
    assert town.store.now() - int(at) >= SECOND
