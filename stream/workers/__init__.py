"""Worker processes of one instance: a supervisor, and the workers that process its tasks."""
