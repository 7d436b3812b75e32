"""A conversation that outlives its requests: what a turn is made of, where it lies, who keeps it."""
