"""Traces of requests: where one goes on, what its spans are, how they are told."""
