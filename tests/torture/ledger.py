"""A ledger of torture batches: one line each, in a file that later batches continue.

    python -m tests.torture --kills 10000 --into kills [--postgres]
    python -m tests.torture --total kills

The chat and chaos tests accept `--into` too, and the crash harness takes the file name from
CORRAL_KILLS.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec


class Batch(msgspec.Struct):
    """The result of one batch."""

    engine: str
    what: str
    seed: int | None
    """None if the batch is not random."""
    kills: dict[str, int]
    """How many of each kind of process got a SIGKILL."""
    seconds: float
    wrong: int
    runs: int = 0
    command: str = ""

    @property
    def count(self) -> int:
        return sum(self.kills.values())


def append_batch(into: str | None, batch: Batch) -> None:
    """Append a batch to a file, if one is named."""
    if into is not None:
        with Path(into).open("ab") as file:
            file.write(msgspec.json.encode(batch) + b"\n")


def read(path: str) -> list[Batch]:
    file = Path(path)
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Batch) for line in lines]


def run_batches(wanted: int, count: int, seed: int, into: str, options: list[str]) -> int:
    """Run batches until so many processes were killed on this engine, or one finds a violation.

    The batches already in the file count.
    """
    engine = "postgres" if "--postgres" in options else "sqlite"
    while True:
        batches = [item for item in read(into) if (item.engine, item.what) == (engine, "runs")]
        remaining = wanted - sum(item.count for item in batches)
        wrong = any(item.wrong for item in batches)
        if wrong or remaining <= 0:
            print(table(read(into)))
            return int(wrong)
        seed = max([seed - 1, *(item.seed or 0 for item in batches)]) + 1
        arguments = [
            "--count",
            str(min(count, remaining)),
            "--seed",
            str(seed),
            "--into",
            into,
            *options,
        ]
        ended = subprocess.run([sys.executable, "-m", "tests.torture", *arguments], check=False)
        if ended.returncode != 0:
            return ended.returncode


def table(batches: list[Batch]) -> str:
    """Return all batches by engine and kind, as a Markdown table."""
    rows = [
        "| engine | what | kills | runs | seconds | wrong | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for engine, what in sorted({(item.engine, item.what) for item in batches}):
        group = [item for item in batches if (item.engine, item.what) == (engine, what)]
        kinds: Counter[str] = Counter()
        for item in group:
            kinds.update(item.kills)
        seeds = _format_ranges(sorted({item.seed for item in group if item.seed is not None}))
        row = (
            engine,
            what,
            f"{kinds.total():,} ({format_counts(kinds)})",
            f"{sum(item.runs for item in group):,}",
            f"{sum(item.seconds for item in group):,.0f}",
            str(sum(item.wrong for item in group)),
            seeds,
        )
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def format_counts(counter: Counter[str]) -> str:
    """Return the counts as text."""
    return ", ".join(f"{name} {n:,}" for name, n in sorted(counter.items()))


def _format_ranges(numbers: list[int]) -> str:
    """Return numbers as short ranges: 1-4, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)
