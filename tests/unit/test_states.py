"""Transition tables."""

from enum import StrEnum

import pytest

from corral.kernel.states import Transition, TransitionTable, allow
from tests.support.grouped_cases import each_case


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    BROKEN = "broken"


LIGHTS = TransitionTable(
    "light",
    Light,
    create_verb="install",
    initial=Light.RED,
    verbs={
        "go": allow(Light.RED, to=Light.GREEN),
        "stop": allow(Light.GREEN, to=Light.RED),
        "blink": allow(Light.RED, Light.GREEN, to=Light.GREEN),
        "smash": allow(Light.RED, Light.GREEN, to=Light.BROKEN),
    },
)


def test_transition_has_its_sources_and_its_target() -> None:
    assert LIGHTS["blink"] == Transition((Light.RED, Light.GREEN), Light.GREEN)


def test_unknown_verb_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        LIGHTS["fly"]


@each_case(
    ("state", "verbs"),
    [
        ("red", ["go", "blink", "smash"]),
        (Light.GREEN, ["stop", "blink", "smash"]),
        ("broken", []),
        ("purple", []),
    ],
)
def test_outgoing_verbs_come_in_table_order(state: str, verbs: list[str]) -> None:
    assert LIGHTS.allowed_from(state) == verbs


def test_states_without_outgoing_verbs_are_terminal() -> None:
    assert LIGHTS.terminal == [Light.BROKEN]
