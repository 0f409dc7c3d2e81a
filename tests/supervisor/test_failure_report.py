"""The report that a failing test prints: expected behaviour, events, runs and logs."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.api import Corral
from tests.support import failure_report
from tests.support.home import Home


def build_report(name: str, **fixtures: Any) -> dict[str, str]:
    def test() -> None:
        """The docstring of the test."""

    item = SimpleNamespace(name=name, function=test, funcargs=fixtures)
    return dict(failure_report.sections(cast(pytest.Item, item)))


def test_failure_report_names_the_behaviour_and_the_last_events(store: Corral) -> None:
    store.mail.put("queue:x", "first")
    store.mail.put("queue:x", "second")
    report = build_report("test_letters_stay_in_order[sqlite]", store=store)
    behaviour = report["expected behaviour"]
    assert behaviour == "letters stay in order [sqlite]\nThe docstring of the test."
    events = report["last events of the store"].splitlines()
    assert [line.split(": ")[1].split()[:3] for line in events] == [
        ["letter", "put", "let_1"],
        ["letter", "put", "let_2"],
    ]


@pytest.mark.parametrize("engine", ["sqlite"])
def test_failure_report_shows_outputs_and_logs(home: Home) -> None:
    run = home.start_detached("sh", "-c", "echo printed text; exit 3")
    home.wait_for_end(run.id)
    (home.folder_of(run).parents[1] / "daemon.log").write_text("logged text")
    report = build_report("test_it", home=home, url=home.url)
    assert run.id in report["last events of the store"]
    assert f"{run.id} failed, exit 3" in report["runs"]
    assert "printed text" in report["runs"]
    assert report["daemon.log"] == "logged text"


def test_unreadable_store_does_not_hide_the_failure() -> None:
    report = build_report("test_it", url="sqlite:////nowhere/corral.db")
    assert report["last events of the store"].startswith("cannot be read: StoreUnavailable")
