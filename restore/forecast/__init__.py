"""The forecast of a restore: where each store would come from, how much is to be read, and how long it takes."""
