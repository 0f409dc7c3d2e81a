"""Run the demo: `python -m corral.demo`."""

import sys

from corral.demo.story import tell

sys.exit(tell())
