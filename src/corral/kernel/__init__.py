"""Words that every room uses: ids, states, leases, errors, pages, the clock. No SQL, no engine."""
