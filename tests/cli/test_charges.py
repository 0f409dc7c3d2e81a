"""The overview and the commands `stats`, `charge`, `budget` and `alert`."""

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.cli.commands.stats import render_bar
from tests.support.cli_runner import Cli
from tests.support.grouped_cases import each_case
from tests.support.http_receiver import run_receiver
from tests.support.run_factories import add_run


@pytest.fixture
def shared(url: str) -> Any:
    """The store that the command line uses."""
    with corral.open(url) as store:
        yield store


def test_corral_without_arguments_shows_an_overview(
    cli: Cli, shared: Corral, tmp_path: Path
) -> None:
    project = shared.projects.register(tmp_path)
    run = add_run(shared, "running", project_id=project.id, attention="stuck", name="\x1b[31mred")
    add_run(shared, "crashed", reason="it vanished")
    shared.charges.add(UsageFact(model="m", input=1_200, cost_micros=2_500_000), run_id=run)
    shared.charges.add(UsageFact(model="m", input=1), run_id=run)
    result = cli()
    assert result.code == 0
    assert run in result.out
    assert "\x1b" not in result.out
    for text in (
        "Needs your input",
        "stuck",
        "it vanished",
        "$2.50, 1,201 tokens, 1 of 2 charges of unknown cost",
    ):
        assert text in result.out
    value = cli.json()
    assert [entry["id"] for entry in value["active"]] == [run]
    assert value["today"]["cost_micros"] == 2_500_000


def test_unknown_cost_is_not_shown_as_zero(cli: Cli, shared: Corral) -> None:
    shared.charges.add(UsageFact(model="m", input=5), run_id="run_1")
    assert "unknown cost" in cli().out
    assert cli.json("charge", "total")["cost_micros"] is None
    assert "$0" not in cli("charge", "total").out
    assert "$0" not in cli("charge", "list").out


def test_stats_are_printed_as_table_json_and_csv(cli: Cli, shared: Corral) -> None:
    for n in range(4):
        at = shared.now() - 61_500
        add_run(shared, "completed", at, ended_at=at + 61_500, model="a", cost_micros=n, tokens=n)
    add_run(shared, "failed", model="=cmd()")
    result = cli("stats", "--by", "model")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split()[:3] == ["MODEL", "RUNS", "SHARE"]
    assert "█" * 20 in lines[1]
    assert "1m1s" in lines[1]
    assert "100%" in lines[1]
    assert "0%" in lines[2]
    first, second = cli.json("stats", "--by", "model", "--since", "7d")
    assert (first["key"], first["runs"], first["success_rate"], first["cost_micros"]) == (
        "a",
        4,
        1.0,
        6,
    )
    assert (second["cost_micros"], second["unpriced"]) == (None, 1)
    rows = list(csv.DictReader(io.StringIO(cli("stats", "--by", "model", "--csv").out)))
    assert [row["runs"] for row in rows] == ["4", "1"]
    assert rows[1]["cost_micros"] == ""
    assert rows[1]["key"] == "'=cmd()"
    (day,) = cli.json("stats", "--by", "day")
    assert day["runs"] == 5


def test_runs_of_lost_nodes_are_counted_if_there_are_any(cli: Cli, shared: Corral) -> None:
    add_run(shared, "completed", model="a")
    assert "INTERRUPTED" not in cli("stats").out
    add_run(shared, "interrupted", model="a")
    titles, counts, *_ = cli("stats", "--by", "model").out.splitlines()
    at = titles.index("INTERRUPTED")
    assert counts[at:].split()[0] == "1"


def test_empty_stats_say_so(cli: Cli) -> None:
    assert cli("stats").out == "No runs have ended yet.\n"
    assert cli.json("stats") == []
    assert cli("stats", "--csv").out.count("\n") == 1
    assert cli.error("stats", "--by", "mood")["exit_code"] == 2


@each_case(
    ("count", "most", "length"), [(0, 0, 0), (0, 9, 0), (9, 9, 20), (1, 10_000, 1), (5, 10, 10)]
)
def test_bar_length_is_proportional(count: int, most: int, length: int) -> None:
    assert len(render_bar(count, most)) == length


def test_charges_are_listed_shown_totalled_and_priced(cli: Cli, shared: Corral) -> None:
    charge = shared.charges.add(
        UsageFact(model="gpt-5", output=1_000), run_id="run_1", provider="codex"
    )
    assert charge is not None
    assert [entry["id"] for entry in cli.json("charge", "list", "--run", "run_1")] == [charge.id]
    assert cli.json("charge", "price") == {"priced": 1}
    assert cli.json("charge", "show", charge.id)["cost_micros"] == 10_000
    assert "$0.01" in cli("charge", "total", "run:run_1").out
    (day,) = cli.json("charge", "days")
    assert day["output"] == 1_000
    assert cli.error("charge", "show", "chg_99")["exit_code"] == 3
    assert cli.error("charge", "total", "galaxy")["exit_code"] == 2


