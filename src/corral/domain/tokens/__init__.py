"""Who may call from outside, and what each may do."""
