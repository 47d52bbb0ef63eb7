"""What arrives: traces, their prefix structure, summaries."""
