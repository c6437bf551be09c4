"""Where records come from: one file or folder a format; decoding is pure, reading is thin."""
