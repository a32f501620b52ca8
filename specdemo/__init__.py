"""Multi-drafter speculative decoding: lossless, learning while it writes which drafter to trust."""

__version__ = "0.1.0"
