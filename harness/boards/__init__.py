"""What boards there are and whose turn it is."""
