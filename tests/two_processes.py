"""Trains a tiny drafter with two processes on the CPU, for a test: python two_processes.py FOLDER.

Each process writes what it ended with to FOLDER/RANK.safetensors. They are forked from one that has imported
everything, which is what takes long.
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import tiny
import torch
from one_drafter import train_drafter
from safetensors.torch import save_file

import mmspec
from mmspec.training.answers import AnswerOptions
from mmspec.training.course import Course
from mmspec.training.medusa import MedusaRecipe

ANSWERS = AnswerOptions(max_new_tokens=8, batch=2, sampled=0)
LINES = [{"prompt": f"what is the value of bar {number}?"} for number in range(10)]


def recipe() -> MedusaRecipe:
    """Every answer has as many tokens, and nothing is random: shares of a batch weigh the same as the whole."""
    return MedusaRecipe(steps=4, batch=4, levels=2)


def trained(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The figures, and the weights that this process ends with, as they are stored."""
    pipe = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer())
    kept: list[torch.nn.Module] = []
    build = MedusaRecipe.build

    class Kept(MedusaRecipe):
        def build(self, *arguments: Any) -> Any:
            kept.append(build(self, *arguments))
            return kept[-1]

    made = Kept(**{name: getattr(recipe(), name) for name in ("steps", "batch", "levels")})
    course = Course(str(folder / "data"), held_out=2, validate_every=2, save_every=2, answers=ANSWERS)
    figures = train_drafter(pipe, made, course, folder / "out", folder / "run", "tiny")
    return figures, {name: weight.bfloat16() for name, weight in kept[0].state_dict().items()}


def write_data(folder: Path) -> None:
    """The questions, to FOLDER/data."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.jsonl").write_text("\n".join(map(json.dumps, LINES)))


def main(folder: Path) -> None:
    write_data(folder)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the leader's, so that both may have the port
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
                own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
                os.environ.update({name: str(value) for name, value in own.items()})
                torch.set_num_threads(1)
                figures, weights = trained(folder)
                tau = torch.tensor([figures["tau_t0"], figures["tau_t1"]])
                save_file({**weights, "tau": tau}, folder / f"{rank}.safetensors")
                torch.distributed.destroy_process_group()
                os._exit(0)
            children.append(child)
        # until they end the port stays bound here, so that nobody else is given it
        status = max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    sys.exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
