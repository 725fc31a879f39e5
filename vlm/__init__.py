"""Vision-language models: targets, bundled checkpoints and how they were trained."""
