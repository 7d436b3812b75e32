"""Several nodes on one Redis: what a node is called, what it says of itself, who is gone."""
