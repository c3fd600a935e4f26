"""What every room may need and no store is made of."""
