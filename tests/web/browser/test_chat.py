"""Chat and the gateway in a real browser, with a real daemon and a scripted agent."""

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from corral.adapters.channels.contract import IncomingEvent
from corral.domain.agents.model import Agent
from tests.support.home import until
from tests.web.browser.conftest import Look, Town

_numbers = count(1)
BAD = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture
def parrot(town: Town) -> Agent:
    """An agent of this test alone, whose script is what it is told: its chat is empty."""
    return town.store.agents.create(f"parrot{next(_numbers)}", provider="scripted")


def test_a_talk_is_had_in_the_page_and_is_there_after_a_reload(
    town: Town, parrot: Agent, look: Look, shoot: Callable[..., None]
) -> None:
    page = look.go("/chat")
    page.select_option("[name=agent]", parrot.id)
    page.click(".begin button")
    page.wait_for_url(re.compile("/chat/plc_"))
    place = page.url.rpartition("/")[2]
    page.wait_for_selector("#feed[data-state=live]")
    field = page.locator("#say textarea")
    assert field.evaluate("element => element === document.activeElement")
    field.fill(f"say {BAD}")
    field.press("Enter")
    page.locator(".post.mine").get_by_text("document.title").wait_for()
    assert field.input_value() == ""
    answer = page.locator(".post:not(.mine)", has_text=BAD)
    answer.wait_for()
    page.get_by_text(f"handled by {parrot.name}").wait_for()
    assert "owned" not in page.title()
    assert answer.locator("script, img").count() == 0

    field.fill("say one moment; sleep 600")
    field.press("Enter")
    page.get_by_text(f"{parrot.name} is working on it").wait_for()
    (talk,) = town.store.chat.conversations(place)
    until(lambda: town.store.chat.conversations(place)[0].run_id, "the agent works")
    run = str(town.store.chat.conversations(place)[0].run_id)
    asked = town.store.questions.ask(
        "Which branch?", options=["main", "next"], asker=f"agent:{parrot.name}", run=run
    )
    card = page.locator(".post.card", has_text="Which branch?")
    card.wait_for()
    shoot(page, "talk-card-light")
    card.get_by_role("button", name="next").click()
    page.locator(".post.mine").get_by_text("next", exact=True).wait_for()
    until(lambda: town.store.questions.get(asked.id).answer == "next", "it is answered")
    assert talk.agent_id == parrot.id
    # Of each its first line: a card says later, below it, how its question ended.
    first = "posts => posts.map((post) => post.innerText.split('\\n')[0])"
    before = page.locator(".post .text").evaluate_all(first)
    town.store.runs.stop(run)
    page.reload()
    page.wait_for_selector("#feed[data-state=live]")
    assert page.locator(".post .text").evaluate_all(first)[: len(before)] == before


def test_a_wiring_is_added_tried_out_changed_and_removed(
    town: Town, parrot: Agent, look: Look
) -> None:
    room = town.sample.room.id
    page = look.go(f"/messaging/wirings?place={room}&text=hello")
    page.wait_for_selector("#feed[data-state=live]")
    page.click("text=New wiring")
    page.select_option("#add [name=agent]", parrot.id)
    page.select_option("#add [name=trigger]", "mention")
    page.click("#add button:not([data-closes])")
    tried = page.locator("#tried tr", has_text=parrot.name)
    tried.get_by_text("the agent was not addressed").wait_for()
    page.fill("#tryout [name=text]", f"@{parrot.name} hello")
    page.click("#tryout button")
    tried.get_by_text("the agent was addressed").wait_for()
    row = (
        page.locator("main table")
        .first.locator("tr", has_text=parrot.name)
        .filter(has_text="mention")
    )
    row.get_by_text("Edit").click()
    assert page.locator("#change [name=trigger]").input_value() == "mention"
    page.select_option("#change [name=trigger]", "pattern")
    page.click("#change button:not([data-closes])")
    page.locator("#change .problem").wait_for()
    look.faults = [fault for fault in look.faults if "/do/wirings/change" not in fault]
    look.faults = [fault for fault in look.faults if "422" not in fault and "400" not in fault]
    page.fill("#change [name=pattern]", "^hello")
    page.click("#change button:not([data-closes])")
    changed = page.locator("main table").first.locator("tr", has_text="^hello")
    changed.wait_for()
    changed.get_by_text("Remove").click()
    page.click("#remove button.danger")
    changed.wait_for(state="detached")


