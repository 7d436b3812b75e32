"""Where KV lives: blocks while sequences run."""
