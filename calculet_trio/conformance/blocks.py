"""Blocks: the same requests served under two policies in turns, for the gates that compare.

Source: S §19 (M1, M2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Final

import attrs
import numpy as np
import trio

from calculet_trio.conformance.clients import Errand, ask_all, errands
from calculet_trio.conformance.comparison import Foursome, alternate
from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.trial import Trial
from calculet_trio.core.policy import Policy
from calculet_trio.shell.service import Service

_PROMPT_TOKENS: Final = 8


@attrs.frozen(kw_only=True)
class BlockSize:
    """How much is measured.

    Args:
        foursomes: of blocks, A B B A.
        requests: of each block; as many are open at a time as the model has lanes.
        tokens: of each reply.
        within_s: about how long all blocks may take: on a slow device replies are shorter, down to `TOKENS_MIN`.
    """

    foursomes: int
    requests: int
    tokens: int
    within_s: float = inf

    def shortened(self, *, block_s: float) -> BlockSize:
        """It, where a block of this size takes ``block_s``."""
        share = self.within_s / (4 * self.foursomes * block_s)
        return self if share >= 1 else attrs.evolve(self, tokens=max(TOKENS_MIN, int(self.tokens * share)))


TOKENS_MIN: Final = 5
"""Four gaps of each reply."""


SHORT: Final = BlockSize(foursomes=4, requests=4, tokens=20, within_s=35.0)
"""At 17 ms a step and one lane a job, 16 blocks of 80 steps are 22 s."""
FULL: Final = BlockSize(foursomes=10, requests=16, tokens=64)


@attrs.frozen
class Block:
    """What one block came to.

    Args:
        gaps_s: between two tokens of one reply, over all replies.
        tokens: received.
        taken_s: from the first request to the last token.
        texts: by request.
        trouble: of replies that did not end well.
        doubt: why new jobs were sent to one engine at its end, where two may be in flight.
    """

    gaps_s: tuple[float, ...]
    tokens: int
    taken_s: float
    texts: tuple[str, ...]
    trouble: tuple[str, ...]
    doubt: str | None = None

    def gap_s(self, percent: float) -> float:
        """A percentile of the time between two tokens."""
        return float(np.percentile(self.gaps_s, percent))

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.taken_s


def smallest_profile(trial: Trial, policy: Policy) -> Policy:
    """The policy with the smallest usable batch alone: its jobs are the same whoever else is served."""
    smallest = min(profile.compiled_batch for profile in trial.description().shape.decode if profile.is_usable)
    return attrs.evolve(policy, batch=attrs.evolve(policy.batch, profiles=(smallest,), thresholds={}))


def in_flight(policy: Policy, jobs: int, *, synchronous: bool) -> Policy:
    """The policy with so many jobs on the device at a time."""
    return attrs.evolve(
        policy,
        admission=attrs.evolve(policy.admission, max_inflight_jobs=jobs),
        executor=attrs.evolve(policy.executor, fixed_engine=False, synchronous=synchronous),
    )


def measure_blocks(
    trial: Trial, arms: Mapping[str, Policy], size: BlockSize, *, progress: Callable[[str], None]
) -> tuple[Foursome[Block], ...]:
    """Serve the same requests under ``baseline`` and ``candidate``, in turns; one round before is not counted.

    Raises:
        calculet_trio.conformance.trial.LifeFailed: a daemon did not live to its end.
    """
    shape = trial.description().shape

    def errands_of(size: BlockSize) -> tuple[Errand, ...]:
        tokens = min(size.tokens, shape.max_seq - _PROMPT_TOKENS)
        return errands(size.requests, prompt_tokens=_PROMPT_TOKENS, tokens=tokens, vocabulary=shape.vocab_size)

    wanted = errands_of(size)
    done = 0

    def run(arm: str) -> Block:
        nonlocal done
        done += 1
        progress(f"block {done} of {4 * size.foursomes}: {arm}")
        return trial.live(arms[arm], partial(_serve_block, trial.alias, wanted, shape.lanes))

    warm = [trial.live(arms[arm], partial(_serve_block, trial.alias, wanted, shape.lanes)) for arm in arms]
    wanted = errands_of(size.shortened(block_s=max(block.taken_s for block in warm)))
    return alternate(run, size.foursomes)


async def _serve_block(alias: str, wanted: tuple[Errand, ...], at_once: int, service: Service) -> Block:
    began_s = trio.current_time()
    heard = await ask_all(service, alias, wanted, at_once=at_once)
    taken_s = trio.current_time() - began_s
    return Block(
        gaps_s=tuple(gap_s for each in heard for gap_s in each.gaps_s),
        tokens=sum(each.tokens for each in heard),
        taken_s=taken_s,
        texts=tuple(each.text for each in heard),
        trouble=tuple(each.trouble for each in heard if each.trouble is not None),
        doubt=service.health().doubt,
    )


def same_behaviour(foursomes: tuple[Foursome[Block], ...]) -> Criterion:
    """Every block of either arm ended every reply well, and with the same words."""
    blocks = [block for each in foursomes for block in (*each.baseline, *each.candidate)]
    trouble = [sentence for block in blocks for sentence in block.trouble]
    texts = {block.texts for block in blocks}
    replies = sum(len(block.texts) for block in blocks)
    seen = f"{replies} replies in {len(blocks)} blocks"
    if trouble:
        seen += f"; {len(trouble)} ended badly, the first: {trouble[0]}"
    elif len(texts) > 1:
        seen += "; the same prompts were answered with other words"
    else:
        seen += ", the same words for the same prompts"
    return Criterion.of("same behaviour", holds=not trouble and len(texts) == 1, seen=seen)
