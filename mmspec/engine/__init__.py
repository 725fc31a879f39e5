"""Rounds near the hardware limit: static caches and compiled forwards of unmodified Hugging Face classes."""
