"""What agents ask of people, and of one another."""
