"""Anthropic's Messages API: /v1/messages, as its clients expect it."""
