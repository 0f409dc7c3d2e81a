"""The price table: exact, offline, and loaded only when needed."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from corral.adapters.token_prices import (
    PricedTokens,
    PriceQuery,
    answer_query,
    calculate_price,
    query_prices,
    serve_queries,
)
from corral.kernel.errors import Refused
from tests.support.errors import because
from tests.support.grouped_cases import each_case

AT = 1_790_000_000_000


@each_case(
    ("model", "provider", "usage", "micros"),
    [
        # 1.25, 0.125 and 10 dollars a million tokens.
        (
            "gpt-5",
            "codex",
            PricedTokens(input=1_000, output=500, cache_read=200),
            1_250 + 5_000 + 25,
        ),
        # 3, 15, 0.30 and 3.75; half a micro-dollar is rounded up.
        ("claude-sonnet-4-5", "claude", PricedTokens(1, 1, 1, 1), 22),
        ("claude-sonnet-4-5", "claude", PricedTokens(cache_write=10), 38),
        ("claude-sonnet-4-5-20250929", None, PricedTokens(input=1_000), 3_000),
        ("anthropic/claude-sonnet-4-5", "opencode", PricedTokens(input=1_000), 3_000),
        # A CLI of one vendor may run a model of another.
        ("claude-sonnet-4-5", "codex", PricedTokens(input=1_000), 3_000),
        # The sum of many requests is not one long request.
        ("claude-sonnet-4-5", "claude", PricedTokens(input=1_000_000), 3_000_000),
        ("gpt-5", None, PricedTokens(), 0),
    ],
)
def test_price_is_exact_to_the_micro_dollar(
    model: str, provider: str | None, usage: PricedTokens, micros: int
) -> None:
    result = calculate_price(model, provider, usage, AT)
    assert result is not None
    assert result[0] == micros
    assert result[1].startswith("genai-prices ")


@each_case("model", ["unknown-model", "", "/", "openai/unknown-model"])
def test_unknown_model_has_no_price(model: str) -> None:
    assert calculate_price(model, "codex", PricedTokens(input=1), AT) is None


def test_invalid_request_is_an_error_without_a_price() -> None:
    lines = ["x", "[]", '{"model": 3}', '{"model": "gpt-5", "input": -1}', '{"at": 1e99}']
    result = io.StringIO()
    serve_queries(io.StringIO("\n".join(lines)), result)
    answers = [json.loads(line) for line in result.getvalue().splitlines()]
    assert len(answers) == len(lines)
    for answer in answers:
        assert answer["cost_micros"] is None
        assert answer["error"]
    absurd = answer_query(PriceQuery(input=1, model="gpt-5", at=1 << 62))
    assert (absurd.cost_micros, bool(absurd.error)) == (None, True)


def test_unresponsive_price_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    question = [PriceQuery(input=1, model="gpt-5")]
    with pytest.raises(Refused, check=because("no_answer")):
        query_prices(question, seconds=0.001)
    monkeypatch.setattr(sys, "executable", "/srv/none/python")
    with pytest.raises(Refused, check=because("no_answer")):
        query_prices(question)


def test_modules_in_the_current_folder_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "secrets", "msgspec", "corral"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded from the folder')\n")
    monkeypatch.chdir(tmp_path)
    (price,) = query_prices([PriceQuery(1_000, 500, model="gpt-5", provider="codex", at=AT)])
    assert price.cost_micros == 6_250


def test_price_process_answers_line_by_line() -> None:
    questions = [
        {"model": "gpt-5", "provider": "codex", "input": 1_000, "output": 500, "at": AT},
        {"model": "unknown-model", "input": 1},
        {"model": 1},
    ]
    process = subprocess.run(
        [sys.executable, "-m", "corral.adapters.token_prices"],
        input="".join(json.dumps(question) + "\n" for question in questions),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    results = [json.loads(line) for line in process.stdout.splitlines()]
    assert [result["cost_micros"] for result in results] == [6_250, None, None]
    assert [result["error"] is None for result in results] == [True, True, False]


def test_charges_do_not_load_the_price_table(tmp_path: Path) -> None:
    code = f"""
import sys, corral
from corral.adapters.providers.facts import UsageFact
with corral.open("sqlite:///{tmp_path}/a.db") as store:
    store.charges.add(UsageFact(model="gpt-5", output=100), run_id="run_1")
    assert store.charges.price_unpriced(in_subprocess=True) == 1
    assert store.charges.total().cost_micros == 1_000
assert "genai_prices" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
