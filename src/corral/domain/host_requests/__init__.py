"""What agents ask of the host, and who says whether it is done."""
