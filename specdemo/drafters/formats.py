"""Everything that reads published draft heads: fetch a checkpoint, check its vocabulary, read it strictly."""

from __future__ import annotations

from specdemo.drafters.checkpoint import check_vocabulary, fetch, read_tensors
from specdemo.drafters.eagle_formats import EagleCheckpoint, eagle_bytes, read_eagle
from specdemo.drafters.head_formats import HydraCheckpoint, MedusaCheckpoint, hydra_bytes, read_hydra, read_medusa

__all__ = [
    "EagleCheckpoint",
    "HydraCheckpoint",
    "MedusaCheckpoint",
    "check_vocabulary",
    "eagle_bytes",
    "fetch",
    "hydra_bytes",
    "read_eagle",
    "read_hydra",
    "read_medusa",
    "read_tensors",
]
