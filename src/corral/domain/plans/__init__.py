"""Plans and progress: what agents say they will do, and how far they have come."""
