"""Speech models: targets that speak, their drafters and tolerant rules, a codec, how the bundled checkpoint is made."""
