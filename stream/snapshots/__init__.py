"""Snapshots of the tasks that run here: made on a schedule, and begun with."""
