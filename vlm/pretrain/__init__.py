"""How the bundled vision-language checkpoints are trained: families, tokenizer, vision stage, answers, export."""
