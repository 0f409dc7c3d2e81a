"""Host requests: grants, denials, approval by people, and secrets."""

from pathlib import Path
from typing import Any

import pytest

from corral.adapters.channels.contract import IncomingEvent, MessageKind, RawAttachment
from corral.api import Corral
from corral.domain.host_requests.model import HostRequest
from corral.kernel.clock import DAY, MINUTE, ManualClock
from corral.kernel.errors import Invalid, NotFound, Refused
from tests.support.fake_channels import Chat, Runner
from tests.support.grouped_cases import each_case
from tests.support.store import contents, raises_without_change

pytestmark = pytest.mark.usefixtures("fake_channels")

HELPER = {"name": "helper", "instructions": "Help with mails."}


@pytest.fixture
def ada(store: Corral) -> str:
    return store.agents.create("ada", provider="scripted", model="small").name


def answer_request(
    store: Corral, request: HostRequest, answer: str, by: str = "user:ann"
) -> HostRequest:
    store.questions.answer(str(request.question_id), answer, by=by)
    store.internal.chat.run_upkeep()
    return store.host_requests.get(request.id)


def list_notices(store: Corral, mailbox: str = "agent:ada") -> list[dict[str, Any]]:
    return [letter.body for letter in store.mail.list(mailbox=mailbox).items]


# -- approval -------------------------------------------------------------------------------------


def test_request_has_no_effect_until_approved(store: Corral, ada: str) -> None:
    request = store.host_requests.ask(ada, "create_agent", HELPER)
    assert request.state == "waiting"
    with pytest.raises(NotFound):
        store.agents.get("helper")
    question = store.questions.get(str(request.question_id))
    assert question.options == ["yes", "no"]
    assert "Help with mails." in str(question.effect), "the effect shows all instructions"
    approved = answer_request(store, request, "yes")
    assert (approved.state, approved.decided_by) == ("done", "user:ann")
    agent = store.agents.get("helper")
    assert (agent.provider, agent.model, agent.admin) == ("scripted", "small", False)
    assert [letter["state"] for letter in list_notices(store)] == ["done"]
    store.internal.chat.run_upkeep()
    assert len(list_notices(store)) == 1, "the agent is notified once"


def test_refused_and_expired_requests_notify_the_agent(
    store: Corral, ada: str, clock: ManualClock
) -> None:
    refused = answer_request(store, store.host_requests.ask(ada, "create_agent", HELPER), "no")
    assert (refused.state, refused.decided_by) == ("refused", "user:ann")
    expired = store.host_requests.ask(ada, "create_agent", HELPER)
    clock.advance(8 * DAY)
    store.internal.questions.expire_due()
    store.internal.chat.run_upkeep()
    assert store.host_requests.get(expired.id).state == "expired"
    assert [letter["state"] for letter in list_notices(store)] == ["refused", "expired"]
    with pytest.raises(NotFound):
        store.agents.get("helper")


def test_grant_allows_action_and_denial_forbids_it(store: Corral, ada: str) -> None:
    store.agents.grant(ada, "Bash")
    store.agents.grant(ada, "*")
    assert store.host_requests.ask(ada, "create_agent", HELPER).state == "waiting", (
        "tool grants do not apply to host actions"
    )
    store.agents.grant(ada, "host:create_agent(help-*)")
    arguments = {**HELPER, "name": "help-mail"}
    granted = store.host_requests.ask(ada, "create_agent", arguments)
    assert (granted.state, granted.decided_by) == ("done", "rule")
    assert store.agents.get("help-mail").state == "active"
    assert store.host_requests.ask(ada, "create_agent", {**HELPER, "name": "x"}).state == "waiting"
    store.agents.grant(ada, "host:*", allow=False)
    with raises_without_change(store, Refused) as caught:
        store.host_requests.ask(ada, "create_agent", {**HELPER, "name": "help-2"})
    assert "A denied tool forbids ada to create the agent help-2." in str(caught.value)


def test_host_grant_does_not_restrict_own_tools(store: Corral, ada: str) -> None:
    store.agents.grant(ada, "host:create_agent")
    assert store.agents.allows(ada, "Bash(ls)") is True


def test_conditions_are_checked_again_on_approval(store: Corral, ada: str) -> None:
    request = store.host_requests.ask(ada, "create_agent", HELPER)
    store.agents.grant(ada, "host:create_agent", allow=False)
    assert answer_request(store, request, "yes").reason == "a denied tool forbids it"
    store.agents.revoke(ada, "host:create_agent")
    second_request = store.host_requests.ask(ada, "create_agent", HELPER)
    store.agents.retire(ada)
    assert answer_request(store, second_request, "yes").reason == "ada is retired"


