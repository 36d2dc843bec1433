"""Pure functions: profile + graph + deadline -> plan."""
