"""lockstep bench kv: what sessions cost, and what they save."""
