"""The ways in which `tools/mutants` breaks the core: each a mistake that somebody could make, and who should notice."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One way to break the core.

    Args:
        name: what the mistake would be, in words.
        module: of ``calculet_trio.core``.
        before, after: the text that is replaced, once, and by what.
        tests: the files of ``tests/core`` that should notice, without ``test_``.
    """

    name: str
    module: str
    before: str
    after: str
    tests: tuple[str, ...]


NAMED = (
    Mutant(
        "commit before output success",
        "settlement",
        "request.lane.withdraw()",
        "request.lane.commit()",
        ("settlement",),
    ),
    Mutant(
        "reuse an Unknown lane",
        "lanes",
        "        self.advance(LaneEvent.LOSE)\n",
        "        self.advance(LaneEvent.LOSE)\n        self.advance(LaneEvent.RESET)\n        self._empty()\n",
        ("lost_lanes", "settlement"),
    ),
    Mutant(
        "drop the settle",
        "endings",
        "self._queue.settle(request, used=request.used_tokens(self._decode_cost_weight))",
        "request.weight = 0.0",
        ("serving_tenants",),
    ),
    Mutant(
        "skip the generation check",
        "settlement",
        "if record is None or record.job.generation != event.generation:",
        "if record is None:",
        ("settlement",),
    ),
    Mutant(
        "double close",
        "endings",
        "        self._effects.append(Finish(request.id, reason, truncated_by))\n",
        "        self._effects += [Finish(request.id, reason, truncated_by)] * 2\n",
        ("serving",),
    ),
    Mutant(
        "charge twice",
        "tenant_queue",
        "tenant.virtual_time = request.virtual_finish\n",
        "tenant.virtual_time = request.virtual_finish + request.cost / request.weight\n",
        ("tenant_queue",),
    ),
    Mutant(
        "forget a cancelled waiter",
        "endings",
        "            self._queue.discard(request)\n",
        "            pass\n",
        ("serving_endings",),
    ),
)

