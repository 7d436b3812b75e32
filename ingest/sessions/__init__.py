"""/v1/sessions: the conversations that are kept here."""
