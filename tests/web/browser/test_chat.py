"""Chat pages in a real browser, with a real daemon and a scripted agent."""

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from corral.adapters.channels.contract import IncomingEvent
from corral.domain.agents.model import Agent
from tests.support.home import wait_until
from tests.web.browser.conftest import BrowserTab, LiveSite

_numbers = count(1)
HOSTILE_TEXT = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture
def echo_agent(live_site: LiveSite) -> Agent:
    """A new agent with an empty chat that runs its prompt as a script."""
    return live_site.store.agents.create(f"echo{next(_numbers)}", provider="scripted")


def test_conversation_is_held_and_survives_a_reload(
    live_site: LiveSite, echo_agent: Agent, tab: BrowserTab, take_picture: Callable[..., None]
) -> None:
    page = tab.go("/chat")
    page.select_option("[name=agent]", echo_agent.id)
    page.click(".new-chat button")
    page.wait_for_url(re.compile("/chat/plc_"))
    place_id = page.url.rpartition("/")[2]
    page.wait_for_selector("#feed[data-state=live]")
    field = page.locator("#message-form textarea")
    assert field.evaluate("element => element === document.activeElement")
    field.fill(f"say {HOSTILE_TEXT}")
    field.press("Enter")
    page.locator(".post.mine").get_by_text("document.title").wait_for()
    assert field.input_value() == ""
    answer = page.locator(".post:not(.mine)", has_text=HOSTILE_TEXT)
    answer.wait_for()
    page.get_by_text(f"handled by {echo_agent.name}").wait_for()
    assert "owned" not in page.title()
    assert answer.locator("script, img").count() == 0

    field.fill("say one moment; sleep 600")
    field.press("Enter")
    page.get_by_text(f"{echo_agent.name} is working on it").wait_for()
    (conversation,) = live_site.store.chat.conversations(place_id)
    wait_until(
        lambda: live_site.store.chat.conversations(place_id)[0].run_id, "the agent is running"
    )
    run = str(live_site.store.chat.conversations(place_id)[0].run_id)
    question = live_site.store.questions.ask(
        "Which branch?", options=["main", "next"], asker=f"agent:{echo_agent.name}", run=run
    )
    card = page.locator(".post.card", has_text="Which branch?")
    card.wait_for()
    take_picture(page, "talk-card-light")
    card.get_by_role("button", name="next").click()
    page.locator(".post.mine").get_by_text("next", exact=True).wait_for()
    wait_until(
        lambda: live_site.store.questions.get(question.id).answer == "next",
        "the question is answered",
    )
    assert conversation.agent_id == echo_agent.id
    # The first line of each: a card later shows its outcome below.
    first_line = "posts => posts.map((post) => post.innerText.split('\\n')[0])"
    before = page.locator(".post .text").evaluate_all(first_line)
    live_site.store.runs.stop(run)
    page.reload()
    page.wait_for_selector("#feed[data-state=live]")
    assert page.locator(".post .text").evaluate_all(first_line)[: len(before)] == before


def test_wiring_is_added_previewed_changed_and_removed(
    live_site: LiveSite, echo_agent: Agent, tab: BrowserTab
) -> None:
    room_id = live_site.sample.room.id
    page = tab.go(f"/messaging/wirings?place={room_id}&text=hello")
    page.wait_for_selector("#feed[data-state=live]")
    page.click("text=New wiring")
    page.select_option("#add [name=agent]", echo_agent.id)
    page.select_option("#add [name=trigger]", "mention")
    page.click("#add button:not([data-closes])")
    preview = page.locator("#test-result tr", has_text=echo_agent.name)
    preview.get_by_text("the agent was not addressed").wait_for()
    page.fill("#test-form [name=text]", f"@{echo_agent.name} hello")
    page.click("#test-form button")
    preview.get_by_text("the agent was addressed").wait_for()
    row = (
        page.locator("main table")
        .first.locator("tr", has_text=echo_agent.name)
        .filter(has_text="mention")
    )
    row.get_by_text("Edit").click()
    assert page.locator("#change [name=trigger]").input_value() == "mention"
    page.select_option("#change [name=trigger]", "pattern")
    page.click("#change button:not([data-closes])")
    page.locator("#change .problem").wait_for()
    tab.faults = [fault for fault in tab.faults if "/do/wirings/change" not in fault]
    tab.faults = [fault for fault in tab.faults if "422" not in fault and "400" not in fault]
    page.fill("#change [name=pattern]", "^hello")
    page.click("#change button:not([data-closes])")
    changed_row = page.locator("main table").first.locator("tr", has_text="^hello")
    changed_row.wait_for()
    changed_row.get_by_text("Remove").click()
    page.click("#remove button.danger")
    changed_row.wait_for(state="detached")


