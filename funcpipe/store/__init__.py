"""Objects under keys: one contract, several places to keep them, wrappers that compose."""
