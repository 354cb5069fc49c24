"""Prompts: exact lists of token ids, unique from the first token that the chat template leaves free."""
