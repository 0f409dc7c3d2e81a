"""The one queue of the system: letters, each on its way to one mailbox."""
