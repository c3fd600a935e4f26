"""The lives of an instance's tasks: whose they are to be, losses, and the next attempts."""
