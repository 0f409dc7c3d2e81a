"""Insights: overview, project summary, crashed runs, statistics, names and costs."""

from pathlib import Path
from typing import Any

import pytest

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.domain.insights import ops
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, ManualClock, utc_date
from corral.kernel.errors import Invalid, NotFound
from tests.support.run_factories import add_run
from tests.support.store import unchanged, walk
from tests.support.task_factories import project_with


def add_ended_run(store: Corral, state: str, duration: int, *, ago: int = 0, **columns: Any) -> str:
    """Add a run with this duration that ended `ago` milliseconds ago."""
    end = store.now() - ago
    return add_run(store, state, end - duration, ended_at=end, **columns)


# -- overview -------------------------------------------------------------------------------------


def test_empty_store_has_an_overview(store: Corral) -> None:
    with unchanged(store):
        overview = store.insights.overview()
    assert (overview.active, overview.attention, overview.failed, overview.queued) == (
        [],
        [],
        [],
        0,
    )
    assert (overview.dead_letters, overview.today.charges, overview.today.cost_micros) == (
        0,
        0,
        None,
    )
    assert overview.more is False


def test_overview_shows_active_queued_failed_runs_and_cost(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    running_run = add_run(store, "running", project_id=project.id, name="busy")
    waiting_run = add_run(
        store, "running", attention="needs_input", attention_at=clock.now() - MINUTE
    )
    stopping_run = add_run(store, "stopping")
    add_run(store, "queued")
    add_run(store, "completed")
    crashed_run = add_ended_run(store, "crashed", SECOND, ago=HOUR, reason="process lost", signal=9)
    failed_run = add_ended_run(store, "failed", SECOND, ago=2 * HOUR, exit_code=3)
    add_ended_run(store, "failed", SECOND, ago=25 * HOUR)
    store.settings.set("mail.max_attempts", 1)
    store.mail.put("queue:q", "x")
    (letter,) = store.mail.claim("queue:q", owner="o")
    store.mail.fail(letter, "no")
    store.charges.add(UsageFact(model="m", input=5, cost_micros=70), run_id=running_run)

    overview = store.insights.overview()
    assert [run.id for run in overview.active] == [stopping_run, waiting_run, running_run]
    assert (overview.active[2].project, overview.active[2].name) == (project.name, "busy")
    assert [(run.id, run.attention) for run in overview.attention] == [(waiting_run, "needs_input")]
    assert [(run.id, run.state) for run in overview.failed] == [
        (crashed_run, "crashed"),
        (failed_run, "failed"),
    ]
    assert (overview.failed[0].reason, overview.failed[1].exit_code) == ("process lost", 3)
    assert (overview.queued, overview.dead_letters, overview.unconfirmed_letters) == (1, 1, 0)
    assert (overview.today.cost_micros, overview.today.tokens) == (70, 5)
    assert overview.more is False


def test_only_submitted_tasks_without_a_check_need_attention(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    tasks = [{"key": "A"}, {"key": "B", "check": "true"}, {"key": "C"}, {"key": "D"}]
    project = project_with(store, tmp_path, *tasks)
    for key in "CBA":
        clock.advance(1_000)
        task = store.tasks.claim(project, "ada", key=key)
        assert task is not None
        store.tasks.submit(task, "done")
    overview = store.insights.overview()
    assert [(task.key, task.project) for task in overview.submitted] == [
        ("C", tmp_path.name),
        ("A", tmp_path.name),
    ]
    assert overview.submitted_tasks == 2
    store.tasks.accept("C")
    store.tasks.reject("A", "not yet")
    overview = store.insights.overview()
    assert (overview.submitted, overview.submitted_tasks) == ([], 0)


def test_overview_of_many_runs_is_marked_as_truncated(store: Corral) -> None:
    ids = [add_run(store, "running") for _ in range(ops.MAX_SHOWN + 3)]
    overview = store.insights.overview()
    assert [run.id for run in overview.active] == ids[: -ops.MAX_SHOWN - 1 : -1]
    assert overview.more is True


# -- project summary ------------------------------------------------------------------------------


def test_project_has_its_latest_run_and_counts_by_state(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    for state in ("completed", "completed", "crashed"):
        add_run(store, state, project_id=project.id)
    latest = add_run(store, "failed", project_id=project.id, exit_code=7, args='["-x"]')
    add_run(store, "completed", project_id="prj_other")
    store.charges.add(UsageFact(model="m", output=3, cost_micros=9), project_id=project.id)

    summary = store.insights.project(str(tmp_path / "."))
    assert summary.project.id == project.id
    assert summary.latest_run is not None
    assert (summary.latest_run.id, summary.latest_run.exit_code, summary.latest_run.args) == (
        latest,
        7,
        ["-x"],
    )
    assert (summary.total_runs, summary.exact) == (4, True)
    assert summary.states == {"completed": 2, "failed": 1, "crashed": 1}
    assert summary.total.cost_micros == 9


def test_project_that_never_ran_has_no_latest_run(store: Corral, tmp_path: Path) -> None:
    store.projects.register(tmp_path)
    summary = store.insights.project(str(tmp_path))
    assert (summary.latest_run, summary.total_runs, summary.states) == (None, 0, {})
    with pytest.raises(NotFound):
        store.insights.project("/srv/none")


def test_run_count_stops_at_its_limit_and_is_marked_inexact(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MAX_COUNTED_RUNS", 3)
    project = store.projects.register(tmp_path)
    for _ in range(5):
        add_run(store, "completed", project_id=project.id)
    summary = store.insights.project(str(tmp_path))
    assert (summary.total_runs, summary.exact) == (3, False)


# -- crashed runs ---------------------------------------------------------------------------------


def test_crashed_runs_are_listed_newest_first_with_reason_and_directory(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    ids = []
    for n in range(5):
        clock.advance(SECOND)
        ids.append(
            add_run(store, "crashed", project_id=project.id, pid=100 + n, signal=9, reason="gone")
        )
        add_run(store, "failed", project_id=project.id)
    run_without_project = add_run(store, "crashed", clock.now() + 1)
    runs = walk(store.insights.crashed)
    assert [run.id for run in runs] == [run_without_project, *ids[::-1]]
    assert (runs[0].dir, runs[1].dir) == (None, project.dir)
    assert (runs[1].pid, runs[1].signal, runs[1].reason) == (104, 9, "gone")
    assert (runs[1].command, runs[1].args) == ("claude", [])


# -- statistics -----------------------------------------------------------------------------------


def test_runs_are_counted_by_outcome(store: Corral) -> None:
    states = ["completed"] * 3 + ["failed", "crashed", "cancelled", "timed_out", "interrupted"]
    for state in states:
        add_run(store, state, provider="claude")
    add_run(store, "running", provider="claude")
    (group,) = store.insights.stats(by="provider").items
    assert (group.key, group.runs, group.completed, group.failed) == ("claude", 8, 3, 1)
    assert (group.crashed, group.cancelled, group.timed_out, group.interrupted) == (1, 1, 1, 1)
    # A cancelled run is neither a success nor a failure.
    assert group.success_rate == round(3 / 7, 4)


def test_group_of_cancelled_runs_has_no_success_rate(store: Corral) -> None:
    add_run(store, "cancelled")
    (group,) = store.insights.stats(by="model").items
    assert (group.key, group.success_rate) == (None, None)


@pytest.mark.parametrize(
    ("durations", "median", "p95"),
    [
        ([7], 7, 7),
        ([10, 20], 15, 20),
        ([30, 10, 20], 20, 30),
        (list(range(1, 101)), 50, 95),
        (list(range(1, 21)), 10, 19),
        (list(range(1, 22)), 11, 20),
    ],
)
def test_median_and_p95_are_exact(
    store: Corral, durations: list[int], median: int, p95: int
) -> None:
    for duration in durations:
        add_ended_run(store, "completed", duration, model="m")
    add_run(store, "cancelled", model="m", started_at=None)  # never started
    (group,) = store.insights.stats(by="model").items
    assert (group.runs, group.median_ms, group.p95_ms) == (len(durations) + 1, median, p95)


def test_runs_that_never_started_have_no_duration(store: Corral) -> None:
    add_run(store, "failed", started_at=None)
    (group,) = store.insights.stats(by="project").items
    assert (group.median_ms, group.p95_ms) == (None, None)


def test_clock_jump_back_gives_no_negative_duration(store: Corral) -> None:
    add_ended_run(store, "completed", -5_000)
    (group,) = store.insights.stats(by="project").items
    assert group.median_ms == 0


def test_tokens_and_cost_are_summed_and_unknown_stays_unknown(store: Corral) -> None:
    add_run(store, "completed", model="a", tokens=5, cost_micros=7)
    add_run(store, "completed", model="a", tokens=6, cost_micros=8)
    add_run(store, "completed", model="a")
    add_run(store, "completed", model="b")
    priced, unpriced = store.insights.stats(by="model").items
    assert (priced.tokens, priced.cost_micros, priced.unpriced) == (11, 15, 1)
    assert (unpriced.tokens, unpriced.cost_micros, unpriced.unpriced) == (None, None, 1)


def test_groups_are_paginated_by_key(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    for agent in ("agn_b", None, "agn_a", "agn_c", None):
        add_run(store, "completed", agent_id=agent, project_id=project.id)
    groups = walk(store.insights.stats, by="agent", limit=1)
    assert [(row.key, row.runs) for row in groups] == [
        (None, 2),
        ("agn_a", 1),
        ("agn_b", 1),
        ("agn_c", 1),
    ]
    (row,) = store.insights.stats(by="project").items
    assert (row.key, row.label, row.runs) == (project.id, project.name, 5)


def test_days_are_utc_days_in_order(store: Corral, clock: ManualClock) -> None:
    clock.at = clock.now() // DAY * DAY + HOUR
    for ago in (0, 2 * HOUR, 3 * DAY, 3 * DAY):
        add_ended_run(store, "completed", SECOND, ago=ago)
    groups = walk(store.insights.stats, by="day", limit=1)
    today = clock.now()
    assert [(row.key, row.runs) for row in groups] == [
        (utc_date(today - 3 * DAY), 2),
        (utc_date(today - DAY), 1),
        (utc_date(today), 1),
    ]


def test_since_limits_the_statistics(store: Corral) -> None:
    for ago in (0, 2 * DAY, 10 * DAY):
        add_ended_run(store, "completed", 20 * DAY, ago=ago)
    for since, runs in ((DAY, 1), (7 * DAY, 2), (None, 3)):
        (group,) = store.insights.stats(since_ms=since).items
        assert group.runs == runs


def test_invalid_arguments_are_rejected(store: Corral) -> None:
    for arguments in ({"by": "unknown"}, {"since_ms": -1}, {"limit": 0}, {"after": "?"}):
        with pytest.raises(Invalid):
            store.insights.stats(**arguments)


# -- queries of the dashboard ---------------------------------------------------------------------


def test_overview_shows_the_last_ended_runs(store: Corral, clock: ManualClock) -> None:
    older = add_ended_run(store, "completed", SECOND, ago=3 * DAY)
    newer = add_ended_run(store, "failed", SECOND, ago=2 * DAY)
    add_run(store, "running", seen_at=clock.now() - SECOND)
    overview = store.insights.overview()
    assert [run.id for run in overview.recent] == [newer, older]
    assert overview.active[0].seen_at == clock.now() - SECOND


def test_names_are_resolved_by_id(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    agent = store.agents.create("ada")
    session = store.sessions.open(title="the tests")
    untitled = store.sessions.open()
    named_run, unnamed_run = add_run(store, "running", name="nightly"), add_run(store, "running")
    ids = [
        project.id,
        agent.id,
        session.id,
        untitled.id,
        named_run,
        unnamed_run,
        unnamed_run,
        "run_none",
    ]
    assert store.insights.names(ids) == {
        project.id: project.name,
        agent.id: "ada",
        session.id: "the tests",
        untitled.id: untitled.id,
        named_run: "nightly",
        unnamed_run: "claude",
    }
    assert store.insights.names([]) == {}
    with pytest.raises(Invalid):
        store.insights.names([f"run_{n}" for n in range(ops.MAX_NAMES + 1)])


def test_records_are_found_by_name_prefix(store: Corral, tmp_path: Path) -> None:
    folder = tmp_path / "Harbour"
    folder.mkdir()
    project = store.projects.register(folder)
    agent = store.agents.create("harry")
    run = add_run(store, "completed", name="harvest")
    add_run(store, "completed", name="other")
    assert {record.id for record in store.insights.find_by_name("har")} == {
        project.id,
        agent.id,
        run,
    }
    assert [record.label for record in store.insights.find_by_name("zz")] == []
    with pytest.raises(Invalid):
        store.insights.find_by_name("  ")


def test_costs_are_listed_per_day_and_agent(store: Corral, clock: ManualClock) -> None:
    for ago, agent, cost in ((40, "agt_a", 9), (2, "agt_a", 5), (0, "agt_b", 7), (0, "agt_a", 1)):
        store.charges.add(
            UsageFact(model="m", input=3, cost_micros=cost),
            agent_id=agent,
            at=clock.now() - ago * DAY,
        )
    store.charges.add(UsageFact(model=None, input=4), agent_id="agt_c")
    costs = store.insights.costs(by="agent", days=30)
    assert [(row.key, row.cost_micros, row.tokens) for row in costs] == [
        ("agt_a", 5, 3),
        ("agt_a", 1, 3),
        ("agt_b", 7, 3),
        ("agt_c", None, 4),
    ]
    assert costs[0].day == utc_date(clock.now() - 2 * DAY)
    assert [row.key for row in store.insights.costs(by="model", days=1)] == ["m"]
    assert store.insights.costs(by="project") == []
    for arguments in ({"by": "day"}, {"days": 0}, {"days": 1_000}):
        with pytest.raises(Invalid):
            store.insights.costs(**arguments)


def test_charge_belongs_to_the_task_of_its_run(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "one", "two", "other")
    first_run, other_run = (add_run(store, "running") for _ in range(2))
    for key, run_id, cost in (
        ("one", first_run, 1),
        ("other", other_run, 10),
        ("two", first_run, 100),
    ):
        clock.advance(MINUTE)
        store.tasks.claim(project, "ada", key=key, run=run_id)
        clock.advance(MINUTE)
        store.charges.add(UsageFact(model="m", input=cost, cost_micros=cost), run_id=run_id)
    costs = walk(store.insights.task_costs, project=project)
    assert [(cost.key, cost.tokens, cost.cost_micros) for cost in costs] == [
        ("one", 1, 1),
        ("two", 100, 100),
        ("other", 10, 10),
    ]
    assert [store.insights.task_cost(cost.id) for cost in costs] == costs
