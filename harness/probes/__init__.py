"""Programs that run on the board (Python >= 3.8, numpy)."""
