"""Prints Megatron's own groups as JSON; run as a program, so that importing torch and Megatron stays out of the test process.

Input (first argument), JSON: list of {"sizes": RankGenerator's arguments, "axes": list of names}. Output: list of lists of groups.
Exit status 3: torch or megatron-core is not installed.
"""

import importlib.util
import json
import sys


def main() -> int:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("megatron") is None:
        return 3
    from megatron_energy.megatron import cpu

    cpu.install(force=True)
    from megatron.core.parallel_state import RankGenerator

    answers = []
    for question in json.loads(sys.argv[1]):
        generator = RankGenerator(**question["sizes"])
        answers.append([generator.get_ranks(axes) for axes in question["axes"]])
    print(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
