"""What the harness costs, measured on this machine; no time here passes or fails."""
