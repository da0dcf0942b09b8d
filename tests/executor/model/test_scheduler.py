"""Sequences that come and go over one paged cache: each answers as if it were alone, none is lost, and no page."""

from __future__ import annotations

import asyncio
import logging

import pytest

from executor.gguf.gguf_file import GgufFile
from executor.model.logprobs import token_logprob
from executor.model.sampling import Sampler
from executor.model.scheduling.scheduler import Scheduler
from executor.model.step import Row
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError
from tests.executor.model.fake_engine import FakeEngine, Letters, alone, fresh, greedy, rows_of_steps
from tests.synthetic import Q, write_model

LONG = list(range(30))


def test_sequences_side_by_side_answer_as_alone_one_row_each_and_leave_no_page() -> None:
    engine = FakeEngine(slots=3)
    scheduler = fresh(engine)
    prompts = [LONG[:5], LONG[3:9], LONG[7:8]]
    requests = [greedy(scheduler, prompt) for prompt in prompts]
    assert [request.state for request in requests] == ["queued"] * 3
    assert scheduler.step()
    assert [request.state for request in requests] == ["running"] * 3
    scheduler.run()
    for request, prompt in zip(requests, prompts, strict=True):
        assert (request.state, request.stopped, request.tokens) == ("finished", "length", alone(engine, prompt, 8))
    assert rows_of_steps(engine) == [12, *[3] * 7]
    assert scheduler.pool.held == 0


def test_a_long_prompt_goes_in_by_chunks_between_the_steps_of_those_that_decode() -> None:
    engine = FakeEngine(rows=16)
    scheduler = fresh(engine, prompt_rows=10)
    first = greedy(scheduler, LONG[:3], 9)
    scheduler.step()
    long, short = greedy(scheduler, LONG[4:29], 2), greedy(scheduler, LONG[1:5], 2)
    scheduler.run()
    assert rows_of_steps(engine) == [3, 11, 11, 10, 3, 1, 1, 1, 1]  # 10 + 10 + 5 + 4: the short one is in the last chunk's step
    assert [len([row for row in rows if row.scored]) for rows in engine.steps[:5]] == [1, 1, 1, 3, 3]
    assert [len(request.tokens) for request in (first, long, short)] == [9, 2, 2]
    assert long.tokens == alone(engine, LONG[4:29], 2)


def test_prompts_of_few_rows_come_before_longer_ones_and_after_those_who_decode() -> None:
    engine = FakeEngine(rows=32)
    scheduler = fresh(engine)
    first = greedy(scheduler, LONG[:3], 9)
    scheduler.step()
    long, short = greedy(scheduler, LONG[4:24], 2), greedy(scheduler, LONG[1:5], 2)
    scheduler.step()
    slots = [row.slot for row in engine.steps[1]]
    assert len(slots) == 1 + 4 + 20
    assert [slots.count(slot) for slot in dict.fromkeys(slots)] == [1, 4, 20]
    scheduler.run()
    assert [request.tokens for request in (first, long, short)] == [
        alone(engine, prompt, count) for prompt, count in ((LONG[:3], 9), (LONG[4:24], 2), (LONG[1:5], 2))
    ]


def test_equal_beginnings_are_computed_once_while_others_run_after_they_ended_and_at_the_same_time() -> None:
    engine = FakeEngine(rows=32, page_len=4)
    scheduler = fresh(engine)
    system = LONG[:12]
    together = [greedy(scheduler, [*system, token]) for token in (20, 21)]
    scheduler.step()
    assert rows_of_steps(engine) == [13]  # the second waits for the pages of the first
    scheduler.step()
    later = greedy(scheduler, [*system, 22])
    scheduler.run()
    last = greedy(scheduler, [*together[0]._sequence.tokens, 5])
    scheduler.run()
    assert [request.usage.cached_prompt_tokens for request in (*together, later, last)] == [0, 12, 12, 20]
    assert last.usage.prompt_tokens == 22
    for request in (*together, later, last):
        assert request.tokens == alone(engine, request._sequence.prompt, 8)


def test_the_last_token_of_a_prompt_is_computed_even_if_all_of_it_is_known() -> None:
    engine = FakeEngine(page_len=4)
    scheduler = fresh(engine)
    for cached in (0, 4):
        request = greedy(scheduler, LONG[:8])
        assert request.result().tokens == tuple(alone(engine, LONG[:8], 8))
        assert request.usage.cached_prompt_tokens == cached


def test_when_pages_run_out_the_youngest_gives_way_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = FakeEngine(slots=3, pages=8, page_len=4, rows=16)
    scheduler = fresh(engine)
    prompts = [LONG[:4], LONG[8:12], LONG[16:20]]
    seen: list[int] = []
    requests = [greedy(scheduler, prompt, 14, on_token=seen.append if prompt[0] == 16 else None) for prompt in prompts]
    greedy(scheduler, LONG[20:24], 1)
    while scheduler.step():
        order = [sequence.number for sequence in (*scheduler._batch.running, *scheduler._batch.queue)]
        assert order == sorted(order)  # nobody overtakes who gave way
    assert [request.tokens for request in requests] == [alone(engine, prompt, 14) for prompt in prompts]
    assert seen == requests[2].tokens
    assert [request.usage.preemptions > 0 for request in requests] == [False, True, True]
    assert scheduler.status().preemptions == sum(request.usage.preemptions for request in requests)
    assert "request 2 gives its pages back and is queued again with" in caplog.text
    assert requests[2].usage.cached_prompt_tokens == 0