def test_budgets_are_set_in_dollars_listed_and_removed(
    cli: Cli, shared: Corral, tmp_path: Path
) -> None:
    project = shared.projects.register(tmp_path)
    result = cli.json("budget", "set", f"project:{tmp_path}", "2.50", "--period", "day")
    assert (result["scope"], result["limit_micros"]) == (f"project:{project.id}", 2_500_000)
    assert cli("budget", "set", "all", "$10").out == "Budget of all: $10.00, $0.00 spent.\n"
    assert [entry["scope"] for entry in cli.json("budget", "list")] == [
        "all",
        f"project:{project.id}",
    ]
    assert "$2.50" in cli("budget", "list").out
    cli.json("budget", "remove", f"project:{project.id}", "--period", "day")
    assert cli.error("budget", "remove", "all", "--period", "day")["exit_code"] == 3
    for arguments in (["all", "lots"], ["all", "-1"], ["planet:1", "1"]):
        assert cli.error("budget", "set", *arguments)["exit_code"] == 2
    shared.internal.charges.reserve("run_1", budget_micros=9_000_000)
    (budget,) = [entry for entry in cli.json("budget", "list") if entry["scope"] == "all"]
    assert budget["reserved_micros"] == 9_000_000


def test_alert_is_added_tested_delivered_and_removed(
    cli: Cli, shared: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOOK_KEY", "hush-hush")
    shared.secrets.set("key", "env:HOOK_KEY")
    with run_receiver() as server:
        result = cli.json(
            "alert", "add", "--on", "crashed, failed", "--webhook", server.url, "--secret", "key"
        )
        assert result["kinds"] == ["crashed", "failed"]
        (item,) = cli.json("alert", "test", result["id"])
        assert item["state"] == "done"
        assert json.loads(server.posted[0].body)["event"] == "test"
        shared.internal.alerts.raise_alert("crashed", "run_1", edge=1)
        server.answers = [500]
        (item,) = cli.json("alert", "deliver")
        assert item["state"] == "waiting"
        assert "500" in item["error"]
        assert cli.json("alert", "deliver") == []
        text = cli("alert", "deliver").out
        assert text.startswith(f"Nothing is due now: {item['letter_id']} of {result['id']} is due ")
        assert text.endswith("(last error: it answered 500).\n")
        assert " due in " in text
        # A test alert is sent at once, even while another delivery waits for its retry.
        (delivery,) = cli.json("alert", "test", result["id"])
        assert (delivery["state"], delivery["letter_id"] != item["letter_id"]) == ("done", True)
        server.answers = [500]
        assert cli("alert", "test", result["id"]).code == 1
        (letter,) = cli.json("mail", "list", "--mailbox", f"hook:{result['id']}")
        assert (letter["id"], letter["claimed"]) == (item["letter_id"], False)
    assert [entry["id"] for entry in cli.json("alert", "list")] == [result["id"]]
    assert cli.json("alert", "remove", result["id"])["state"] == "removed"
    assert cli.json("alert", "list") == []
    assert len(cli.json("alert", "list", "--all")) == 1
    assert "hush" not in cli("events").out


def test_mailbox_alert_needs_no_sender(cli: Cli) -> None:
    result = cli.json("alert", "add", "--on", "finished", "--mailbox", "agent:ada")
    assert cli("alert", "test", result["id"]).out.endswith("into agent:ada.\n")
    assert cli.json("mail", "list", "--mailbox", "agent:ada")[0]["body"]["event"] == "test"


def test_alert_needs_exactly_one_target(cli: Cli) -> None:
    for item in ([], ["--desktop", "--mailbox", "agent:a"]):
        error = cli.error("alert", "add", "--on", "crashed", *item)
        assert (error["exit_code"], error["code"]) == (2, "invalid")
    assert cli.error("alert", "add", "--on", "bored", "--desktop")["exit_code"] == 2


def test_alert_test_runs_its_command(cli: Cli, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'ran')!r}, 'w').write('yes')"
    result = cli.json("alert", "add", "--on", "stuck", "--command", f'{sys.executable} -c "{code}"')
    assert cli("alert", "test", result["id"]).code == 0
    assert (tmp_path / "ran").read_text() == "yes"
