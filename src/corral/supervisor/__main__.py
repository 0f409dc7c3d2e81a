"""`python -m corral.supervisor ORDER ANSWER STDIN` (file descriptors).

Started by `adapters/supervisor_process.py`.
"""

import gc
import sys

if __name__ == "__main__":
    # The caller waits for the run to start. Imported modules are never garbage.
    gc.disable()
    from corral.kernel.lazy_msgspec import load_msgspec

    load_msgspec()
    from corral.supervisor.main import main

    sys.exit(main())