def test_failed_action_is_rolled_back_and_recorded(store: Corral, ada: str) -> None:
    request = store.host_requests.ask(ada, "create_agent", HELPER)
    store.agents.create("helper", command="cat")
    failed = answer_request(store, request, "yes")
    assert failed.state == "failed"
    assert "An agent named helper already exists" in str(failed.reason)
    assert list_notices(store)[0]["state"] == "failed"
    assert store.agents.get("helper").command == "cat"


def test_changed_effect_is_not_carried_out(store: Corral, ada: str) -> None:
    request = store.host_requests.ask(ada, "create_agent", HELPER)
    store.agents.edit(ada, command="rm -r /")
    failed = answer_request(store, request, "yes")
    assert (failed.state, "differs from the approved one" in str(failed.reason)) == ("failed", True)


def test_two_approvals_are_required_if_configured(store: Corral, ada: str) -> None:
    store.settings.set("chat.approvals", 2)
    for name in ("ann", "ben", "cleo"):
        store.people.set(name, role="owner")
    request = store.host_requests.ask(ada, "create_agent", HELPER)
    assert answer_request(store, request, "yes").state == "waiting"
    with raises_without_change(store, Refused):
        store.questions.answer(str(request.question_id), "yes", by="user:mallory")
    with raises_without_change(store, Refused):
        store.questions.answer(str(request.question_id), "yes", by="agent:ada")
    approved = answer_request(store, request, "yes", by="user:cleo")
    assert (approved.state, approved.decided_by) == ("done", "user:ann, user:cleo")


def test_project_setting_decides_number_of_approvals(
    store: Corral, ada: str, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path).id
    store.settings.set("chat.approvals", 2, scope=f"project:{project}")
    for name in ("ann", "ben"):
        store.people.set(name, role="owner")
    session = store.sessions.open(ada, project=project).id
    request = store.host_requests.ask(ada, "create_agent", HELPER, session=session)
    assert store.questions.get(str(request.question_id)).required_votes == 2


def test_ask_is_idempotent_by_key_and_limited_per_agent(store: Corral, ada: str) -> None:
    request = store.host_requests.ask(ada, "create_agent", HELPER, key="k")
    assert store.host_requests.ask(ada, "create_agent", HELPER, key="k") == request
    for n in range(19):
        store.host_requests.ask(ada, "create_agent", {**HELPER, "name": f"h{n}"})
    with raises_without_change(store, Refused):
        store.host_requests.ask(ada, "create_agent", {**HELPER, "name": "one-more"})
    assert len(store.host_requests.list(agent=ada, limit=100).items) == 20
    store.agents.create("ben")
    assert (
        store.host_requests.ask("ben", "create_agent", {**HELPER, "name": "other"}).state
        == "waiting"
    )


@each_case(
    ("action", "arguments"),
    [
        ("rebuild", {}),
        ("create_agent", {}),
        ("create_agent", {"name": "x", "instructions": "y", "command": "rm"}),
        ("create_agent", {"name": "a b", "instructions": "y"}),
        ("create_agent", {"name": "x", "instructions": ""}),
        ("schedule_prompt", {"text": "x"}),
        ("schedule_prompt", {"text": "x", "cron": "x"}),
        ("schedule_prompt", {"text": "x", "every_seconds": 1}),
        ("schedule_prompt", {"text": "x", "cron": "0 9 * * *", "time_zone": "Nowhere"}),
        ("change_prompt", {"schedule": "sch_1", "verb": "edit"}),
        ("secret", {"name": "../x", "reason": "y"}),
        ("create_agent", {"name": "x", "instructions": "use sk-ant-api03-" + "a1B2" * 23}),
    ],
)
def test_invalid_requests_are_rejected(
    store: Corral, ada: str, action: str, arguments: dict[str, Any]
) -> None:
    with raises_without_change(store, Invalid):
        store.host_requests.ask(ada, action, arguments)


def test_withdrawing_a_request_closes_its_question(store: Corral, ada: str) -> None:
    request = store.host_requests.ask(ada, "create_agent", HELPER)
    withdrawn = store.host_requests.withdraw(request.id)
    assert (withdrawn.state, store.questions.get(str(request.question_id)).state) == (
        "refused",
        "withdrawn",
    )
    store.internal.chat.run_upkeep()
    assert store.host_requests.get(request.id) == withdrawn


# -- scheduled prompts and destinations -----------------------------------------------------------


