"""position: how the model learns where a token stands. A variant overrides the hooks it needs.

none.py      the hooks, and no position at all
embedded.py  what is added to the embedded tokens: learned, sinusoidal
rotary.py    what turns queries and keys: rope, xpos; scaling.py has the longer contexts of rope
relative.py  what is added to the scores of attention: alibi, t5, kerple, fire, transformer_xl
"""

from ablate.model.position.embedded import Learned, Sinusoidal
from ablate.model.position.none import POSITION, Position
from ablate.model.position.relative import ALiBi, Fire, Kerple, T5Buckets, TransformerXL
from ablate.model.position.rotary import Rope, XPos
from ablate.model.position.scaling import SCALING, Scaling

__all__ = [
    "POSITION",
    "SCALING",
    "ALiBi",
    "Fire",
    "Kerple",
    "Learned",
    "Position",
    "Rope",
    "Scaling",
    "Sinusoidal",
    "T5Buckets",
    "TransformerXL",
    "XPos",
]
