"""Run the demo: `python -m corral.demo`."""

import sys

from corral.demo.scenarios import run_demo

sys.exit(run_demo())
