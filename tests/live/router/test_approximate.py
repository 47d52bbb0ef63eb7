"""Hits learnt from responses."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.live.router.approximate import ENTRY_BYTES, ApproximateIndex
from smetric_model.live.router.chain import Chain, chain_of_conversation, chain_of_prompt
from smetric_model.live.router.prefix_table import longest_prefixes
from smetric_model.routing.turn import read_conversation

A, B = 1, 2


def chain(body: dict[str, Any], api: str = "chat", root: bytes = b"") -> Chain:
    return chain_of_conversation(api, read_conversation(api, body), body, root)


def chat(*contents: str, system: str = "be brief") -> dict[str, Any]:
    messages = [{"role": "system", "content": system}]
    for index, content in enumerate(contents):
        messages.append({"role": "assistant" if index % 2 else "user", "content": content})
    return {"messages": messages}


@given(
    st.lists(st.integers(0, 6), max_size=12),
    st.dictionaries(st.integers(0, 6), st.integers(0, 7)),
    st.dictionaries(st.integers(0, 6), st.integers(0, 7)),
    st.integers(0, 7),
)
def test_one_walk_finds_every_instances_prefix(
    keys: list[int], first: dict[int, int], second: dict[int, int], wanted: int
) -> None:
    for tables in ((first,), (first, second)):
        found = longest_prefixes(keys, tables, wanted)
        for bit in (1, 2, 4):
            count = 0
            for key in keys:
                if not any(table.get(key, 0) & bit for table in tables):
                    break
                count += 1
            assert found.get(bit, 0) == (count if wanted & bit else 0)


class TestChain:
    def test_equal_prefixes_have_equal_keys_and_nothing_else_has(self) -> None:
        one, two = chain(chat("a", "b", "c")), chain(chat("a", "b", "d"))
        assert one.keys[:3] == two.keys[:3]
        assert one.keys[3] != two.keys[3]
        assert chain(chat("a", "b", "c", system="other")).keys[0] != one.keys[0]
        assert chain(chat("a", "b", "c"), root=b"tenant").keys[0] != one.keys[0]
        assert not set(chain(chat("b", "a", "c")).keys[1:]) & set(one.keys)

    def test_lengths_are_those_of_the_expected_hit(self) -> None:
        body = chat("x" * 400, "y" * 1003, "z" * 50, system="s" * 77)
        read = read_conversation("chat", body)
        one = chain(body)
        assert one.answers[1] == one.ends[2] == read.turn.est_hit_tokens
        assert one.prompt_tokens == (400 + 1003 + 50 + 77) // 4

    def test_marks_ids_and_reasoning_change_nothing(self) -> None:
        plain = chain(chat("question", "answer", "more"))
        body = chat("question", "<think>hm</think>answer", "more")
        body["messages"][1]["cache_control"] = {"type": "ephemeral"}
        body["messages"][2]["reasoning_content"] = "hm"
        assert chain(body).keys == plain.keys

    def test_images_are_told_apart(self) -> None:
        def with_image(url: str) -> dict[str, Any]:
            parts = [
                {"type": "text", "text": "what is it?"},
                {"type": "image_url", "image_url": {"url": url}},
            ]
            return {"messages": [{"role": "user", "content": parts}]}

        one, same, other = (chain(with_image(url)) for url in ("data:a", "data:a", "data:b"))
        assert one.keys == same.keys
        assert one.keys != other.keys

    def test_the_session_is_told_by_how_it_starts(self) -> None:
        keys = {chain(chat("first", *["x", "y"] * k)).session_key for k in range(4)}
        assert len(keys) == 1
        assert chain(chat("second")).session_key not in keys
        # a parent and its subagent share headers, and even the system prompt
        assert chain(chat("do this part")).session_key != chain(chat("do all")).session_key

    def test_plain_prompts(self) -> None:
        text = chain_of_prompt("x" * 1000)
        assert text.prompt_tokens == 250
        ids = chain_of_prompt(list(range(130)))
        assert ids.ends == [64, 128, 130]
        assert chain_of_prompt([*range(128), 5]).keys[:2] == ids.keys[:2]
        assert chain_of_prompt(["ab", "cd"]).prompt_tokens == 0  # half a token each
        assert chain_of_prompt([[1, 2], [3]]).prompt_tokens == 3
        for nothing in (None, [], 5, {"a": 1}):
            assert chain_of_prompt(nothing).keys == []


class TestIndex:
    def test_a_session_grows(self) -> None:
        index = ApproximateIndex(10**7)
        first, second = chain(chat("q" * 100)), chain(chat("q" * 100, "a" * 200, "r" * 40))
        assert index.hits(first, A | B) == {}
        index.learn(first, A)
        assert index.hits(second, A | B) == {A: first.prompt_tokens}
        index.answered(first, A, 50)
        assert index.hits(second, A | B) == {A: second.ends[2]}
        assert index.hits(second, B) == {}
        index.learn(second, B)  # moved
        assert index.hits(second, A | B) == {A: second.ends[2], B: second.prompt_tokens}

    def test_an_instance_forgets_what_its_cache_cannot_hold(self) -> None:
        index = ApproximateIndex(10**7)
        chains = [chain(chat(f"{k}" * 400, "a" * 400, "b" * 400, system="")) for k in range(5)]
        for one in chains:
            index.learn(one, A, capacity_tokens=700)
        held = [index.hits(one, A).get(A, 0) for one in chains]
        assert held[0] == held[1] == 0
        assert held[-1] == held[-2] == 300
        assert sum(held) <= 700
        # the end of a chain goes first
        assert 0 <= held[2] < 300

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4), st.integers(0, 6))))
    @settings(max_examples=50)
    def test_the_budget_holds_and_ends_go_before_beginnings(self, steps: list[Any]) -> None:
        index = ApproximateIndex(40 * ENTRY_BYTES)
        for session, instance, turns in steps:
            one = chain(chat(*[f"{session}-{k}" * 9 for k in range(2 * turns + 1)]))
            index.learn(one, 1 << instance)
            index.answered(one, 1 << instance, 3)
            assert index.entries <= 40
            assert index.entries == sum(len(held) for held in index._held.values())
            assert index.memory_bytes <= 40 * ENTRY_BYTES
            for bit, held in index._held.items():
                keys = [key for key in one.keys if key in held]
                assert keys == one.keys[: len(keys)], bit
            masks = dict.fromkeys(index._masks, 0)
            for bit, held in index._held.items():
                for key in held:
                    masks[key] |= bit
            assert masks == index._masks
        for instance in range(5):
            index.drop_instance(1 << instance)
        assert index.entries == 0
        assert index._masks == {}

    def test_what_an_entry_takes_is_not_more_than_is_said(self) -> None:
        index = ApproximateIndex(10**9)
        tracemalloc.start()
        try:
            for session in range(3000):
                one = Chain([hash((session, k)) & (2**63 - 1) for k in range(10)])
                one.ends = list(range(300, 3300, 300))
                one.answers = one.ends
                index.learn(one, A)
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert index.entries == 30_000
        assert 0.5 * index.memory_bytes < used < index.memory_bytes

    def test_an_eviction_seen_forgets_what_was_used_less_recently(self) -> None:
        index = ApproximateIndex(10**7)
        one, two, three = (chain(chat(f"{k}" * 400, system=f"s{k}")) for k in range(3))
        for each in (one, two, three):
            index.learn(each, A)
        mark = index.last_use(two, A)
        index.forget_until(A, mark)
        assert index.hits(one, A) == index.hits(two, A) == {}
        assert index.hits(three, A) == {A: three.prompt_tokens}
        assert index.last_use(two, A) == 0


def test_bodies_that_cannot_be_read_are_first_turns_and_say_where_not_what() -> None:
    from smetric_model.live.router.http_server import Incoming
    from smetric_model.live.router.question import ask

    def question(body: bytes, path: bytes = b"/v1/chat/completions") -> Any:
        return ask(Incoming(b"POST", path, [], body))

    secret = "the-secret"
    for body, note in (
        (b"{", "body is not JSON"),
        (b"[1]", "body is no object"),
        (b"\xff", "body is not JSON"),
        (
            b'{"messages":[{"role":5,"content":"the-secret"}]}',
            "body is wrong at $.messages[0].role",
        ),
        (b'{"messages":"the-secret"}', "body is wrong at $.messages"),
    ):
        asked = question(body)
        assert asked.note == note
        assert secret not in asked.note
        assert asked.request.turn == asked.request.prompt_tokens == 0
    deep = b"[" * 100_000 + b"]" * 100_000
    assert question(b'{"messages":' + deep + b"}").note
    asked = question(orjson.dumps(chat("a", "b", "c")))
    assert asked.request.turn == 1
    assert question(b"{}", b"/v1/embeddings").api is None
