"""Drafters that see: what a language-only drafter cannot guess, because only the picture decides it."""
