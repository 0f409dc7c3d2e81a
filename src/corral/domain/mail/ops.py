"""The operations of the message queue: put, claim, acknowledge, fail, resend, drop.

Delivery is at least once: a letter whose owner dies can be claimed again when the lease expires.
Where a side effect must happen at most once, the owner calls `begin_delivery` before it.

This module only collects the operations that other concepts call:

    put         put letters into mailboxes
    claims      claim letters, and renew the lease of a claim
    outcomes    acknowledge, fail, refuse, expire, drop and resend letters
    queries     read letters
"""

from corral.domain.mail.claims import LEASE_MS, claim_letters, renew
from corral.domain.mail.outcomes import (
    ack,
    ack_and_claim,
    ack_unclaimed,
    begin_delivery,
    drop,
    drop_waiting,
    end_undeliverable,
    expire_due,
    fail,
    get_max_attempts,
    mark_dead,
    refuse,
    refuse_waiting,
    resend,
    resolve,
)
from corral.domain.mail.put import (
    broadcast,
    notify_hop_limit,
    put,
    put_by_caller,
    put_caused_by,
    put_in_chain,
    put_last,
    put_many,
    resolve_mailbox,
)
from corral.domain.mail.queries import find_by_number, find_for_update, get
from corral.domain.mail.sql import RETENTION

__all__ = [
    "LEASE_MS",
    "RETENTION",
    "ack",
    "ack_and_claim",
    "ack_unclaimed",
    "begin_delivery",
    "broadcast",
    "claim_letters",
    "drop",
    "drop_waiting",
    "end_undeliverable",
    "expire_due",
    "fail",
    "find_by_number",
    "find_for_update",
    "get",
    "mark_dead",
    "get_max_attempts",
    "notify_hop_limit",
    "put",
    "put_by_caller",
    "put_caused_by",
    "put_in_chain",
    "put_last",
    "put_many",
    "refuse",
    "refuse_waiting",
    "renew",
    "resend",
    "resolve",
    "resolve_mailbox",
]
