"""Agents: names, immutable versions and tool rules."""

from typing import Any

import pytest

from corral.api import Corral
from corral.domain.agents import ops
from corral.domain.agents.model import AgentLimits
from corral.domain.agents.roles import BUILTIN_ROLES
from corral.kernel.clock import ManualClock
from corral.kernel.errors import Ambiguous, Conflict, IllegalMove, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, rows, unchanged, walk


def test_create_adds_the_first_version(store: Corral, clock: ManualClock) -> None:
    agent = store.agents.create(
        "ada", provider="claude", model="m", instructions="Be brief.", limits={"max_runs": 3}
    )
    assert agent.id.startswith("agt_")
    assert (agent.name, agent.state, agent.version, agent.admin) == ("ada", "active", 1, False)
    assert (agent.provider, agent.model, agent.instructions) == ("claude", "m", "Be brief.")
    assert agent.limits == AgentLimits(max_runs=3)
    assert (agent.created_at, agent.updated_at) == (clock.now(), clock.now())
    assert store.agents.get("ada") == store.agents.get(agent.id) == agent
    assert list_events(store) == ["agent.create"]


def test_agent_name_is_unique_including_retired_agents(store: Corral) -> None:
    store.agents.create("ada")
    with raises_without_change(store, Conflict):
        store.agents.create("ada")
    store.agents.retire("ada")
    with raises_without_change(store, Conflict) as caught:
        store.agents.create("ada")
    assert "Restore" in caught.value.message


@each_case("name", ["", "a b", "a:b", "a/b", "agt_x", "nobody", "Nobody", "a\n", "a\0", "x" * 101])
def test_ambiguous_agent_names_are_rejected(store: Corral, name: str) -> None:
    with raises_without_change(store, Invalid):
        store.agents.create(name)


@each_case(
    "limits",
    [{"max_runs": 0}, {"budget_micros": -1}, {"timeout_ms": "1h"}, {"other": 1}, [], 5],
)
def test_invalid_limits_are_rejected(store: Corral, limits: Any) -> None:
    if limits == []:
        assert store.agents.create("ada", limits=limits).limits == AgentLimits()
        return
    with raises_without_change(store, Invalid):
        store.agents.create("ada", limits=limits)


def test_built_in_role_provides_default_instructions(store: Corral) -> None:
    assert store.agents.create("a", role="builder").instructions == BUILTIN_ROLES["builder"]
    assert (
        store.agents.create("b", role="builder", instructions="Custom.").instructions == "Custom."
    )
    assert store.agents.create("c", role="custom", instructions="Custom.").role == "custom"
    assert store.agents.create("d", role="custom", command="./run").instructions is None


def test_unknown_provider_is_rejected_with_the_known_ones(
    store: Corral,
) -> None:
    store.agents.create("ada", role="reviewer", provider="claude")
    for change in (store.agents.edit, store.agents.create):
        name = "ada" if change is store.agents.edit else "ben"
        with raises_without_change(store, Invalid) as caught:
            change(name, provider="nosuch")
        assert "provider 'nosuch': use one of claude, codex" in caught.value.message


def test_new_role_replaces_only_instructions_of_the_old_role(
    store: Corral,
) -> None:
    store.agents.create("a", role="builder")
    assert store.agents.edit("a", role="tester").instructions == BUILTIN_ROLES["tester"]
    store.agents.edit("a", instructions="Custom.")
    assert store.agents.edit("a", role="builder").instructions == "Custom."


def test_edit_creates_a_version_and_keeps_the_old_one(store: Corral, clock: ManualClock) -> None:
    agent = store.agents.create("ada", instructions="Old.", model="m")
    first_version = store.agents.version("ada", 1)
    clock.advance(5)
    edited = store.agents.edit("ada", instructions="New.")
    assert (edited.version, edited.instructions, edited.model) == (2, "New.", "m")
    assert (edited.created_at, edited.updated_at) == (agent.created_at, clock.now())
    assert store.agents.version("ada", 1) == first_version
    assert first_version.instructions == "Old."
    assert edited.hash == store.agents.version("ada", 2).hash != first_version.hash
    assert list_events(store) == ["agent.create", "agent.edit"]


def test_edit_with_same_content_creates_no_version(store: Corral) -> None:
    agent = store.agents.create("ada", model="m", limits={"max_runs": 1})
    with unchanged(store):
        assert store.agents.edit("ada") == agent
        assert store.agents.edit("ada", model="m", limits=AgentLimits(max_runs=1)) == agent


