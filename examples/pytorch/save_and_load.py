"""Writes a model to a file, from which PyTorch, safetensors and ps-worker read it. Needs no server.

    python3 save_and_load.py FILE"""

import sys

import torch

import syncgrads.torch as sg
from data import make_model

model, other = make_model(), make_model()
sg.save(model, sys.argv[1])  # torch.save(model.state_dict(), FILE)
sg.load(other, sys.argv[1])  # other.load_state_dict(torch.load(FILE))
same = all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters()))
print("the same parameters" if same else "other parameters")
