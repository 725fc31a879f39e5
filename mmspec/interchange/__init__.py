"""Drafters that other projects published come in here, and ours go out."""
