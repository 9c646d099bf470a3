"""A simulated Sophgo BM1688."""
