"""The sub-commands of `mmspec bench`: one file for each kind, their options in one place."""
