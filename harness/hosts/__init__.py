"""How a machine is reached."""
