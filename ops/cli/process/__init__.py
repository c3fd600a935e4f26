"""Commands about processes and applications: serve, run, config, doctor, reset, deaths."""
