"""How the bundled image checkpoints were trained: captions, picture tokenizer, drawing, export."""
