"""The page at / and what feeds it: one look at the node a second, for whoever watches."""
