"""Autoregressive image generators: targets, drafters and rules for image tokens."""
