"""What the harness costs, measured on this machine; nothing here passes or fails."""
