"""OpenAI's Responses API: /v1/responses, with what was said before kept here."""
