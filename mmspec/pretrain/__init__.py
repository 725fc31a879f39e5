"""What trainings of the bundled models share; drafters are trained in `mmspec.training`."""
