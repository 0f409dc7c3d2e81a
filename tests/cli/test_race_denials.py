"""The hint of `corral race show` about tools that attempts were not permitted to use."""

import json
from pathlib import Path

import pytest

import corral
from tests.support.cli_runner import Cli
from tests.support.race_factory import RaceFactory


@pytest.mark.parametrize(
    ("denials", "options"),
    [
        (("Edit", "Bash"), "--yes edit --yes run"),
        (("Edit", None), "--yes edit"),
        (("Frobnicate", "Bash"), "--yes all"),
    ],
)
def test_hint_names_the_same_classes_as_show(
    cli: Cli, url: str, tmp_path: Path, denials: tuple[str | None, ...], options: str
) -> None:
    with corral.open(url) as store:
        race_factory = RaceFactory(store, tmp_path)
        race = race_factory.start("ada", "ben")
        for number, tool in enumerate(denials, 1):
            denied = [{"attempt": 1, "tool": tool, "count": 2}] if tool else None
            race_factory.end(race, number, denials=denied and json.dumps(denied))
        race_factory.settle(race)
    text = " ".join(cli("race", "show", race.id).out.split())
    assert f"start the race again with {options}." in text
