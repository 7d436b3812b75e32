"""lockstep bench serve: open-loop load on a running node, and what became of every request."""
