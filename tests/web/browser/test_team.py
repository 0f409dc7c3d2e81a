"""Team pages in a real browser: the main action of each page."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from corral.kernel.clock import HOUR
from tests.web.browser.conftest import BrowserTab, LiveSite

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


@pytest.fixture
def project(live_site: LiveSite, request: pytest.FixtureRequest) -> str:
    """A project of the test."""
    folder = live_site.sample.folder / request.node.name
    folder.mkdir()
    return live_site.store.projects.register(folder).id


def column(page: "Page", name: str) -> "Locator":
    return page.locator(f".column[data-column={name}]")


def drag(page: "Page", task: str, to: str) -> None:
    """Drag with the mouse, in steps, like a person."""
    page.locator(f"#{task} .top").hover()
    page.mouse.down()
    box = column(page, to).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 12, steps=2)
    page.mouse.up()


def test_card_is_dragged_only_where_the_move_is_allowed(
    live_site: LiveSite, tab: BrowserTab, project: str
) -> None:
    tasks = live_site.store.tasks
    task = tasks.add(project, "drag-me", "Drag me").id
    page = tab.go(f"/board?project={project}")
    page.wait_for_selector("#feed[data-state=live]")
    drag(page, task, "waiting")
    column(page, "waiting").locator(f"#{task}").wait_for()
    assert tasks.get(task).state == "paused"
    drag(page, task, "ready")
    column(page, "ready").locator(f"#{task}").wait_for()
    posted_count = len(tab.posted)
    for column_name in ("running", "done", "submitted"):
        drag(page, task, column_name)
    assert tasks.get(task).state == "ready"
    drag(page, task, "out")
    page.fill("#skip-or-cancel [name=reason]", "not needed")
    page.click("#skip-or-cancel button.danger")
    column(page, "out").locator(f"#{task}").wait_for()
    assert len(tab.posted) == posted_count + 1, tab.posted
    assert (tasks.get(task).state, tasks.get(task).reason) == ("skipped", "not needed")


def test_card_is_moved_by_keys_alone(live_site: LiveSite, tab: BrowserTab, project: str) -> None:
    tasks = live_site.store.tasks
    task = tasks.add(project, "by-keys", "By keys").id
    tasks.claim(project, "grace", key="by-keys")
    tasks.submit(task, "done", agent="grace")
    page = tab.go(f"/board?project={project}")
    page.wait_for_selector("#feed[data-state=live]")
    menu = page.locator(f"#{task} select")
    menu.focus()
    menu.select_option("reject")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#reject[open]").wait_for()
    page.locator("#reject textarea").press_sequentially("once more")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    column(page, "ready").locator(f"#{task}").wait_for()
    assert tasks.get(task).reason == "once more"
    # The card may be there before the response closes the dialog, which blocks other input.
    page.locator("#reject[open]").wait_for(state="detached")
    page.locator(f"#{task} select").select_option("pause")
    page.locator(f"#{task} .move button").press("Enter")
    column(page, "waiting").locator(f"#{task}").wait_for()


def test_board_and_graph_follow_the_agents(
    live_site: LiveSite, tab: BrowserTab, project: str
) -> None:
    tasks = live_site.store.tasks
    first = tasks.add(project, "one", "One").id
    second = tasks.add(project, "two", "Two", depends_on=["one"]).id
    page = tab.go(f"/board/graph?project={project}")
    page.wait_for_selector("#feed[data-state=live]")
    assert page.locator(".edge.critical").count() == 1
    tasks.claim(project, "grace", key="one")
    page.locator(f"#node-{first}.live").wait_for()
    page.click(f"#node-{second}")
    page.wait_for_url(f"**/board/{second}")
    page.go_back()
    page.click("text=Timeline")
    page.locator(f"#bar-{first}").wait_for()


def test_task_is_declared_and_accepted(live_site: LiveSite, tab: BrowserTab, project: str) -> None:
    task = live_site.store.tasks.add(project, "first", "First")
    page = tab.go(f"/board?project={project}")
    page.click("text=New task")
    page.fill("#add [name=key]", "second")
    page.fill("#add [name=title]", "The second one")
    page.fill("#add [name=depends_on]", "first")
    page.click("#add button:not([data-closes])")
    column(page, "waiting").get_by_text("The second one").wait_for()
    live_site.store.tasks.claim(project, "ada", key="first")
    live_site.store.tasks.submit(task.id, "made", agent="ada")
    page = tab.go(f"/board/{task.id}")
    page.click("#verbs >> text=Accept")
    page.locator(".facts").get_by_text("done").first.wait_for()


def test_questions_are_answered_from_the_overview_and_the_inbox(
    live_site: LiveSite, tab: BrowserTab
) -> None:
    store = live_site.store
    first = store.questions.ask("Shall we?", options=["yes", "no"], asker="agent:ada")
    page = tab.go("/")
    page.locator(f"#{first.id}").get_by_text("yes", exact=True).click()
    page.locator(f"#{first.id}").wait_for(state="detached")
    assert store.questions.get(first.id).answer == "yes"
    page = tab.go("/inbox")
    page.wait_for_selector("#feed[data-state=live]")
    second = store.questions.ask("How many?", asker="agent:ada", deadline_ms=HOUR)
    row = page.locator(f"#{second.id}")
    row.locator("[name=answer]").fill("three")
    row.get_by_text("Send").click()
    row.wait_for(state="detached")
    decision = store.decisions.record("Remove the old API", confirm=True, author="agent:ada")
    page.locator(f"#{decision.id}").get_by_role("button", name="Reject").click()
    page.fill("#review [name=reason]", "still in use")
    page.click("#review button.danger")
    page.locator(f"#{decision.id}").wait_for(state="detached")
    assert store.decisions.get(decision.id).reason == "still in use"


def test_several_decisions_are_reviewed_together(
    live_site: LiveSite, tab: BrowserTab, take_picture: Callable[..., None]
) -> None:
    record = live_site.store.decisions.record
    ids = [record(f"Paint {n}", confirm=True, author="agent:ada").id for n in range(3)]
    page = tab.go("/inbox")
    page.wait_for_selector("#feed[data-state=live]")
    for id in ids[:2]:
        page.locator(f"#{id} .selection input").check()
    later = record("Later", confirm=True, author="agent:ada").id
    page.locator(f"#{later}").wait_for()
    assert page.locator(f"#{ids[0]} .selection input").is_checked(), "updates change no selection"
    take_picture(page, "inbox-batch-light")
    page.fill("#batch [name=reason]", "both fine")
    page.locator("#batch").get_by_role("button", name="Confirm").click()
    for id in ids[:2]:
        page.locator(f"#{id}").wait_for(state="detached")
        decision = live_site.store.decisions.get(id)
        assert (decision.state, decision.reason) == ("confirmed", "both fine")
    for id in (ids[2], later):
        assert live_site.store.decisions.get(id).state == "proposed"
        live_site.store.decisions.dismiss(id)


def test_past_board_is_shown_by_a_slider_and_by_a_time(
    live_site: LiveSite, tab: BrowserTab, project: str, take_picture: Callable[..., None]
) -> None:
    tasks, now = live_site.store.tasks, live_site.store.now
    task_id = tasks.add(project, "one", "Lay the floor").id
    tasks.add(project, "two", "Paint the walls", depends_on=["one"])
    tasks.claim(project, "grace", key="one")
    live_site.store.locks.acquire(project, "floor.py", "grace")
    time.sleep(0.05)
    moment = now()
    time.sleep(0.05)
    tasks.submit(task_id, "laid", agent="grace")
    tasks.accept(task_id)
    page = tab.go(f"/board/timeline?project={project}")
    page.locator("form.replay [name=at]").evaluate(
        "(slider, at) => { slider.value = at;"
        " for (const kind of ['input', 'change'])"
        " slider.dispatchEvent(new Event(kind, {bubbles: true})); }",
        str(moment),
    )
    board = page.locator("#snapshot")
    board.get_by_text("from the event log").wait_for()
    assert board.locator(".column", has_text="Running").get_by_text("Lay the floor").count() == 1
    assert board.get_by_text("floor.py").count() == 1
    take_picture(page, "replay-light")
    page.fill("form.replay [name=time]", "2020-01-01T00:00:00")
    page.locator("form.replay button").click()
    board.get_by_text("There were no tasks at that time").wait_for()
    page = tab.go(f"/board/timeline?project={project}&at={moment}")
    assert page.locator("#snapshot .task").count() == 2


def test_people_and_agents_post_in_a_group(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/groups")
    page.click("text=New group")
    page.fill("#create [name=name]", "painters")
    page.fill("#create [name=members]", "agent:ada")
    page.click("#create button:not([data-closes])")
    page.wait_for_url("**/groups/grp_*")
    page.fill("#post textarea", "which colour?")
    page.click("#post button")
    page.locator("#post-1").wait_for()
    live_site.store.groups.post("painters", "white, I think", author="agent:ada", reply_to=1)
    page.locator("#post-2").get_by_text("white, I think").wait_for()
    page.locator("#react-2 summary").click()
    page.locator("#react-2 button").first.click()
    page.locator("#post-2 .chip").wait_for()


def test_lock_is_taken_from_its_owner(live_site: LiveSite, tab: BrowserTab, project: str) -> None:
    lock = live_site.store.locks.acquire(project, "src/a.py", "ada")
    page = tab.go(f"/locks?project={project}")
    page.locator(f"#{lock.id}").get_by_text("Revoke").click()
    page.fill("#revoke [name=reason]", "ada is away")
    page.click("#revoke button.danger")
    page.locator(f"#{lock.id}").wait_for(state="detached")
    assert live_site.store.locks.get(lock.id).state == "revoked"


def test_note_is_created_found_and_forgotten(live_site: LiveSite, tab: BrowserTab) -> None:
    page = tab.go("/notes")
    page.click("text=New note")
    page.fill("#add [name=text]", "Releases need two reviews.")
    page.click("#add button:not([data-closes])")
    page.locator("tr", has_text="Releases").wait_for()
    page.fill("main [type=search]", "reviews")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=reviews**")
    row = page.locator("tr", has_text="Releases")
    row.get_by_text("Delete").click()
    page.click("#delete button.danger")
    row.wait_for(state="detached")
