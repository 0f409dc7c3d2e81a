"""Idempotency keys: stored responses, so that a repeated call has no second effect."""
