"""Small models of transformers with random weights, and what transformers computes with them.

All runs are of attn_implementation="eager", in f32, on the CPU, without dropout. Importing this package fixes what else
the records depend on: one thread, deterministic kernels, and nothing that is fetched from the hub.
"""

import os
import warnings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
