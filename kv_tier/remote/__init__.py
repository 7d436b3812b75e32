"""Sessions that outlive their node's disk: the same objects and manifests in an object store."""
