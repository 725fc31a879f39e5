"""Drafters that are not tied to a modality. Each file is one method; see `mmspec.contract.Drafter`."""
