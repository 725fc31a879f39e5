"""Gradio demos: see, hear and feel what speculation does. `mmspec demo --help`."""
