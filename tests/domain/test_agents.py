"""Agents: names, versions that never change, and the tools that they may use."""

from typing import Any

import pytest

from corral.api import Corral
from corral.domain.agents import ops
from corral.domain.agents.model import AgentLimits
from corral.domain.agents.roles import BUILTIN_ROLES
from corral.kernel.clock import ManualClock
from corral.kernel.errors import Ambiguous, Conflict, IllegalMove, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.store import record, refuses, rows, unchanged, walk


def test_an_agent_is_made_with_its_first_version(store: Corral, clock: ManualClock) -> None:
    made = store.agents.create(
        "ada", provider="claude", model="m", instructions="Be brief.", limits={"max_runs": 3}
    )
    assert made.id.startswith("agt_")
    assert (made.name, made.state, made.version, made.admin) == ("ada", "active", 1, False)
    assert (made.provider, made.model, made.instructions) == ("claude", "m", "Be brief.")
    assert made.limits == AgentLimits(max_runs=3)
    assert (made.created_at, made.updated_at) == (clock.now(), clock.now())
    assert store.agents.get("ada") == store.agents.get(made.id) == made
    assert record(store) == ["agent.create"]


def test_a_name_is_taken_once_also_by_a_retired_agent(store: Corral) -> None:
    store.agents.create("ada")
    with refuses(store, Conflict):
        store.agents.create("ada")
    store.agents.retire("ada")
    with refuses(store, Conflict) as caught:
        store.agents.create("ada")
    assert "Restore" in caught.value.message


@each_case("name", ["", "a b", "a:b", "a/b", "agt_x", "a\n", "a\0", "x" * 101])
def test_a_name_that_would_be_mistaken_is_refused(store: Corral, name: str) -> None:
    with refuses(store, Invalid):
        store.agents.create(name)


@each_case(
    "limits",
    [{"max_runs": 0}, {"budget_micros": -1}, {"timeout_ms": "1h"}, {"other": 1}, [], 5],
)
def test_limits_that_mean_nothing_are_refused(store: Corral, limits: Any) -> None:
    if limits == []:
        assert store.agents.create("ada", limits=limits).limits == AgentLimits()
        return
    with refuses(store, Invalid):
        store.agents.create("ada", limits=limits)


def test_a_built_in_role_brings_its_instructions_unless_others_are_given(store: Corral) -> None:
    assert store.agents.create("a", role="builder").instructions == BUILTIN_ROLES["builder"]
    assert store.agents.create("b", role="builder", instructions="Mine.").instructions == "Mine."
    assert store.agents.create("c", role="gardener", instructions="Weed.").role == "gardener"
    assert store.agents.create("d", role="gardener", command="./weed").instructions is None


def test_a_provider_that_is_unknown_is_refused_with_those_that_are_known(
    store: Corral,
) -> None:
    store.agents.create("ada", role="reviewer", provider="claude")
    for change in (store.agents.edit, store.agents.create):
        name = "ada" if change is store.agents.edit else "ben"
        with refuses(store, Invalid) as caught:
            change(name, provider="nosuch")
        assert "provider 'nosuch': use one of claude, codex" in caught.value.message


def test_a_new_role_brings_new_instructions_only_where_the_old_ones_were_the_roles(
    store: Corral,
) -> None:
    store.agents.create("a", role="builder")
    assert store.agents.edit("a", role="tester").instructions == BUILTIN_ROLES["tester"]
    store.agents.edit("a", instructions="Mine.")
    assert store.agents.edit("a", role="builder").instructions == "Mine."


def test_an_edit_is_a_new_version_and_the_old_one_stays_as_it_was(
    store: Corral, clock: ManualClock
) -> None:
    first = store.agents.create("ada", instructions="Old.", model="m")
    old = store.agents.version("ada", 1)
    clock.advance(5)
    second = store.agents.edit("ada", instructions="New.")
    assert (second.version, second.instructions, second.model) == (2, "New.", "m")
    assert (second.created_at, second.updated_at) == (first.created_at, clock.now())
    assert store.agents.version("ada", 1) == old
    assert old.instructions == "Old."
    assert second.hash == store.agents.version("ada", 2).hash != old.hash
    assert record(store) == ["agent.create", "agent.edit"]


def test_the_same_content_is_no_new_version(store: Corral) -> None:
    made = store.agents.create("ada", model="m", limits={"max_runs": 1})
    with unchanged(store):
        assert store.agents.edit("ada") == made
        assert store.agents.edit("ada", model="m", limits=AgentLimits(max_runs=1)) == made


