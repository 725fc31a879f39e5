"""What `mmspec bench` measures: speed, equality, memory and accuracy of a model with several drafters."""
