"""From run directories to what may be said about them."""
