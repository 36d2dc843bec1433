"""Facts of made-up jobs, in Megatron's default order of ranks (tensor first, then context, data, pipeline)."""

from megatron_energy.session.facts import JobFacts, RankFacts


def job(tensor=1, context=1, expert=1, data=1, pipeline=1, chunks=1, microbatches=8, **model) -> JobFacts:
    ranks = []
    for stage in range(pipeline):
        for data_rank in range(data):
            for context_rank in range(context):
                for tensor_rank in range(tensor):
                    ranks.append(
                        RankFacts(
                            len(ranks), tensor, context, expert, data, pipeline, tensor_rank, context_rank, data_rank, stage,
                            chunks, microbatches, pipeline if chunks > 1 else None, True, False, False, **model,
                        )
                    )  # fmt: skip
    return JobFacts(tuple(ranks))
