"""The question: which models, prompts and arms, how often, and which claims they speak to."""
