"""Where records go: one file or folder a format."""
