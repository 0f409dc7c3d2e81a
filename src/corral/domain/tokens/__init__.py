"""API tokens: who may call from outside, and with which permissions."""
