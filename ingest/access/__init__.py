"""Who comes in: API keys, and what is too much, too large, too deep, too slow."""