def test_stranger_is_admitted_and_held_messages_are_routed(
    live_site: LiveSite, tab: BrowserTab, take_picture: Callable[..., None]
) -> None:
    page = tab.go("/messaging/approvals")
    page.wait_for_selector("#feed[data-state=live]")
    result = IncomingEvent(event_id="s1", place="room", sender="carol", text="@ada <i>may I?</i>")
    message = live_site.store.messages.receive("quay", result)
    card = page.locator(f"#{message.sender_id}")
    card.get_by_text("<i>may I?</i>").wait_for()
    take_picture(page, "held-carol-light")
    live_site.store.wirings.add("grace", channel="quay", trigger="command", pattern="never")
    card.get_by_role("button", name="Approve").click()
    page.fill("#approve [name=person]", "carol")
    page.locator("#approve").get_by_role("button", name="Approve").click()
    card.wait_for(state="detached")
    assert live_site.store.messages.get(message.id).state == "routed"
    for route in live_site.store.messages.get(message.id).routes:
        if route.letter_id:
            live_site.store.mail.drop(route.letter_id)


def test_conversation_fits_a_phone_and_its_list_is_a_page(
    tab: BrowserTab, take_picture: Callable[..., None]
) -> None:
    tab.resize("phone")
    page = tab.go("/chat")
    page.locator(".conversations").get_by_text("ada", exact=True).click()
    page.locator("#message-form textarea").wait_for()
    assert not page.locator(".conversations").is_visible()
    box = page.locator("#message-form").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 844, "the input field is visible"
    take_picture(page, "talk-phone-window", full_page=False)


def test_files_are_sent_and_downloaded_in_a_conversation(
    echo_agent: Agent, tab: BrowserTab, tmp_path: Path
) -> None:
    page = tab.go("/chat")
    page.select_option("[name=agent]", echo_agent.id)
    page.click(".new-chat button")
    page.wait_for_url(re.compile("/chat/plc_"))
    page.wait_for_selector("#feed[data-state=live]")
    file_input = page.locator("#message-form [type=file]")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(10 << 20)
    file_input.set_input_files([large])
    assert "9 MiB" in file_input.evaluate("field => field.validationMessage")
    html = HOSTILE_TEXT.encode()
    file_input.set_input_files([{"name": "evil.html", "mimeType": "text/html", "buffer": html}])
    page.click("#message-form button")
    link = page.locator(".post.mine .files a", has_text="evil.html").last
    link.wait_for()
    assert file_input.evaluate("field => field.files.length") == 0
    with page.expect_download() as download:
        link.click()
    assert Path(download.value.path()).read_bytes() == html
    assert download.value.suggested_filename == "evil.html"
    assert "/chat/" in page.url, "the file was downloaded, not opened"


def test_secret_is_entered_and_typed_text_survives_updates(
    live_site: LiveSite, echo_agent: Agent, tab: BrowserTab, take_picture: Callable[..., None]
) -> None:
    arguments = {"name": "echo-key", "reason": "to log in"}
    request = live_site.store.host_requests.ask(echo_agent.id, "secret", arguments)
    page = tab.go("/inbox")
    page.wait_for_selector("#feed[data-state=live]")
    form = page.locator(f"#secret-{request.question_id}")
    form.locator("[name=value]").fill("first-part-second")
    question = live_site.store.questions.ask("And now?", asker=f"agent:{echo_agent.name}")
    page.locator(f"#{question.id}").wait_for()
    assert form.locator("[name=value]").input_value() == "first-part-second"
    take_picture(page, "inbox-secret-light")
    form.get_by_text("Save secret").click()
    page.get_by_text("echo-key stored").wait_for()
    form.wait_for(state="detached")
    assert live_site.store.host_requests.get(request.id).state == "done"
    assert "first-part" not in page.content()
    live_site.store.questions.withdraw(question.id)


def test_without_scripts_chat_files_and_wirings_work(
    live_site: LiveSite,
    echo_agent: Agent,
    open_window: Callable[[str], BrowserTab],
    take_picture: Callable[..., None],
) -> None:
    page = open_window("plain").go("/chat")
    page.select_option("[name=agent]", echo_agent.id)
    page.click(".new-chat button")
    assert "/chat/plc_" in page.url
    page.fill("#message-form textarea", "say without scripts")
    upload = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"x"}
    page.set_input_files("#message-form [type=file]", [upload])
    page.click("#message-form button")
    assert "/chat/plc_" in page.url, "the scroll position is restored"
    assert page.locator(".post.mine", has_text="without scripts").locator(".files").count() == 1
    page.goto(f"{live_site.base}/messaging/wirings")
    assert page.locator("[data-opens]:visible").count() == 0
    form = page.locator("#add")
    form.locator("[name=agent]").select_option(echo_agent.id)
    form.locator("[name=where]").select_option(f"place:{live_site.sample.room.id}")
    form.locator("[name=trigger]").select_option("mention")
    take_picture(page, "wirings-plain")
    form.get_by_text("Create wiring").click()
    assert page.url.endswith("/messaging/wirings")
    (added,) = [
        wiring
        for wiring in live_site.store.wirings.list().items
        if wiring.agent_id == echo_agent.id and wiring.place_id == live_site.sample.room.id
    ]
    live_site.store.wirings.remove(added.id)
