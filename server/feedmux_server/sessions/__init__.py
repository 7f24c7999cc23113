"""What is sent next to one subscriber."""
