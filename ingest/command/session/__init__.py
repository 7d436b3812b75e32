"""lockstep session: the conversations that are kept here."""
