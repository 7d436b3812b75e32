"""The pools that run requests, and the node's vocabulary that ingest and router share."""
