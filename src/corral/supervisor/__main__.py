"""`python -m corral.supervisor ORDER ANSWER STDIN`: see `adapters/supervisor_process.py`."""

import gc
import sys

if __name__ == "__main__":
    # Somebody waits for the run to begin. What is loaded stays: there is nothing to collect.
    gc.disable()
    from corral.kernel.lazy_msgspec import load_msgspec

    load_msgspec()
    from corral.supervisor.main import main

    sys.exit(main())
