"""A process that delivers to a Matrix server and is killed once the server has a message.

Called as: python -m tests.real.killed_sender URL CHANNEL TOKEN NOW
"""

import os
import signal
import sys

import corral
from corral.adapters.channels.contract import OutgoingMessage, SendOutcome
from corral.adapters.channels.matrix import MatrixAdapter
from corral.kernel.clock import ManualClock


class KilledAdapter(MatrixAdapter):
    def send(self, message: OutgoingMessage) -> SendOutcome:
        super().send(message)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the process was not killed")


def main(url: str, channel: str, token: str, now: str) -> None:
    with corral.open(url, clock=ManualClock(int(now))) as store:
        adapter = KilledAdapter(store.channels.get(channel).config, {"token": token})
        adapter.start()
        store.internal.chat.deliver(channel, adapter, owner="killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
