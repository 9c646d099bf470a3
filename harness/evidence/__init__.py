"""What was seen, kept."""
