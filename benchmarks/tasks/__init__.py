"""Tasks: official data sets as local files, their prompts and their scoring rules; one file per data set."""
