"""figures: numbers in, drawings out. They know no frame, no path and no statistics.

Each function returns a Drawing, or None where there is nothing to draw. `look.svg` and `look.png` export one; `look.CSS` goes on the page.
"""

from ablate.report.figures.cost import Cost, pareto
from ablate.report.figures.curves import Series, Trace, curves, differences
from ablate.report.figures.effects import Row, blocks, forest
from ablate.report.figures.factorial import EffectRow, StepRow, effects, interaction, ladder
from ablate.report.figures.length import by_length, by_position
from ablate.report.figures.look import CSS, Drawing, png, styles, svg
from ablate.report.figures.noise import noise
from ablate.report.figures.scales import power_law, ranks
from ablate.report.figures.stability import Cell, status, traces
from ablate.report.figures.tuning import Rates, learning_rates

__all__ = [
    "CSS",
    "Cell",
    "Cost",
    "Drawing",
    "EffectRow",
    "Rates",
    "Row",
    "Series",
    "StepRow",
    "Trace",
    "blocks",
    "by_length",
    "by_position",
    "curves",
    "differences",
    "effects",
    "forest",
    "interaction",
    "ladder",
    "learning_rates",
    "noise",
    "pareto",
    "png",
    "power_law",
    "ranks",
    "status",
    "styles",
    "svg",
    "traces",
]
