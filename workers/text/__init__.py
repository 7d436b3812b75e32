"""Between text and tokens: tokenizer, chat template, streaming text, stop strings."""
