"""Parts that every room may need, and of which no store is made."""
