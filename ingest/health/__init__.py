"""How the node is: its pulse, its programs, and the routes that tell it."""
