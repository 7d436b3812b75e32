"""lockstep bench: what is measured, and the processes that are measured."""
