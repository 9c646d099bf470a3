"""The sign-off page and its verification."""
