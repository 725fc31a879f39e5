"""Speech models: targets, drafters and rules for codec tokens."""
