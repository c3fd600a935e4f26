"""One database for each task, one commit over all of its stores."""
