"""Results on their way out: signed, retried, dead-lettered."""
