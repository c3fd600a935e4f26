"""The forecast of a restore: where each store would come from, and how many records are to be read."""
