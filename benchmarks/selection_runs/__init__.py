"""Jobs, runs and measurements of the benchmark of example selection."""
