"""What is wrong with an application's settings, topics and files; and the reset of one."""
