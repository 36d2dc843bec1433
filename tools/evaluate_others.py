"""Tables on other problems than published pipelines: small ones that can be enumerated, and jobs with slow GPUs."""

from collections.abc import Iterator

import evaluate_groups
import evaluate_optimum
from evaluation import Request, Sheet, Update

PROBLEMS = 50
MICROBATCHES = 16


def _optimum(request: Request) -> Iterator[Update]:
    for shape in evaluate_optimum.SHAPES:
        if request.wants_row((shape,)):
            yield (shape,), evaluate_optimum.row(shape, PROBLEMS)


OPTIMUM = Sheet(("pipeline",), evaluate_optimum.COLUMNS, [(shape,) for shape in evaluate_optimum.SHAPES], _optimum)


def _groups(request: Request) -> Iterator[Update]:
    for case in evaluate_groups.CASES:
        if request.wants_row((case.name,)):
            job = evaluate_groups.published_job(MICROBATCHES)
            yield (case.name,), evaluate_groups.evaluate(case, job, 8, request.effort).cells


GROUPS = Sheet(("job",), evaluate_groups.COLUMNS, [(case.name,) for case in evaluate_groups.CASES], _groups)
