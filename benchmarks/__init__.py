"""Speed and accuracy figures of one model with several drafters. Uses the public face of mmspec only."""
