"""analysis: all numbers that a report prints, from what was loaded. The one place where frames and statistics meet."""

from ablate.report.analysis.analyse import analyse
from ablate.report.analysis.shapes import Analysis, ArmResult, Banner, Effect, Identity, Margin, Noise, Scale, Span, Step

__all__ = ["Analysis", "ArmResult", "Banner", "Effect", "Identity", "Margin", "Noise", "Scale", "Span", "Step", "analyse"]
