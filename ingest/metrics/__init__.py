"""What /metrics says, a theme a file."""
