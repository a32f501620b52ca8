"""Training of draft heads: prompts, target texts, losses."""
