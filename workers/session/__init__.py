"""A conversation that outlives its requests: what a turn is, where it lies, who keeps it."""
