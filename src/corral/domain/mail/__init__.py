"""The message queue: letters, each addressed to one mailbox."""
