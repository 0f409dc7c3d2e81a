"""The two files by which a boxed agent is spoken to: a sandbox without network, on both sides."""
