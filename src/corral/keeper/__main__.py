"""`python -m corral.keeper ORDER ANSWER STDIN`: three descriptors, see `adapters/keepers.py`."""

import gc
import sys

if __name__ == "__main__":
    # Somebody waits for the run to begin. What is loaded stays: there is nothing to collect.
    gc.disable()
    from corral.kernel.loading import load_msgspec

    load_msgspec()
    from corral.keeper.main import main

    sys.exit(main())
