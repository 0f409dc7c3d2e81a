"""The two files by which a sealed agent is spoken to: a sandbox without network, on both sides."""
