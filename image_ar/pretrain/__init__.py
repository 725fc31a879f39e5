"""How the bundled image checkpoints were trained: scenes, picture tokenizer, drawing, export."""