def test_a_full_cache_queues_in_order_and_says_what_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = FakeEngine(slots=2, pages=6, page_len=4)
    scheduler = fresh(engine)
    first, second, third = greedy(scheduler, LONG[:16], 5), greedy(scheduler, LONG[16:24], 2), greedy(scheduler, LONG[:1], 2)
    scheduler.step()
    assert [(request.state, request.waiting) for request in (first, second, third)] == [
        ("running", ""), ("queued", "pages"), ("queued", "turn"),
    ]  # fmt: skip
    status = scheduler.status()
    assert (status.queued, status.running, status.waiting, status.pages_held, status.pages_free) == (2, 1, "pages", 4, 2)
    assert "request 1 waits for pages: 2 and 1 to spare are needed, 2 available; 2 are queued" in caplog.text
    first.result()
    fourth = greedy(scheduler, LONG[:2], 2)
    scheduler.step()
    assert fourth.waiting == "slot"
    scheduler.run()
    for request in (first, second, third, fourth):
        assert request.tokens == alone(engine, request._sequence.prompt, len(request.tokens))
    assert scheduler.status().finished == {"length": 4}


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        (LONG[:10], 12, "10 tokens of prompt and 12 of answer need 6 pages of 4 positions, and the cache has 5; .* up to 21 "),
        (LONG * 3, 1, "the prompt has 90 tokens, the context holds 64"),
        ([], 1, "the prompt has no tokens"),
        ([32], 1, "token id 32 is out of range; the vocabulary has ids 0 to 31"),
        ([1], 0, "max_tokens is 0"),
    ],
)  # fmt: skip
def test_what_can_never_run_is_refused_at_once(prompt: list[int], count: int, message: str) -> None:
    scheduler = fresh(FakeEngine(pages=5, page_len=4))
    with pytest.raises(ArgumentError, match=message):
        greedy(scheduler, prompt, count)
    assert scheduler.status().queued == 0


def test_what_an_answer_computed_is_found_by_the_next_turn() -> None:
    """The token that ends the text is not computed, and neither is the last one of a text that its length ends."""
    engine = FakeEngine(page_len=4)
    for end, count, cached in ((None, 4, 4), (None, 5, 8), (4, 9, 8)):
        scheduler = fresh(engine)
        expected = alone(engine, LONG[:4], 9)
        stop = () if end is None else (expected[end],)
        first = scheduler.submit(LONG[:4], max_tokens=count, stop_tokens=stop).result()
        second = greedy(scheduler, [*LONG[:4], *first.tokens, 1, 2, 3, 4], 1)
        second.result()
        assert second.usage.cached_prompt_tokens == cached


def test_what_just_fits_runs() -> None:
    engine = FakeEngine(pages=5, page_len=4)
    assert greedy(fresh(engine), LONG[:10], 11).result().tokens == tuple(alone(engine, LONG[:10], 11))


def test_an_answer_ends_by_its_ends_its_length_and_the_context() -> None:
    engine = FakeEngine(context=12)
    scheduler = fresh(engine)
    expected = alone(engine, LONG[:4], 9)
    context = greedy(scheduler, LONG[:4], 100)
    end = expected[5]
    ended = scheduler.submit(LONG[:4], max_tokens=100, stop_tokens=[end])
    scheduler.run()
    assert (context.stopped, context.tokens) == ("context", expected)
    assert (ended.stopped, ended.tokens) == ("eos", expected[: expected.index(end)])


def test_text_comes_piece_by_piece_and_ends_before_a_stop_string() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    expected = alone(engine, LONG[14:18], 8)
    text = "".join(map(Letters().push, expected))
    whole = scheduler.submit("opqr", max_tokens=8, stop_tokens=())
    stopped = scheduler.submit("opqr", max_tokens=8, stop_tokens=(), stop=[text[4:6], text[3] + "?"])
    assert [(piece.token, piece.text) for piece in whole] == list(zip(expected, text, strict=True))
    assert [piece.text for piece in stopped] == [text[0], text[1], text[2], "", text[3], ""]
    result = stopped.result()
    assert (result.text, result.stopped, list(result.tokens)) == (text[:4], "stop", expected[:6])


def test_text_that_was_held_back_comes_when_there_is_no_stop_string_after_all() -> None:
    engine = FakeEngine()
    expected = alone(engine, LONG[14:18], 3)
    text = "".join(map(Letters().push, expected))
    for end in ({"max_tokens": 2, "stop_tokens": ()}, {"max_tokens": 5, "stop_tokens": expected[2:]}):
        request = fresh(engine).submit("opqr", stop=[text[1] + "???"], **end)  # type: ignore[arg-type]
        assert request.result().text == text[:2]
        assert "".join(piece.text for piece in request) == text[:2]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return Tokenizer.from_gguf(GgufFile.open(write_model(path, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, types=Q.F32)))


