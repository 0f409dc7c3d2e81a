"""What runs wrote: where it is, how much there is of it, and the lines of their logs."""
