"""The node on a virtual clock: real policy, turns and scheduler; pools played by a cost model."""
