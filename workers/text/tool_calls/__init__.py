"""Calls of tools: how each family of models writes them, and how they are read back."""
