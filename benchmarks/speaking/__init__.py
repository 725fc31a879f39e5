"""Models that speak: speed, and which words a trained listener hears."""
