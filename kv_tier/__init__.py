"""Where a sequence's memory lives: blocks of KV, slots of recurrent state."""
