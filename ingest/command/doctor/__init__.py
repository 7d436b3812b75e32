"""lockstep doctor: what is wrong with a node, and what to do about each thing."""