def test_same_content_has_the_same_hash(store: Corral) -> None:
    agent = store.agents.create("ada", model="m")
    store.agents.edit("ada", model="n")
    assert store.agents.edit("ada", model="m").hash == agent.hash
    assert store.agents.get("ada").version == 3


def test_omitted_values_are_kept_and_none_clears_them(store: Corral) -> None:
    store.agents.create("ada", model="m", command="c", limits={"idle_ms": 5})
    edited = store.agents.edit("ada", model=None)
    assert (edited.model, edited.command, edited.limits.idle_ms) == (None, "c", 5)
    assert store.agents.edit("ada", limits=None).limits == AgentLimits()


def test_admin_flag_changes_without_a_new_version(store: Corral) -> None:
    store.agents.create("ada")
    admin = store.agents.edit("ada", admin=True)
    assert (admin.admin, admin.version) == (True, 1)
    assert rows(store, "SELECT admin FROM agents") == [(1,)]


def test_versions_are_listed_newest_first(store: Corral) -> None:
    store.agents.create("ada")
    for n in range(4):
        store.agents.edit("ada", model=str(n))
    versions = walk(lambda **page: store.agents.versions("ada", **page))
    assert [version.number for version in versions] == [5, 4, 3, 2, 1]
    with pytest.raises(NotFound):
        store.agents.version("ada", 6)


def test_agents_are_listed_by_name_without_retired_ones(store: Corral) -> None:
    for name in ("eve", "ada", "ben"):
        store.agents.create(name)
    store.agents.retire("ben")
    assert [agent.name for agent in walk(store.agents.list)] == ["ada", "eve"]
    assert [agent.name for agent in walk(store.agents.list, retired=True)] == ["ada", "ben", "eve"]


def test_retired_agent_cannot_be_edited_and_can_be_restored(store: Corral) -> None:
    store.agents.create("ada")
    assert store.agents.retire("ada").state == "retired"
    for operation in (
        lambda: store.agents.edit("ada", model="x"),
        lambda: store.agents.retire("ada"),
    ):
        with raises_without_change(store, IllegalMove):
            operation()
    assert store.agents.restore("ada").state == "active"


def test_agent_id_can_be_shortened(store: Corral) -> None:
    ada = store.agents.create("ada")
    assert store.agents.get(ada.id[:-1] if ada.id else "").id == ada.id
    store.agents.create("ben")
    with pytest.raises(Ambiguous):
        store.agents.get("agt_0")
    for missing in ("agt_zzz", "unknown"):
        with pytest.raises(NotFound):
            store.agents.get(missing)


# -- tools ---------------------------------------------------------------------------------------


def test_number_of_tool_rules_is_limited_but_rules_can_change(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MAX_GRANTS", 2)
    store.agents.create("ada")
    for tool in ("Read", "Write"):
        store.agents.grant("ada", tool)
    with raises_without_change(store, Refused):
        store.agents.grant("ada", "Bash")
    assert store.agents.grant("ada", "Read", allow=False).allowed is False


def test_grant_is_idempotent(store: Corral) -> None:
    store.agents.create("ada")
    granted = store.agents.grant("ada", "Read")
    with unchanged(store):
        assert store.agents.grant("ada", "Read") == granted
    assert [grant.tool for grant in store.agents.grants("ada").items] == ["Read"]
    assert list_events(store) == ["agent.create", "agent.grant"]


def test_denied_tool_is_allowed_after_a_grant(store: Corral) -> None:
    store.agents.create("ada")
    assert store.agents.allows("ada", "Bash(rm x)")
    denied = store.agents.grant("ada", "Bash(rm *)", allow=False)
    assert denied.allowed is False
    assert not store.agents.allows("ada", "Bash(rm x)")
    assert store.agents.allows("ada", "Bash(ls)")
    store.agents.grant("ada", "Bash(rm *)")
    assert store.agents.allows("ada", "Bash(rm x)")
    assert not store.agents.allows("ada", "Bash(ls)"), (
        "a grant restricts the agent to granted tools"
    )
    store.agents.revoke("ada", "Bash(rm *)")
    assert store.agents.allows("ada", "Bash(ls)")
    assert list_events(store)[1:] == ["agent.deny", "agent.grant", "agent.revoke"]


def test_revoking_an_unknown_rule_is_not_found(store: Corral) -> None:
    store.agents.create("ada")
    with raises_without_change(store, NotFound):
        store.agents.revoke("ada", "Read")
    with raises_without_change(store, Invalid):
        store.agents.grant("ada", "")


def test_tool_rules_apply_to_one_agent_only(store: Corral) -> None:
    store.agents.create("ada")
    store.agents.create("ben")
    store.agents.grant("ada", "Read")
    assert store.agents.allows("ben", "Write")
