"""Measuring drafters and selectors on prompts."""
