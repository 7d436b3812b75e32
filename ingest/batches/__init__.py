"""Files and batches: /v1/files and /v1/batches, and the work that they stand for."""
