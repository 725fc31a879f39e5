"""How the bundled speech checkpoint is made: texts, espeak-ng as the speaker, the codec, the model."""
