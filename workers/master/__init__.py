"""Which server is the store: one by its address, a Cluster's slot, or what Sentinels watch."""
