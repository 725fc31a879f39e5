"""How the bundled vision-language checkpoints were trained: tokenizer, vision stage, language stage, export."""
