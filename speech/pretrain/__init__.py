"""How the bundled speech checkpoint is made: espeak-ng as the speaker, the codec, the model."""
