"""Charges: tokens and money that agents use, their totals, and budgets."""
