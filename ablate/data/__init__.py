"""Data: corpora, tokenizers, token files, the evaluation set. (Batches need torch and are in ablate/data/batches.py.)

    dataset = prepare(cfg.data, cfg.tokenizer, eval_bytes=..., segment_bytes=..., cache_dir=...)
    inputs_BT, targets_BT = Batches(dataset.train, context=..., batch_size=..., data_seed=...)(t)

A new corpus is a class under `DATA.register` (corpora.py), a new tokenizer one under `TOKENIZER.register` (tokenizers.py).
A synthetic task is a class under `DATA.register` too (synthetic.py). Each has its YAML in conf/.
"""

from ablate.data.corpora import DATA
from ablate.data.dataset import Dataset, check_pair, prepare, vocab_size
from ablate.data.evaluation import EvalSet
from ablate.data.source import TokenSource
from ablate.data.synthetic import Task, TaskEvalSet
from ablate.data.tokenizers import TOKENIZER

__all__ = ["DATA", "TOKENIZER", "Dataset", "EvalSet", "Task", "TaskEvalSet", "TokenSource", "check_pair", "prepare", "vocab_size"]
