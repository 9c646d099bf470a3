"""What goes onto a board."""
