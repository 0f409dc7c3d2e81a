"""Agents in sandboxes without network, which exchange messages with the host by two files.

The letters and messages are the same as for other agents. `ops` builds the view of the store that
the host writes to the sandbox; `ingest` carries out the messages that the agent writes. The files
themselves are in `adapters/sandbox_bridge`.
"""
