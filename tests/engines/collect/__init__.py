"""kvtrace collect beside real engines: their own exporters, event planes and pages."""