def test_approved_scheduled_prompt_wakes_agent_in_its_session(
    store: Corral, ada: str, clock: ManualClock
) -> None:
    chat = Chat(store)
    runner = Runner(store)
    store.wirings.add(ada, channel="fake")
    (route,) = chat.says("remind me every day").routes
    store.internal.chat.start_turns()
    run = runner.begin()
    arguments = {"text": "Remind ann.", "cron": "0 9 * * *", "script": "./due.sh"}
    request = store.host_requests.ask(
        ada, "schedule_prompt", arguments, run=run.id, session=route.session_id
    )
    assert "run this script on the host first:\n./due.sh" in request.effect
    approved = answer_request(store, request, "yes")
    task = store.schedules.get(str((approved.result or {})["schedule"]))
    assert (task.mailbox, task.script) == (f"session:{route.session_id}", "./due.sh")
    assert task.body["place"] == chat.place()
    (letter,) = [
        candidate
        for candidate in store.mail.list(mailbox=task.mailbox).items
        if isinstance(candidate.body, dict) and candidate.body.get("kind") == "host_request"
    ]
    assert letter.body["state"] == "done"


def test_agent_changes_only_its_own_prompts_without_approval(store: Corral, ada: str) -> None:
    own_prompt = store.schedules.prompt(ada, "x", cron="0 9 * * *")
    store.agents.create("ben", command="cat")
    foreign_prompt = store.schedules.prompt("ben", "x", cron="0 9 * * *")
    plain_schedule = store.schedules.create("agent:ada", "x", cron="0 9 * * *")
    for verb, state in (("pause", "paused"), ("resume", "active"), ("cancel", "cancelled")):
        request = store.host_requests.ask(
            ada, "change_prompt", {"schedule": own_prompt.id, "verb": verb}
        )
        assert (request.state, (request.result or {})["state"]) == ("done", state)
    for schedule in (foreign_prompt, plain_schedule):
        with raises_without_change(store, Refused):
            store.host_requests.ask(
                ada, "change_prompt", {"schedule": schedule.id, "verb": "cancel"}
            )


def test_destination_needs_approval_of_people(store: Corral, ada: str) -> None:
    chat = Chat(store)
    chat.says("hello")
    request = store.host_requests.ask(ada, "destination", {"place": "fake/room", "name": "news"})
    assert store.destinations.list(agent=ada).items == []
    assert answer_request(store, request, "yes").state == "done"
    (destination,) = store.destinations.list(agent=ada).items
    assert (destination.name, destination.place_id) == ("news", chat.place())


# -- secrets --------------------------------------------------------------------------------------

SECRET = "correct-horse-battery-staple"
SECRET_REQUEST = {"name": "mail-token", "reason": "to read the mails"}


def test_agent_is_notified_of_a_secret_but_never_gets_its_value(store: Corral, ada: str) -> None:
    request = store.host_requests.ask(ada, "secret", SECRET_REQUEST)
    question = store.questions.get(str(request.question_id))
    assert "to read the mails" in question.text
    assert "corral secret set mail-token --keep file" in str(question.effect)
    with raises_without_change(store, Invalid):
        store.questions.answer(question.id, SECRET, by="user:ann")
    store.internal.chat.run_upkeep()
    assert list_notices(store) == []
    store.secrets.save_value("mail-token", SECRET, where="file")
    store.internal.chat.run_upkeep()
    (letter,) = list_notices(store)
    assert letter["text"] == "The secret mail-token is available to new runs."
    assert store.questions.get(question.id).state == "withdrawn"
    assert SECRET not in str(contents(store))
    assert store.secrets.resolve("mail-token") == SECRET
    assert store.host_requests.ask(ada, "secret", SECRET_REQUEST).state == "done", (
        "the secret exists already"
    )


def test_secret_request_can_be_refused(store: Corral, ada: str) -> None:
    request = store.host_requests.ask(ada, "secret", SECRET_REQUEST)
    assert answer_request(store, request, "no").state == "refused"
    assert list_notices(store)[0]["state"] == "refused"


def show_secret_card(store: Corral, ada: str, **message: Any) -> tuple[Chat, HostRequest]:
    """Show a card in a chat that asks for a secret."""
    chat = Chat(store)
    store.wirings.add(ada, channel="fake")
    runner = Runner(store)
    (route,) = chat.says("read my mails", **message).routes
    store.internal.chat.start_turns()
    run = runner.begin()
    request = store.host_requests.ask(
        ada, "secret", SECRET_REQUEST, run=run.id, session=route.session_id
    )
    store.internal.chat.run_upkeep()
    chat.deliver()
    return chat, request


