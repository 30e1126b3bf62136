"""One reply's text: cut where it should be, in whole characters, each shown token's log-probabilities with it."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.errors import InvalidRequest
from calculet_trio.text.byte_tokenizer import BYTE_SPECIALS, ByteTokenizer
from calculet_trio.text.params import Output, ReplyParams, SamplingParams, TokenLogprob
from calculet_trio.text.reply import ReplyStream

EXTRA = [b"Hi", b"\nUs", b"er", b": x", b"four, fi", b"ve, six", b"\xf0\x9f", b"\x98\xb8", b" ok", b"ab", b"<|im_"]
EXTRA += [b"more", b"user", b"end|>", b"\xff", b"\xc3", b""]
TOKENIZER = ByteTokenizer(EXTRA)
START, END, EOS = (TOKENIZER.special_id(text) for text in BYTE_SPECIALS)
GREEDY = SamplingParams(temperature=0)


def row_for(token: int) -> np.ndarray:
    row = np.zeros(TOKENIZER.vocab_size, np.float32)
    row[token] = 9
    return row


def run(tokens: Sequence[int], params: ReplyParams) -> tuple[list[Output], int, bool]:
    """Outputs (the flush included), tokens taken, and whether the reply stopped by itself."""
    stream = ReplyStream(TOKENIZER, params, prompt=[1, 2])
    outputs = []
    for count, token in enumerate(tokens, 1):
        step = stream.accept(row_for(token))
        assert step.token == token
        assert not step.failed
        outputs.append(step.output)
        if step.stopped:
            assert stream.finish() is None, "nothing comes after a stop"
            return outputs, count, True
    rest = stream.finish()
    assert stream.finish() is None
    return [*outputs, rest] if rest is not None else outputs, len(tokens), False


def texts(*pieces: bytes | int, **params: object) -> list[str]:
    tokens = [piece if isinstance(piece, int) else TOKENIZER.token_of(piece) for piece in pieces]
    return [output.text for output in run(tokens, ReplyParams(sampling=GREEDY, **params))[0]]


def expected_text(tokens: Sequence[int], stops: Sequence[str], *, ignore_eos: bool) -> str:
    """The definition: all bytes up to the first completed stop or the end token, without the hidden ones."""
    stream, visible = b"", b""
    marks: list[bool] = []
    for token in tokens:
        for byte in TOKENIZER.token_bytes(token):
            stream += bytes([byte])
            marks.append(not TOKENIZER.is_special(token))
            lengths = [len(stop.encode()) for stop in stops if stream.endswith(stop.encode())]
            if lengths:
                keep = len(stream) - max(lengths)
                visible = bytes(b for b, mark in zip(stream[:keep], marks[:keep], strict=True) if mark)
                return visible.decode("utf-8", "replace")
        if TOKENIZER.is_end(token) and not ignore_eos:
            break
    visible = bytes(b for b, mark in zip(stream, marks, strict=True) if mark)
    return visible.decode("utf-8", "replace")


TOKENS = st.lists(
    st.one_of(
        st.sampled_from([START, END, EOS, *map(ord, "abz<")]),
        st.integers(259, TOKENIZER.vocab_size - 1),
        st.integers(0, 255),
    ),
    max_size=12,
)
STOPS = st.lists(
    st.sampled_from(["ab", "aab", "zz", "\nUser:", "five", "😸", "<|im_end|>", "<|im_start|>user", "user", "b", "ok"]),
    max_size=4,
).map(tuple)


@given(TOKENS, STOPS, st.booleans())
def test_joined_outputs_are_the_text_up_to_the_first_stop(
    tokens: list[int], stops: tuple[str, ...], ignore_eos: bool
) -> None:
    params = ReplyParams(sampling=GREEDY, stop=stops, ignore_eos=ignore_eos)
    outputs, _, _ = run(tokens, params)
    assert "".join(output.text for output in outputs) == expected_text(tokens, stops, ignore_eos=ignore_eos)


@given(st.text("abzé😸\n", max_size=12), STOPS, st.data())
def test_the_split_into_tokens_does_not_matter(text: str, stops: tuple[str, ...], data: st.DataObject) -> None:
    whole = text.encode()
    cuts = sorted(set(data.draw(st.lists(st.integers(1, max(len(whole) - 1, 1))))))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    replies = set()
    for split in (pieces, [bytes([byte]) for byte in whole], [whole]):
        tokenizer = ByteTokenizer(split)
        stream = ReplyStream(tokenizer, ReplyParams(sampling=GREEDY, stop=stops), prompt=[])
        shown = []
        for n in range(len(split)):
            row = np.zeros(tokenizer.vocab_size, np.float32)
            row[259 + n] = 9
            step = stream.accept(row)
            shown.append(step.output.text)
            if step.stopped:
                break
        rest = stream.finish()
        replies.add("".join([*shown, rest.text if rest else ""]))
    assert len(replies) == 1


@given(TOKENS, STOPS, st.booleans(), st.integers(0, 3))
def test_every_shown_token_has_one_entry_in_order_with_what_shows_it(
    tokens: list[int], stops: tuple[str, ...], ignore_eos: bool, top: int
) -> None:
    plain = ReplyParams(sampling=GREEDY, stop=stops, ignore_eos=ignore_eos)
    asking = ReplyParams(sampling=GREEDY, stop=stops, ignore_eos=ignore_eos, top_logprobs=top)
    outputs, count, _ = run(tokens, asking)
    assert [output.text for output in outputs] == [output.text for output in run(tokens, plain)[0]]
    entries: list[TokenLogprob] = [entry for output in outputs for entry in output.logprobs]
    visible = [token for token in tokens[:count] if not TOKENIZER.is_special(token) and TOKENIZER.token_bytes(token)]
    assert [entry.token for entry in entries] == visible[: len(entries)]
    assert all(entry.text_bytes == TOKENIZER.token_bytes(entry.token) for entry in entries)
    assert all(len(entry.top) == top for entry in entries)
    assert all(output.text or not output.logprobs for output in outputs)
    # the entries' bytes hold the text, and without the last of them they would not
    text = "".join(output.text for output in outputs)
    sizes = [len(entry.text_bytes) for entry in entries]
    shown_bytes = b"".join(entry.text_bytes for entry in entries).decode("utf-8", "replace")
    assert shown_bytes.startswith(text.rstrip("\ufffd"))
    if sizes:
        shorter = b"".join(entry.text_bytes for entry in entries[:-1]).decode("utf-8", "replace")
        assert len(shorter.rstrip("\ufffd")) < len(text) or shorter.endswith("\ufffd")


# ---- reports of other servers, as inputs ------------------------------------------------------------


def test_characters_over_tokens() -> None:
    assert texts(b"\xf0\x9f", b"\x98\xb8", b"\xc3", b"\xa9", b" ok", EOS) == ["", "😸", "", "é", " ok", ""]


def test_stop_strings_over_tokens() -> None:
    assert texts(b"Hi", b"\nUs", b"er", b": x", stop=("\nUser:",)) == ["Hi", "", "", ""]
    assert texts(b"four, fi", b"ve, six", b",", stop=("five",)) == ["four, ", ""]


def test_each_token_is_shown_before_the_next_is_made() -> None:
    stops = ("<|im_a-very-long-stop-string|>",)
    assert texts(b"a", b"b", b"<|im_", b"c", stop=stops) == ["a", "b", "", "<|im_c"]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_that_names_a_special_token_matches_its_id(ignore_eos: bool) -> None:
    assert texts(b" ok", END, b"more", stop=("<|im_end|>",), ignore_eos=ignore_eos) == [" ok", ""]
    assert texts(b" ok", START, b"user", b"more", stop=("<|im_start|>user",), ignore_eos=ignore_eos) == [" ok", "", ""]


def test_a_stop_that_names_a_special_token_matches_its_text_too() -> None:
    assert texts(b" ok", b"<|im_", b"end|>", b"more", stop=("<|im_end|>",)) == [" ok", "", ""]


def test_logprobs_wait_with_the_text_they_belong_to() -> None:
    outputs, _, _ = run(list(b"azb"), ReplyParams(sampling=GREEDY, stop=("zz",), top_logprobs=0))
    assert [(output.text, [entry.token for entry in output.logprobs]) for output in outputs] == [
        ("a", [ord("a")]),
        ("", []),
        ("zb", [ord("z"), ord("b")]),
    ]


def test_an_end_token_gives_out_what_was_held() -> None:
    assert texts(b"a", b"z", EOS, stop=("zz",)) == ["a", "", "z"]


def test_the_flush_gives_out_what_was_held() -> None:
    outputs, _, stopped = run(list(b"az"), ReplyParams(sampling=GREEDY, stop=("zz",), top_logprobs=0))
    assert [output.text for output in outputs] == ["a", "", "z"]
    assert [entry.token for entry in outputs[-1].logprobs] == [ord("z")]
    assert not stopped


def test_special_tokens_are_not_shown_and_end_tokens_can_be_ignored() -> None:
    assert texts(b"a", START, b"b") == ["a", "", "b"]
    assert texts(b"a", END, b"b") == ["a", ""]
    assert texts(b"a", END, b"b", ignore_eos=True) == ["a", "", "b"]


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_a_row_that_is_no_distribution_fails_the_lane(bad: float) -> None:
    stream = ReplyStream(TOKENIZER, ReplyParams(top_logprobs=2), prompt=[])
    stream.accept(row_for(97))
    step = stream.accept(np.full(TOKENIZER.vocab_size, bad, np.float32))
    assert (step.token, step.failed, step.stopped, step.output) == (None, True, False, Output(""))
    assert stream.finish() is None


def test_a_masked_row_with_nan_is_served() -> None:
    row = np.full(TOKENIZER.vocab_size, -np.inf, np.float32)
    row[ord("a")], row[5] = 0.0, np.nan
    params = ReplyParams(sampling=SamplingParams(top_k=1), top_logprobs=5)
    step = ReplyStream(TOKENIZER, params, prompt=[]).accept(row)
    assert step.output.text == "a"
    [entry] = step.output.logprobs
    assert [entry.logprob, *(each.logprob for each in entry.top)] == [0.0, 0.0, *[-9999.0] * 4]


def test_padding_beyond_the_vocabulary_is_never_chosen() -> None:
    row = np.append(row_for(97), np.full(10, 99, np.float32))
    assert ReplyStream(TOKENIZER, ReplyParams(sampling=GREEDY), prompt=[]).accept(row).token == 97


@pytest.mark.parametrize("seed", [0, 42, -1, 2**63, -(2**70)])
def test_same_seed_same_text(seed: int) -> None:
    rows = np.random.default_rng(0).standard_normal((30, TOKENIZER.vocab_size)).astype(np.float32)
    params = ReplyParams(sampling=SamplingParams(seed=seed), ignore_eos=True)
    replies = []
    for _ in range(2):
        stream = ReplyStream(TOKENIZER, params, prompt=[])
        replies.append([stream.accept(row).token for row in rows])
    assert replies[0] == replies[1]


def test_without_a_seed_replies_differ() -> None:
    rows = np.random.default_rng(0).standard_normal((60, TOKENIZER.vocab_size)).astype(np.float32)
    streams = [ReplyStream(TOKENIZER, ReplyParams(ignore_eos=True), prompt=[]) for _ in range(2)]
    first, second = ([stream.accept(row).token for row in rows] for stream in streams)
    assert first != second


def test_a_bias_outside_the_vocabulary_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        ReplyStream(TOKENIZER, ReplyParams(sampling=SamplingParams(logit_bias={99_999: 1.0})), prompt=[])
