"""Train PyTorch models on serverless functions."""

__version__ = "0.1.0"