def test_a_stranger_is_let_in_and_what_was_held_is_heard(
    town: Town, look: Look, shoot: Callable[..., None]
) -> None:
    page = look.go("/messaging/held")
    page.wait_for_selector("#feed[data-state=live]")
    said = IncomingEvent(event_id="s1", place="room", sender="carol", text="@ada <i>may I?</i>")
    held = town.store.messages.receive("quay", said)
    card = page.locator(f"#{held.sender_id}")
    card.get_by_text("<i>may I?</i>").wait_for()
    shoot(page, "held-carol-light")
    town.store.wirings.add("grace", channel="quay", trigger="command", pattern="never")
    card.get_by_role("button", name="Approve").click()
    page.fill("#approve [name=person]", "carol")
    page.locator("#approve").get_by_role("button", name="Approve").click()
    card.wait_for(state="detached")
    assert town.store.messages.get(held.id).state == "routed"
    for route in town.store.messages.get(held.id).routes:
        if route.letter_id:
            town.store.mail.drop(route.letter_id)


def test_a_talk_on_a_phone_fits_and_its_list_is_a_page_of_its_own(
    look: Look, shoot: Callable[..., None]
) -> None:
    look.resize("phone")
    page = look.go("/chat")
    page.locator(".conversations").get_by_text("ada", exact=True).click()
    page.locator("#say textarea").wait_for()
    assert not page.locator(".conversations").is_visible()
    box = page.locator("#say").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 844, "what one writes in is in sight"
    shoot(page, "talk-phone-window", full_page=False)


def test_files_are_sent_and_fetched_in_a_talk(parrot: Agent, look: Look, tmp_path: Path) -> None:
    page = look.go("/chat")
    page.select_option("[name=agent]", parrot.id)
    page.click(".begin button")
    page.wait_for_url(re.compile("/chat/plc_"))
    page.wait_for_selector("#feed[data-state=live]")
    chosen = page.locator("#say [type=file]")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(10 << 20)
    chosen.set_input_files([large])
    assert "9 MiB" in chosen.evaluate("field => field.validationMessage")
    html = BAD.encode()
    chosen.set_input_files([{"name": "evil.html", "mimeType": "text/html", "buffer": html}])
    page.click("#say button")
    link = page.locator(".post.mine .files a", has_text="evil.html").last
    link.wait_for()
    assert chosen.evaluate("field => field.files.length") == 0
    with page.expect_download() as fetched:
        link.click()
    assert Path(fetched.value.path()).read_bytes() == html
    assert fetched.value.suggested_filename == "evil.html"
    assert "/chat/" in page.url, "it was not shown"


def test_a_secret_is_given_in_its_form_and_what_is_typed_survives_news(
    town: Town, parrot: Agent, look: Look, shoot: Callable[..., None]
) -> None:
    wish = {"name": "parrot-key", "reason": "to sing"}
    asked = town.store.requests.ask(parrot.id, "secret", wish)
    page = look.go("/inbox")
    page.wait_for_selector("#feed[data-state=live]")
    form = page.locator(f"#secret-{asked.question_id}")
    form.locator("[name=value]").fill("sing-sang-sung")
    other = town.store.questions.ask("And now?", asker=f"agent:{parrot.name}")
    page.locator(f"#{other.id}").wait_for()
    assert form.locator("[name=value]").input_value() == "sing-sang-sung"
    shoot(page, "inbox-secret-light")
    form.get_by_text("Save secret").click()
    page.get_by_text("parrot-key stored").wait_for()
    form.wait_for(state="detached")
    assert town.store.requests.get(asked.id).state == "done"
    assert "sing-sang" not in page.content()
    town.store.questions.withdraw(other.id)


def test_without_scripts_one_talks_sends_files_and_wires_agents(
    town: Town, parrot: Agent, open_window: Callable[[str], Look], shoot: Callable[..., None]
) -> None:
    page = open_window("plain").go("/chat")
    page.select_option("[name=agent]", parrot.id)
    page.click(".begin button")
    assert "/chat/plc_" in page.url
    page.fill("#say textarea", "say without scripts")
    note = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"x"}
    page.set_input_files("#say [type=file]", [note])
    page.click("#say button")
    assert "/chat/plc_" in page.url, "one is back where one was"
    assert page.locator(".post.mine", has_text="without scripts").locator(".files").count() == 1
    page.goto(f"{town.base}/messaging/wirings")
    assert page.locator("[data-opens]:visible").count() == 0
    form = page.locator("#add")
    form.locator("[name=agent]").select_option(parrot.id)
    form.locator("[name=where]").select_option(f"place:{town.sample.room.id}")
    form.locator("[name=trigger]").select_option("mention")
    shoot(page, "wirings-plain")
    form.get_by_text("Create wiring").click()
    assert page.url.endswith("/messaging/wirings")
    (made,) = [
        each
        for each in town.store.wirings.list().items
        if each.agent_id == parrot.id and each.place_id == town.sample.room.id
    ]
    town.store.wirings.remove(made.id)
