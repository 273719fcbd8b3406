"""`compact`: dead units taken out of a pruned model, exactly."""

from secateur.compaction.compact import compact
from secateur.compaction.result import Compacted

__all__ = ["Compacted", "compact"]
