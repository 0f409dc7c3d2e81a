"""The file exchange with an agent in a sandbox without network.

A session has two SQLite files. The host writes `inbound.db`, the sandbox writes `outbound.db`, and
each side only reads the other's file.

    schema          tables, numbering and folders; shared by both sides
    rows            the records that the host writes and reads
    inbound         the host's side of `inbound.db`
    outbound        the host's side of `outbound.db`, which is not trusted
    files           the sandbox's side of both files
    agent_client    the program that runs inside the sandbox
"""