def test_the_same_content_again_has_the_same_hash(store: Corral) -> None:
    first = store.agents.create("ada", model="m")
    store.agents.edit("ada", model="n")
    assert store.agents.edit("ada", model="m").hash == first.hash
    assert store.agents.get("ada").version == 3


def test_what_is_left_out_is_kept_and_none_clears_it(store: Corral) -> None:
    store.agents.create("ada", model="m", command="c", limits={"idle_ms": 5})
    edited = store.agents.edit("ada", model=None)
    assert (edited.model, edited.command, edited.limits.idle_ms) == (None, "c", 5)
    assert store.agents.edit("ada", limits=None).limits == AgentLimits()


def test_the_admin_flag_changes_without_a_new_version(store: Corral) -> None:
    store.agents.create("ada")
    admin = store.agents.edit("ada", admin=True)
    assert (admin.admin, admin.version) == (True, 1)
    assert rows(store, "SELECT admin FROM agents") == [(1,)]


def test_versions_are_listed_newest_first(store: Corral) -> None:
    store.agents.create("ada")
    for n in range(4):
        store.agents.edit("ada", model=str(n))
    listed = walk(lambda **given: store.agents.versions("ada", **given))
    assert [version.number for version in listed] == [5, 4, 3, 2, 1]
    with pytest.raises(NotFound):
        store.agents.version("ada", 6)


def test_agents_are_listed_by_name_without_the_retired(store: Corral) -> None:
    for name in ("eve", "ada", "ben"):
        store.agents.create(name)
    store.agents.retire("ben")
    assert [agent.name for agent in walk(store.agents.list)] == ["ada", "eve"]
    assert [agent.name for agent in walk(store.agents.list, retired=True)] == ["ada", "ben", "eve"]


def test_a_retired_agent_is_not_edited_and_can_be_taken_back(store: Corral) -> None:
    store.agents.create("ada")
    assert store.agents.retire("ada").state == "retired"
    for verb in (lambda: store.agents.edit("ada", model="x"), lambda: store.agents.retire("ada")):
        with refuses(store, IllegalMove):
            verb()
    assert store.agents.restore("ada").state == "active"


def test_an_id_may_be_shortened(store: Corral) -> None:
    ada = store.agents.create("ada")
    assert store.agents.get(ada.id[:-1] if ada.id else "").id == ada.id
    store.agents.create("ben")
    with pytest.raises(Ambiguous):
        store.agents.get("agt_0")
    for missing in ("agt_zzz", "nobody"):
        with pytest.raises(NotFound):
            store.agents.get(missing)


# -- tools ---------------------------------------------------------------------------------------


def test_an_agent_has_a_bounded_number_of_rules_which_may_still_change(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MAX_GRANTS", 2)
    store.agents.create("ada")
    for tool in ("Read", "Write"):
        store.agents.grant("ada", tool)
    with refuses(store, Refused):
        store.agents.grant("ada", "Bash")
    assert store.agents.grant("ada", "Read", allow=False).allowed is False


def test_a_tool_granted_twice_is_one_row_and_one_event(store: Corral) -> None:
    store.agents.create("ada")
    first = store.agents.grant("ada", "Read")
    with unchanged(store):
        assert store.agents.grant("ada", "Read") == first
    assert [grant.tool for grant in store.agents.grants("ada").items] == ["Read"]
    assert record(store) == ["agent.create", "agent.grant"]


def test_a_denied_tool_is_not_allowed_until_it_is_granted_again(store: Corral) -> None:
    store.agents.create("ada")
    assert store.agents.allows("ada", "Bash(rm x)")
    denied = store.agents.grant("ada", "Bash(rm *)", allow=False)
    assert denied.allowed is False
    assert not store.agents.allows("ada", "Bash(rm x)")
    assert store.agents.allows("ada", "Bash(ls)")
    store.agents.grant("ada", "Bash(rm *)")
    assert store.agents.allows("ada", "Bash(rm x)")
    assert not store.agents.allows("ada", "Bash(ls)"), "once anything is allowed, only that is"
    store.agents.revoke("ada", "Bash(rm *)")
    assert store.agents.allows("ada", "Bash(ls)")
    assert record(store)[1:] == ["agent.deny", "agent.grant", "agent.revoke"]


def test_what_was_never_said_of_a_tool_cannot_be_taken_back(store: Corral) -> None:
    store.agents.create("ada")
    with refuses(store, NotFound):
        store.agents.revoke("ada", "Read")
    with refuses(store, Invalid):
        store.agents.grant("ada", "")


def test_rules_of_one_agent_do_not_bind_another(store: Corral) -> None:
    store.agents.create("ada")
    store.agents.create("ben")
    store.agents.grant("ada", "Read")
    assert store.agents.allows("ben", "Write")
