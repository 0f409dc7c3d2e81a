"""The dashboard: its first page with a long history, and the latency of updates."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.support.browser import headless_browser
from tests.support.daemon_nodes import Machine

from bench.cases.history import ENGINES, NUMBERS, PIECE, Engine, open_loaded_store
from bench.harness import Bar, Bench, Rates, Rival, Row, Spread, percentile
from bench.opponents import now_ms, open_store
from corral.api import Corral

TITLE = "The dashboard"
ABOUT = """
    Server time of the overview with a long history (100,000 runs and 1,000,000 events) over
    that with 1,000 runs and 10,000 events; both have 60 runs of today. And, in a real browser
    on the page of events: from the commit of another process to the frame that shows it.
"""
BAR = Bar("<=", 2)
UPDATE_BAR = Bar("<", 250)
SHORT = 1_000
EVENTS_A_RUN = 10
RENDERS = 20
THIRDS = 3

RUNS = """
    INSERT INTO runs (id, state, project_id, provider, mode, command, args, cwd, fence, attempts,
        quick_failures, due_at, output_bytes, tokens, cost_micros, created_at, started_at, ended_at)
    SELECT 'run_' || {kind} || substr(CAST(1000000000 + n AS TEXT), 2), {state},
        'prj_' || (n % 50), 'claude', 'pipe', 'claude', '[]', '/srv', 1, 1, 0, 1, 0, n, n,
        {now} - n * {apart}, {now} - n * {apart}, {ended}
    FROM {numbers}
"""
PAST = "CASE n % 20 WHEN 0 THEN 'failed' WHEN 1 THEN 'crashed' ELSE 'completed' END"
TODAY = "CASE n % 3 WHEN 0 THEN 'running' WHEN 1 THEN 'failed' ELSE 'completed' END"
EVENTS = """
    INSERT INTO events (at, actor, kind, verb, subject)
    SELECT {now} - n * CAST(2000 AS BIGINT), 'supervisor', 'run', 'launch', 'run_' || n
    FROM {numbers}
"""


def measure(bench: Bench) -> list[Row]:
    long = bench.pick(100_000, 20_000)
    rows = []
    for engine, name in ENGINES.items():
        short_store, long_store = (
            bench.once(f"web {engine} {size}", partial(_store_with_past, bench, engine, size))
            for size in (SHORT, long)
        )
        result = bench.compare(
            Rival("short", partial(_measure_overview, short_store)),
            [Rival("long", partial(_measure_overview, long_store))],
            rounds=bench.pick(10, 4),
        )
        longer = result.speed_of_base_over("long", "overview")
        rows.append(Row(f"{name}, the overview after {long:,} runs", longer, BAR))
    return rows + _measure_updates(bench)


def _store_with_past(bench: Bench, engine: Engine, runs: int) -> Corral:
    bench.progress(f"writing {runs:,} runs and {runs * EVENTS_A_RUN:,} events on {engine}")
    return open_loaded_store(bench, engine, lambda run: _load(run, engine, runs))


def _load(run: Callable[[str], Any], engine: Engine, runs: int) -> None:
    now = now_ms()
    past = {"kind": "'0'", "state": PAST, "now": now, "apart": "CAST(26000 AS BIGINT)"}
    today = {"kind": "'1'", "state": TODAY, "now": now, "apart": "CAST(60000 AS BIGINT)"}
    ended = "{now} - n * {apart} + 5000"
    for first in range(1, runs + 1, PIECE):
        numbers = NUMBERS[engine].format(first=first, last=min(first + PIECE - 1, runs))
        run(RUNS.format(numbers=numbers, ended=ended.format(**past), **past))
    ended_today = "CASE n % 3 WHEN 0 THEN NULL ELSE {now} - n * {apart} + 5000 END".format(**today)
    run(RUNS.format(numbers=NUMBERS[engine].format(first=1, last=60), ended=ended_today, **today))
    for first in range(1, runs * EVENTS_A_RUN + 1, PIECE):
        numbers = NUMBERS[engine].format(first=first, last=first + PIECE - 1)
        run(EVENTS.format(now=now, numbers=numbers))


def _measure_overview(store: Corral) -> Rates:
    """Render the page: its queries and its text."""
    from starlette.requests import Request

    from corral.services.tokens import TokenIdentity
    from corral.web import overview
    from corral.web.request import PageRequest

    identity = TokenIdentity("tok_bench", "bench", "full", "token:bench", None, None)
    scope = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [],
        "server": ("127.0.0.1", 7717), "scheme": "http", "state": {"store": store, "who": identity},
    }  # fmt: skip
    start = time.perf_counter()
    for _ in range(RENDERS):
        answer = overview.show(PageRequest(Request(scope), {}))
        assert b"Needs attention" in answer.body
    return {"overview": RENDERS / (time.perf_counter() - start)}


# -- from a commit to the screen -----------------------------------------------------------------

WATCH = """() => {
    window.seen = {};
    const look = () => {
        for (const link of document.querySelectorAll('#live .open')) {
            const id = link.getAttribute('href').slice('/show/'.length);
            if (!(id in window.seen)) {
                window.seen[id] = null;
                requestAnimationFrame(() => { window.seen[id] = Date.now(); });
            }
        }
    };
    look();
    new MutationObserver(look).observe(document.getElementById('live'),
        { childList: true, subtree: true, attributes: true });
}"""


def _measure_updates(bench: Bench) -> list[Row]:
    count = bench.pick(200, 60)
    with headless_browser() as browser:
        if browser is None:
            bench.progress("no browser installed: updates are not measured")
            return []
        bench.progress(f"{count} changes in a browser")
        waits = _update_delays(bench, browser, count)
    thirds = [percentile(waits[start::THIRDS], 99) for start in range(THIRDS)]
    spread = Spread(percentile(waits, 99), min(thirds), max(thirds))
    middle = percentile(waits, 50)
    return [
        Row("from a commit to the browser, p99", spread, UPDATE_BAR, "ms"),
        Row("from a commit to the browser, p50", Spread(middle, middle, middle), unit="ms"),
    ]


def _update_delays(bench: Bench, browser: Any, count: int) -> list[float]:
    path = bench.new_file()
    with _daemon(path.parent / "machine", f"sqlite:///{path}") as machine:
        page = browser.new_page()
        page.goto(machine.link)
        page.goto(machine.link.partition("?")[0] + "events")
        page.wait_for_selector("#feed[data-state=live]")
        page.evaluate(WATCH)
        committed = {}
        with open_store(f"sqlite:///{path}") as store:
            for _ in range(count):
                time.sleep(random.uniform(0.2, 0.5))
                letter = store.mail.put("agent:bench", "x")
                committed[letter.id] = now_ms()
        time.sleep(1)
        seen = page.evaluate("window.seen")
        page.close()
    return [max(seen[id] - at, 0) for id, at in committed.items()]


@contextmanager
def _daemon(folder: Any, url: str) -> Iterator[Machine]:
    machine = Machine(folder, url, "bench")
    try:
        machine.up()
        yield machine
    finally:
        machine.kill_processes()
