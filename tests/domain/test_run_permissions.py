"""What a process inside a run may do with the objects of other runs and agents."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.api.internal import InternalStore
from corral.api.lazy_resource import LazyResource
from corral.api.operation import Operation
from corral.api.permissions import INTERNAL_CHANGES_IN_RUN, RunStore
from corral.domain.runs.model import Run
from corral.kernel.errors import Refused
from corral.kernel.identity import RunIdentity


def start_agent(store: Corral, name: str) -> Run:
    """Queue a run of a new agent with a session."""
    store.agents.create(name, command="true")
    return store.runs.start(agent=name, prompt="Begin.")


def open_inside(store: Corral, run: Run, agent: str | None) -> RunStore:
    """Open the store as a process inside a run sees it."""
    identity = RunIdentity(run.id, run.agent_id, agent, run.session_id, run.project_id)
    return RunStore(store.as_actor(identity.actor, run.id), identity)


def list_closed_changes(store: Corral) -> list[tuple[str, str]]:
    """List the changes by internal and private operations: the resource and the operation."""
    resources = [
        (store, name, "") for name, member in vars(Corral).items() if is_resource(member)
    ] + [
        (store.internal, name, "internal.")
        for name, member in vars(InternalStore).items()
        if is_resource(member)
    ]
    return [
        (f"{prefix}{name}", verb)
        for owner, name, prefix in resources
        for verb, member in vars(type(getattr(owner, name))).items()
        if isinstance(member, Operation)
        and (prefix or verb.startswith("_"))
        and member.kind != "read"
        and not member.policy.reads
    ]


def is_resource(member: object) -> bool:
    return isinstance(member, LazyResource)


def test_internal_and_private_changes_are_refused_inside_a_run(store: Corral) -> None:
    inside = open_inside(store, start_agent(store, "ada"), "ada")
    accepted = set()
    for resource, verb in list_closed_changes(store):
        owner = inside.internal if resource.startswith("internal.") else inside
        call = getattr(getattr(owner, resource.removeprefix("internal.")), verb)
        try:
            call()
        except Refused:
            continue
        except TypeError:  # it was called, without its arguments
            pass
        accepted.add(f"{resource}.{verb}")
    assert accepted == INTERNAL_CHANGES_IN_RUN


def test_process_inside_a_run_cannot_take_over_a_session(store: Corral) -> None:
    ada, bob = start_agent(store, "ada"), start_agent(store, "bob")
    inside = open_inside(store, ada, "ada")
    assert bob.session_id is not None
    with pytest.raises(Refused):
        inside.runs.link_session(inside.runs.get(ada.id), bob.session_id)
    assert store.runs.get(ada.id).session_id == ada.session_id


def test_process_inside_a_run_charges_only_its_own_run(store: Corral) -> None:
    ada, bob = start_agent(store, "ada"), start_agent(store, "bob")
    inside = open_inside(store, ada, "ada")
    charge = inside.charges.add(
        UsageFact("m", input=1, cost_micros=5),
        run_id=bob.id,
        session_id=bob.session_id,
        agent_id=bob.agent_id,
    )
    assert charge is not None
    assert (charge.run_id, charge.session_id, charge.agent_id) == (
        ada.id,
        ada.session_id,
        ada.agent_id,
    )


@pytest.mark.parametrize("counter", ["thread", "cost:thread"])
def test_process_inside_a_run_cannot_advance_a_counter_of_another_run(
    store: Corral, counter: str
) -> None:
    ada, bob = start_agent(store, "ada"), start_agent(store, "bob")
    inside = open_inside(store, ada, "ada")
    forged = UsageFact("m", output=100, cost_micros=100, counter=counter)
    inside.charges.add(forged)
    charge = store.charges.add(forged, run_id=bob.id, agent_id=bob.agent_id)
    assert charge is not None
    assert charge.cost_micros == 100
    repeated = inside.charges.add(forged)
    assert repeated is None or repeated.cost_micros == 0


def test_check_outside_runs_cannot_charge(store: Corral) -> None:
    inside = RunStore(store, RunIdentity(None, None, None, None, None))
    with pytest.raises(Refused):
        inside.charges.add(UsageFact("m", input=1))


def test_process_inside_a_run_cannot_answer_as_another_run(store: Corral) -> None:
    ada, eve = start_agent(store, "ada"), start_agent(store, "eve")
    inside = open_inside(store, eve, "eve")
    with pytest.raises(Refused) as error:
        inside.messages.next(ada.id, answer="forged")
    assert error.value.details["run"] == eve.id
    with pytest.raises(Refused) as error:
        inside.messages.next(eve.id)
    assert error.value.details["reason"] == "no_session"  # the call itself was accepted


def test_question_from_inside_a_run_names_that_run(store: Corral) -> None:
    ada, bob = start_agent(store, "ada"), start_agent(store, "bob")
    inside = open_inside(store, ada, "ada")
    assert inside.questions.ask("May I?", options=["yes"], run=bob.id).run_id == ada.id


def test_caller_cannot_set_the_internal_fields_of_a_run_request(store: Corral) -> None:
    """Recorded turns are not quoted, so a caller could write as the user of a session."""
    ada, bob = start_agent(store, "ada"), start_agent(store, "bob")
    inside = open_inside(store, ada, "ada")
    options: dict[str, Any] = {"prompt": "Delete the backups.", "recorded_turns": []}
    with pytest.raises(TypeError):
        inside.runs.start(session=bob.session_id, **options)
    store.runs.stop(bob.id)
    with pytest.raises(TypeError):
        inside.runs.resume(bob.id, **options)


@pytest.mark.parametrize("agent", ["ada", None])
def test_process_inside_a_run_cannot_start_a_command_in_a_session_of_another_agent(
    store: Corral, agent: str | None
) -> None:
    bob = store.agents.create("bob", command="true")
    session = store.sessions.open(bob.id)
    caller = start_agent(store, "ada") if agent else store.runs.start(command=["true"])
    inside = open_inside(store, caller, agent)
    with pytest.raises(Refused):
        inside.runs.start(session=session.id, command=["true"])
    with pytest.raises(Refused):
        inside.runs.resume(session.id, command=["true"])
    assert not store.runs.list(session=session.id).items


def test_check_cannot_start_a_command_in_a_session_of_an_agent(store: Corral) -> None:
    session = store.sessions.open(store.agents.create("bob", command="true").id)
    identity = RunIdentity(None, None, None, None, None)
    inside = RunStore(store.as_actor(identity.actor), identity)
    with pytest.raises(Refused):
        inside.runs.start(session=session.id, command=["true"])


def test_agent_may_start_a_command_in_its_own_session(store: Corral) -> None:
    ada = start_agent(store, "ada")
    inside = open_inside(store, ada, "ada")
    session = store.sessions.open(ada.agent_id)
    assert inside.runs.start(session=session.id, command=["true"]).session_id == session.id


def test_process_inside_a_run_cannot_change_a_session_of_another_agent(store: Corral) -> None:
    ada, bob = start_agent(store, "ada"), start_agent(store, "bob")
    sessions = open_inside(store, ada, "ada").sessions
    changes: list[Callable[[str], object]] = [
        lambda session: sessions.set_state(session, "branch", "main"),
        lambda session: sessions.rename(session, "Mine"),
        lambda session: sessions.record_retro(session, {"failures": []}),
        sessions.close,
        sessions.reopen,
    ]
    assert ada.session_id is not None
    assert bob.session_id is not None
    for change in changes:
        with pytest.raises(Refused):
            change(bob.session_id)
        change(ada.session_id)


def test_process_inside_a_run_cannot_take_letters_of_another_mailbox(store: Corral) -> None:
    ada, bob = start_agent(store, "ada"), start_agent(store, "bob")
    mail = open_inside(store, ada, "ada").mail
    for mailbox in ("agent:bob", f"session:{bob.session_id}", "user:root"):
        letter = store.mail.put(mailbox, "hello")
        with pytest.raises(Refused):
            mail.claim(mailbox, owner="ada")
        for change in (mail.drop, mail.ack, mail.resend):
            with pytest.raises(Refused):
                change(letter.id)
            with pytest.raises(Refused):
                change(msgspec.structs.replace(letter, mailbox="agent:ada"))
        assert store.mail.get(letter.id) == letter
    for mailbox in ("agent:ada", f"session:{ada.session_id}", "queue:builds"):
        store.mail.put(mailbox, "hello")
        (letter,) = mail.claim(mailbox, owner="ada")
        mail.ack(letter)
