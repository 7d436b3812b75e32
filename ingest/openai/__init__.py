"""OpenAI's chat and completions API, models, tokens: what its clients expect."""
