"""tests/megatron/tiny_gpt.py, telling what ran under an energy policy: run it through the launcher (tools/check_versions.py does).

``--cases FILE`` and ``--out DIR`` as of tiny_gpt.py. Beside losses, gradient norms and a hash of the parameters, every rank writes its
facts and, of its last iteration, the program that the hooks recorded and the clock requests that were to be made in it.
"""

import argparse
import json
import os
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megatron_energy.records.steps import Program
from megatron_energy.session.emulated_session import EmulatedSession
from tests.megatron import tiny_gpt
from tests.megatron.collector import to_plain


def watch(found: dict[str, Any]) -> None:
    """Keep in ``found`` what sessions of this process are started with, and what they are given at the end of every iteration."""
    start, end = EmulatedSession.__init__, EmulatedSession.iteration

    def started(session: EmulatedSession, options: Any, facts: Any, *others: Any) -> None:
        found["facts"] = {name: getattr(facts, name) for name in facts.__dataclass_fields__}
        start(session, options, facts, *others)

    def ended(session: EmulatedSession, number: int, program: Program, evaluation: bool) -> None:
        found["program"] = [to_plain(step) for step in program]
        found["requests"] = [[*point, *astuple(request)] for point, requests in session.requests.items() for request in requests]
        end(session, number, program, evaluation)

    EmulatedSession.__init__, EmulatedSession.iteration = started, ended  # type: ignore[method-assign]


def main() -> None:
    """Run the cases one after the other; with an energy policy one only, as a run has one session."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    watch(found)
    dist.init_process_group("gloo")
    for name, words in json.loads(args.cases.read_text()).items():
        result = {**tiny_gpt.run(words, collect=lambda: None), **found}
        (args.out / f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
