"""The front door: HTTP, the Python client and the lockstep command."""
