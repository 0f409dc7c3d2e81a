"""The demo, the first command of the README."""

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
def test_demo_proves_its_claims(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "corral.demo"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) <= 65
