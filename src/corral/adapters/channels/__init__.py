"""Channels: one adapter per chat platform, all behind the `ChannelAdapter` protocol.

An adapter connects one configured channel to its platform. It receives events and sends messages;
everything else is done by its callers:

- Inbound: the daemon polls `receive` or passes an HTTP request to `accept`. The events are stored
  before the cursor advances, so delivery from the platform is at least once. Events are
  deduplicated by `event_id`.
- Outbound: the delivery service calls `send` with an idempotency key and retries with the same key.
  `send` returns a `SendOutcome`. An `UnconfirmedMessage` (or any exception) means that the message
  may have arrived. It is retried only if the platform deduplicates by key or its history can be
  searched; otherwise the policy of the channel decides.

An adapter keeps no queue, makes no decisions and never calls back.

Modules:

- `contract`: the protocol, the structs of events, messages and outcomes, and `BaseAdapter`.
- `message_text`: the length of texts on a platform, cards as text, mentions.
- `signatures`: the verification of signed webhook requests.
- `registry`: the built-in kinds and those that other packages register.
- `http_client`: HTTP requests whose failures map to send outcomes.
- `matrix`, `slack`, `telegram`, `webhook`, `web`, `terminal`: the built-in kinds.

How to add a chat platform:

1. Subclass `contract.BaseAdapter` and set `kind`, `traits`, `config` and `secrets`. State in
   `traits` only what the platform guarantees: `idempotent` and `history` decide about retries.
2. Implement `receive` for a platform that is polled (`telegram.py` is an example), or `accept` for
   a platform that calls a webhook (`slack.py`; set `uses_webhook=True` and verify the signature).
3. Implement `send`. Use `http_client.ApiClient`, which maps HTTP failures to outcomes. Return
   `FailedMessage` only if it is certain that the message did not arrive.
4. Implement `start` and `check_health`, and `list_posted` or `show_typing` if the platform
   supports them.
5. Treat events as untrusted: pass them through `validate_event`, and report an event that raises
   one of `MALFORMED_ERRORS` as unreadable, so that it does not block later events.
6. Register the class. In Corral: add the kind to `registry.BUILTIN_KINDS` and end the module with
   `ADAPTER = ...`. In another package: an entry point in the group `corral.channels`, named after
   the kind.
"""