@pytest.mark.parametrize(
    "fields",
    [
        {"text": SECRET},
        {"text": f"here it is: {SECRET}", "reply_to": "card"},
        {"text": SECRET, "kind": MessageKind.ANSWER, "question": "card"},
        {"text": "", "attached": [RawAttachment("key.txt", SECRET.encode(), 9, "text/plain")]},
        {"text": SECRET, "kind": MessageKind.EDIT},
    ],
)
def test_secret_typed_into_chat_is_not_stored_and_sender_notified(
    store: Corral, ada: str, fields: dict[str, Any], tmp_path: Any
) -> None:
    chat, request = show_secret_card(store, ada, direct=True)
    assert "Never type a secret into a chat." in "".join(chat.platform.words())
    if fields.get("reply_to"):
        fields = {**fields, "reply_to": chat.platform.ids[-1]}
    if fields.get("question"):
        fields = {**fields, "question": request.question_id}
    message = chat.says(**fields, direct=True)
    assert (message.state, message.text) == ("refused", "[not kept: it may be a secret]")
    assert SECRET not in str(contents(store))
    assert message.data.get("files") is None
    chat.deliver()
    assert "it was not stored" in "".join(chat.platform.words())
    assert store.host_requests.get(request.id).state == "waiting"


def test_batch_with_a_secret_drops_only_the_secret(store: Corral, ada: str, tmp_path: Path) -> None:
    chat, _ = show_secret_card(store, ada, direct=True)
    key = RawAttachment("key.txt", SECRET.encode(), 9, "text/plain")
    contents_of_batch: list[dict[str, Any]] = [
        {"text": "what do you need it for?"},
        {"text": SECRET},
        {"text": "", "attached": [key]},
        {"text": SECRET * 8_000},
        {"text": "and since when?"},
    ]
    events = [
        IncomingEvent(event_id=f"b{n}", place="room", sender="ann", direct=True, **fields)
        for n, fields in enumerate(contents_of_batch)
    ]
    stored = store.messages.receive_all(chat.channel.id, events)
    assert [message.state for message in stored] == [
        "routed",
        "refused",
        "refused",
        "refused",
        "routed",
    ]
    assert SECRET not in str(contents(store))
    assert [*(tmp_path / "home").glob("channels/*/*")] == [], "the attachment is not stored either"


def test_chat_continues_while_a_secret_request_waits(store: Corral, ada: str) -> None:
    chat, request = show_secret_card(store, ada)
    assert chat.says("what do you need it for?").state == "routed"
    assert chat.says("okay").state == "routed"
    store.secrets.set("mail-token", "env:MAIL_TOKEN")
    store.internal.chat.run_upkeep()
    assert store.host_requests.get(request.id).state == "done"
    store.internal.chat.run_upkeep()
    assert chat.says("hello again").state == "routed"
    assert chat.says("hello again").text == "hello again"


def test_approver_refuses_a_secret_card_in_the_chat(store: Corral, ada: str) -> None:
    store.people.set("ann", role="owner")
    chat, request = show_secret_card(store, ada)
    store.senders.approve("fake/ann", person="ann", role="owner")
    assert chat.says("no").state == "routed"
    store.internal.chat.run_upkeep()
    assert store.host_requests.get(request.id).state == "refused"


# -- cards ----------------------------------------------------------------------------------------


def test_long_effect_is_shown_in_parts_before_the_card(store: Corral, ada: str) -> None:
    chat = Chat(store)
    store.wirings.add(ada, channel="fake")
    runner = Runner(store)
    (route,) = chat.says("go").routes
    store.internal.chat.start_turns()
    run = runner.begin()
    long_text = "word " * 100 + "AND THEN DELETE EVERYTHING"
    control_characters = "safe\u202etxt.exe\x1b[8m"
    arguments = {"name": "helper", "instructions": f"{long_text} {control_characters}"}
    request = store.host_requests.ask(
        ada, "create_agent", arguments, run=run.id, session=route.session_id
    )
    store.internal.chat.run_upkeep()
    chat.deliver()
    texts = chat.platform.words()
    assert len(texts) > 2
    assert "AND THEN DELETE EVERYTHING" in " ".join(texts[:-1])
    assert "\u202e" not in "".join(texts)
    assert "\x1b" not in "".join(texts)
    assert texts[-1].startswith(f"Answer the question above ({request.question_id})")


def test_request_is_carried_out_while_its_run_is_live(
    store: Corral, ada: str, clock: ManualClock
) -> None:
    chat = Chat(store)
    store.wirings.add(ada, channel="fake")
    store.people.set("ann", role="owner")
    store.senders.approve("fake/ann", person="ann", role="owner")
    runner = Runner(store)
    (route,) = chat.says("make a helper").routes
    store.internal.chat.start_turns()
    run = runner.begin()
    request = store.host_requests.ask(
        ada, "create_agent", HELPER, run=run.id, session=route.session_id
    )
    store.internal.chat.run_upkeep()
    chat.deliver()
    answer = chat.says("yes", kind=MessageKind.ANSWER, question=request.question_id)
    assert answer.state == "routed"
    store.internal.chat.run_upkeep()
    assert store.host_requests.get(request.id).state == "done"
    clock.advance(MINUTE)
    store.internal.chat.run_upkeep()
    chat.deliver()
    assert "ann answered: yes" in chat.platform.words()[-1]
