"""What the card can give, what decoding takes of it, what drafting gains: stage by stage. See README.md."""
