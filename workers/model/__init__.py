"""Weight files, and the graphs that turn a batch of tokens into logits."""