MORE = (
    # ---- tenants -------------------------------------------------------------------------------------------
    Mutant(
        "charge again what is put back",
        "tenant_queue",
        "self.settle(request, used=0.0)",
        "self.settle(request, used=request.cost)",
        ("tenant_queue",),
    ),
    Mutant(
        "settle at the weight of today",
        "tenant_queue",
        "(request.cost - used) / request.weight",
        "(request.cost - used) / tenant.policy.weight",
        ("tenant_queue",),
    ),
    Mutant(
        "an idle tenant banks credit",
        "tenant_queue",
        "tenant.virtual_time = max(tenant.virtual_time, self._global_time)",
        "pass",
        ("tenant_queue",),
    ),
    Mutant("one active sequence too many", "tenants", "self.active < limit", "self.active <= limit", ("tenants",)),
    Mutant("arrivals that cost nothing", "rate_limit", "self._level -= 1.0", "pass", ("rate_limit",)),
    Mutant(
        "waiting tokens that stay on the account",
        "registry",
        "self._tenants.of(request.tenant).waiting_prompt_tokens -= len(request.prompt)",
        "pass",
        ("registry",),
    ),
    Mutant(
        "new weights that count for nobody who waits", "serving", "self._queue.reweigh()", "pass", ("serving_tenants",)
    ),
    # ---- admission -----------------------------------------------------------------------------------------
    Mutant(
        "a deadline that cannot be met is accepted",
        "admission",
        "if prefill_s is not None and prefill_s > left_s:",
        "if prefill_s is None and left_s < 0:",
        ("forecast",),
    ),
    Mutant(
        "an old answer is taken for one to the question that was asked again",
        "placement",
        "(lane.request, lane.reservation) != (event.request, event.reservation)",
        "lane.request != event.request",
        ("settlement",),
    ),
    Mutant(
        "a model that is not ready holds up the queue",
        "placement",
        "                self.queue.set_aside(request)\n                continue\n",
        "                return\n",
        ("serving_generations",),
    ),
    Mutant(
        "KV tokens beyond the budget",
        "admission",
        "reserved = lanes.reserved_tokens",
        "reserved = lanes.committed_tokens",
        ("admission",),
    ),
    # ---- reuse ---------------------------------------------------------------------------------------------
    Mutant(
        "another tenant's history",
        "retention",
        "if each.tenant != request.tenant:",
        "if not each.tenant:",
        ("retention",),
    ),
    Mutant(
        "nothing is left to prefill, and there are no logits",
        "retention",
        "most=len(wanted) - PIECE_TOKENS_MIN",
        "most=len(wanted)",
        ("retention",),
    ),
    Mutant(
        "the last token of a reply is taken for written",
        "retention",
        "request.known_tokens[:tokens]",
        "request.known_tokens",
        ("retention",),
    ),
    Mutant(
        "what decode wrote is taken for what a prefill would write",
        "retention",
        "lane.committed_len if self._replies else request.prefilled_tokens",
        "lane.committed_len",
        ("reply_reuse",),
    ),
    Mutant(
        "a token that is left alone is computed otherwise than in its prompt",
        "retention",
        "most=len(wanted) - PIECE_TOKENS_MIN",
        "most=len(wanted) - 1",
        ("retention",),
    ),
    Mutant(
        "reuse without evidence",
        "served",
        'is_shown = evidence is not None and evidence.allows("prefix_reuse")',
        "is_shown = evidence is not None",
        ("retention",),
    ),
    Mutant(
        "retained lanes count as taken",
        "admission",
        "spare = self._spare_lanes(lanes, lanes.retained)",
        "spare = self._spare_lanes(lanes, 0)",
        ("retention",),
    ),
    Mutant(
        "a drain leaves lanes retained",
        "retention",
        "lanes = self.evict_all()",
        "lanes: list[KvLane] = []",
        ("retention",),
    ),
    Mutant(
        "a tenant pays for what was there",
        "request",
        "min(self.prefilled_tokens, len(self.prompt)) - self.cached_tokens",
        "min(self.prefilled_tokens, len(self.prompt))",
        ("retention",),
    ),
    Mutant(
        "a replay writes the newest token in the place of each",
        "decode",
        "(generated[place],)",
        "(generated[-1],)",
        ("replay",),
    ),
    Mutant(
        "a replay samples what it knows",
        "decode",
        "is_newest = place + 1 == len(generated)",
        "is_newest = True",
        ("replay",),
    ),
    # ---- prefill -------------------------------------------------------------------------------------------
    Mutant(
        "a last chunk of one token is computed otherwise than in its prompt",
        "prefill",
        "left - PIECE_TOKENS_MIN",
        "left",
        ("prefill",),
    ),
    Mutant(
        "chunks without evidence",
        "served",
        'may_chunk = evidence is not None and evidence.allows("incremental_prefill")',
        "may_chunk = evidence is not None",
        ("serving_engines",),
    ),
    Mutant("every chunk at the beginning", "prefill", "begin = lane.committed_len", "begin = 0", ("prefill",)),
    Mutant(
        "a token sampled from every chunk",
        "prefill",
        "samples=end == request.known_count",
        "samples=True",
        ("prefill",),
    ),
    Mutant(
        "a prompt that was made for the model before",
        "serving",
        " or request.generation != event.generation",
        "",
        ("fleet",),
    ),
    Mutant(
        "a model is vacant with a lane still out",
        "fleet",
        "return is_left and empty == len(lanes)",
        "return is_left",
        ("fleet",),
    ),
    Mutant(
        "device time saved up while idle",
        "turns",
        "self._had_s[kind] = max(self._had_s[kind], level)",
        "pass",
        ("turns",),
    ),
    Mutant("a quota that never ends", "turns", "self._spent_s -= self._spells.popleft()[1]", "break", ("turns",)),
    # ---- decode --------------------------------------------------------------------------------------------
    Mutant(
        "the expired are the most urgent",
        "decode",
        "if 0 <= each.order_deadline_s - now",
        "if each.order_deadline_s - now",
        ("decode",),
    ),
    Mutant(
        "a client's deadline buys a place",
        "decode",
        'attrgetter("order_deadline_s")',
        'attrgetter("deadline_s")',
        ("decode",),
    ),
    Mutant(
        "tokens of all tenants in one line",
        "decode",
        "self._next_turn[request.tenant] = turn + 1.0 / request.weight",
        "self._next_turn[request.tenant] = turn + 1.0",
        ("decode",),
    ),
    Mutant(
        "a window beyond the deadline",
        "decode",
        "return min(oldest_s + window_s, latest_start_s - window_s)",
        "return oldest_s + window_s",
        ("decode_profiles",),
    ),
    Mutant("a window though nobody can join", "decode", " or not joinable()", "", ("decode_profiles",)),
    Mutant(
        "a sequence in another pool",
        "decode",
        "request.kv_pool in (None, profile.kv_pool)",
        "profile.kv_pool",
        ("decode_profiles",),
    ),
    Mutant(
        "a sequence longer than its profile",
        "decode",
        "request.lane.committed_len < profile.max_seq",
        "request.lane.committed_len < self._shape.max_seq",
        ("decode_profiles",),
    ),
    Mutant(
        "generations that do not take turns",
        "serving",
        "self._served[generation] = self._served.pop(generation)",
        "pass",
        ("serving_generations",),
    ),
    # ---- lanes and jobs ------------------------------------------------------------------------------------
    Mutant(
        "a lane is free before that is confirmed",
        "lanes",
        "LaneEvent.RELEASED if confirmed else LaneEvent.UNCONFIRMED",
        "LaneEvent.RELEASED",
        ("lanes",),
    ),
    Mutant(
        "isolation that nobody declared",
        "settlement",
        "if lost and not self.served[event.generation].shape.lane_fault_isolation:",
        "if lost and event.generation not in self.served:",
        ("lost_lanes",),
    ),
    Mutant(
        "one request's token for another",
        "settlement",
        "elif result is None or result.request != work.request:",
        "elif result is None:",
        ("settlement",),
    ),
    Mutant(
        "an engine that was lost gets work",
        "jobs",
        "(*self._in_flight.values(), *self._unknown)",
        "self._in_flight.values()",
        ("jobs",),
    ),
    Mutant(
        "pauses that do not grow",
        "backoff",
        "self._first_s * 2.0 ** min(self.failures, 32)",
        "self._first_s",
        ("backoff",),
    ),
)
