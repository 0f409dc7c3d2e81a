"""Fuzz the API by its OpenAPI document: no input causes a server error.

This runs a few examples of every operation; `make test-real` runs many more (`CORRAL_FUZZ`).
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from corral.api import Corral
from corral.http import router
from corral.http.middleware.rate_limits import Rate
from corral.http.openapi import render_openapi_document
from tests.support.http_server import HttpServer, run_http_server
from tests.support.run_factories import running, without_supervisors

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("CORRAL_FUZZ", "3"))
PARTS = 6
"""The operations are divided, because one test of all of them would end long after the others."""
ENDLESS = {"events.follow"}
FAST = Rate(1e9, 1e9)


@pytest.fixture(params=["sqlite", "postgres"] if "CORRAL_FUZZ" in os.environ else ["postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    """PostgreSQL is the stricter engine; `make test-real` uses both."""
    return str(request.param)


@pytest.fixture
def http_server(
    store: Corral, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[HttpServer]:
    without_supervisors(monkeypatch)  # no generated command is ever run
    monkeypatch.chdir(tmp_path)  # and no generated directory leads into this one
    monkeypatch.setattr(router, "MAX_WAIT_MS", 10)
    with run_http_server(store, rates={"full": FAST, "read": FAST, "agent": FAST}) as running:
        yield running


@pytest.fixture
def ids(store: Corral, tmp_path: Path) -> list[str]:
    """Existing records, so that not every call is a 404."""
    agent = store.agents.create("ada")
    session = store.sessions.open("ada")
    store.mail.put("agent:ada", 1)
    results = [
        store.projects.register(tmp_path).id,
        agent.id,
        session.id,
        store.mail.put("queue:q", 1).id,
        store.schedules.create("agent:ada", 1, every_ms=60_000).id,
        store.timers.set("agent:ada", 1, delay_ms=60_000).id,
        store.alerts.add(["failed"], target_kind="mailbox", target="user:me").id,
        running(store).id,
        "let_1",
        "ada",
        "agent:ada",
        "mail.retention_ms",
        "all",
    ]
    store.budgets.set("all", 1)
    store.secrets.set("x", "env:X")
    return results


@pytest.mark.parametrize("part", range(PARTS))
def test_no_response_is_a_server_error(http_server: HttpServer, ids: list[str], part: int) -> None:
    import schemathesis  # importing it takes a second, and every worker loads this file

    schema = schemathesis.openapi.from_dict(json.loads(render_openapi_document()))
    status_counts: Counter[int] = Counter()
    with http_server.client() as client:
        for index, result in enumerate(schema.get_all_operations()):
            operation = result.ok()
            is_endless = operation.definition.raw["operationId"] in ENDLESS
            if index % PARTS == part and not is_endless:
                fuzz_operation(client, operation, ids, status_counts)
    assert status_counts[200] > 10, status_counts
    assert status_counts[400] > 10, status_counts


def fuzz_operation(
    client: httpx.Client, operation: Any, ids: list[str], status_counts: Counter[int]
) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(),
        id=st.sampled_from(ids),
        use_existing_id=st.integers(0, 3).map(bool),
    )
    def check(case: Any, id: str, use_existing_id: bool) -> None:
        if use_existing_id:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = id
        arguments = case.as_transport_kwargs(base_url=str(client.base_url))
        arguments.pop("cookies", None)
        headers = {name: str(value) for name, value in arguments.pop("headers", {}).items()}
        headers.pop("Authorization", None)
        try:
            response = client.request(headers=headers, **arguments)
        except httpx.InvalidURL:
            hypothesis.reject()
        status_counts[response.status_code] += 1
        label = operation.definition.raw["operationId"]
        assert response.status_code < 500, (label, arguments, response.text)
        if response.status_code >= 400:
            assert set(response.json()["error"]) == {"code", "message", "details"}, label

    check()