def test_the_text_is_that_of_the_models_tokenizer(tokenizer: Tokenizer) -> None:
    engine = FakeEngine(vocab=tokenizer.vocab_size)
    engine.choose = lambda value: 3 + value % (engine.vocab - 3)
    request = Scheduler(engine, tokenizer).submit("Hello", max_tokens=20, stop_tokens=())
    text = "".join(piece.text for piece in request)
    stream = tokenizer.stream()
    assert request.tokens == alone(engine, tokenizer.encode("Hello"), 20)
    assert text == request.text == "".join(map(stream.push, request.tokens)) + stream.finish()


def test_draws_depend_on_the_seed_of_the_sequence_alone_and_a_sampler_may_be_given_twice() -> None:
    engine = FakeEngine()
    sampler = Sampler(1.0, top_k=8, seed=5)

    def drawn(*others: int) -> tuple[int, ...]:
        scheduler = fresh(FakeEngine(pages=6, slots=3))
        request = scheduler.submit(LONG[:4], max_tokens=12, sampler=sampler, stop_tokens=())
        for seed in others:
            scheduler.submit(LONG[5:9], max_tokens=12, sampler=sampler, seed=seed, stop_tokens=())
        scheduler.run()
        return request.result().tokens

    assert drawn() == drawn(1, 2) == drawn(3)
    assert drawn() != tuple(alone(engine, LONG[:4], 12))
    unseeded = fresh(engine).submit(LONG[:4], max_tokens=12, sampler=Sampler(1.0), stop_tokens=())
    again = fresh(engine).submit(LONG[:4], max_tokens=12, sampler=Sampler(1.0), seed=unseeded.seed, stop_tokens=())
    assert unseeded.result().tokens == again.result().tokens


def test_iterators_share_the_steps_and_each_sees_all_pieces() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    requests = [greedy(scheduler, LONG[at : at + 4]) for at in range(2)]
    pairs = list(zip(*requests, strict=True))
    assert [[piece.token for piece in pieces] for pieces in zip(*pairs, strict=True)] == [
        alone(engine, LONG[at : at + 4], 8) for at in range(2)
    ]
    assert len(engine.steps) == 8
    assert [piece.token for piece in requests[0]] == requests[0].tokens


def test_tasks_share_the_steps_and_others_run_between_them() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    longest = 0

    async def bystander(stop: asyncio.Event) -> None:
        nonlocal longest
        while not stop.is_set():
            before = scheduler.status().steps
            await asyncio.sleep(0)
            longest = max(longest, scheduler.status().steps - before)

    async def consume(prompt: list[int]) -> list[int]:
        return [piece.token async for piece in greedy(scheduler, prompt) if piece.token is not None]

    async def main() -> list[list[int]]:
        stop = asyncio.Event()
        watching = asyncio.create_task(bystander(stop))
        answers = await asyncio.gather(*(consume(LONG[at : at + 4]) for at in range(4)))
        stop.set()
        await watching
        return answers

    assert asyncio.run(main()) == [alone(engine, LONG[at : at + 4], 8) for at in range(4)]
    assert (len(engine.steps), longest) == (9, 1)  # the first task runs a step before the others have submitted


def test_a_task_that_is_cancelled_leaves_the_others_running() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)

    async def main() -> tuple[int, ...]:
        requests = [greedy(scheduler, LONG[at : at + 4]) for at in range(2)]
        driving, waiting = (asyncio.create_task(request.wait()) for request in requests)
        await asyncio.sleep(0)
        driving.cancel()
        return (await waiting).tokens

    assert list(asyncio.run(main())) == alone(engine, LONG[1:5], 8)


@pytest.mark.parametrize("prompt_rows", [3, 16])
def test_probabilities_of_a_prompt_are_those_of_each_token_after_the_ones_before(prompt_rows: int) -> None:
    """In whatever steps the prompt runs, beside others, and with its beginning known."""
    engine = FakeEngine(rows=16)
    scheduler = fresh(engine, prompt_rows=prompt_rows)
    before = greedy(scheduler, LONG)
    expected = []
    for at in range(1, 10):
        single = FakeEngine()
        single.set_table(0, range(16))
        scores = single.step([Row(0, token, place, True) for place, token in enumerate(LONG[:at])])
        expected.append(token_logprob(scores.logits(at - 1), LONG[at], 2))
    before.result()
    wanted = [
        scheduler.submit(LONG[:10], max_tokens=count, stop_tokens=(), prompt_logprobs=2, logprobs=top)
        for count, top in ((0, None), (5, None), (5, 1))
    ]
    other = greedy(scheduler, LONG[:7])
    scheduler.run()
    for request in wanted:
        assert request.prompt_logprobs == expected
        assert (request.stopped, request.tokens) == ("length", alone(engine, LONG[:10], len(request.tokens)))
    assert [len(request.tokens) for request in wanted] == [0, 5, 5]
    assert other.tokens == alone(engine, LONG[:7], 8)
    assert scheduler.pool.held == 0
