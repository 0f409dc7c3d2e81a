"""The demo, `python -m corral.demo`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral.demo.judge import rank
from corral.kernel.prompt import OwnText, Quote, render


def test_demo_judge_parses_the_judge_prompt() -> None:
    prompt = render(
        [
            OwnText("You are the judge."),
            Quote("the task that all solutions were given", "solution A\nsolution B"),
            Quote("diff of solution A", "+one\n+two"),
            Quote("diff of solution B", "+one"),
            Quote("diff of solution C", "+another\n+two"),
            OwnText("Answer with one JSON object."),
        ]
    )
    assert rank(prompt)["ranking"] == [["B"], ["A", "C"]]


@pytest.mark.timeout(300)
def test_demo_succeeds_with_short_output(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "corral.demo"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert len(process.stdout.splitlines()) <= 65
