"""The application, and the driver that tests it without a broker."""
