"""The application, and the test driver that runs it without a broker."""
