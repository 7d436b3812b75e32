"""The lockstep command: it stands on top of everything and may import everything."""
