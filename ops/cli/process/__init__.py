"""Commands about processes and applications: serve, config, doctor, reset."""
