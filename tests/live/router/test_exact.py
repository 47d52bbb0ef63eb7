"""KV events: wire, index, speculation."""

from __future__ import annotations

import pytest
from exact_rig import Engine, encode, instances, live_index, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.live.router.exact import ExactIndex
from smetric_model.live.router.kv_wire import (
    AllCleared,
    BlocksRemoved,
    WireError,
    decode_batch,
)


class TestWire:
    def test_both_generations_say_the_same(self) -> None:
        old = [
            1.5,
            [
                ["BlockStored", [7, 8], 6, list(range(32)), 16, None, "GPU", None, [None, None], 0],
                ["BlockRemoved", [7], "GPU"],
                ["AllBlocksCleared"],
            ],
        ]
        new = {
            "ts": 1.5,
            "events": [
                {
                    "type": "BlockStored",
                    "block_hashes": [7, 8],
                    "parent_block_hash": 6,
                    "token_ids": list(range(32)),
                    "block_size": 16,
                    "medium": "GPU",
                    "extra_keys": [None, None],
                    "group_idx": 0,
                    "never_heard_of": {"a": 1},
                },
                {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"},
                {"type": "AllBlocksCleared"},
            ],
            "data_parallel_rank": 0,
        }
        assert decode_batch(encode(old)) == decode_batch(encode(new))
        mixed = decode_batch(encode([1.5, new["events"], 0]))
        assert mixed.events == decode_batch(encode(old)).events
        assert isinstance(mixed.events[2], AllCleared)

    def test_hashes_of_32_bytes_and_left_out_keys(self) -> None:
        batch = decode_batch(
            encode(
                [
                    0.0,
                    [
                        {
                            "type": "BlockStored",
                            "block_hashes": [b"\x01" * 32],
                            "token_ids": list(range(16)),
                            "block_size": 16,
                        },
                        {"type": "SomethingNew", "x": 1},
                    ],
                ]
            )
        )
        (event,) = batch.events
        assert event.hashes == [b"\x01" * 32]
        assert event.parent is None
        assert batch.unknown == 1

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"\xc1",
            encode(5),
            encode([1.0]),
            encode({"ts": 1.0}),
            encode([1.0, [["BlockStored", 5]]]),
            encode([1.0, [{"type": "BlockStored", "block_hashes": ["a"]}]]),
            encode([1.0, [["BlockStored", [1], None, "no tokens", 16]]]),
            encode([1.0, [["BlockStored", [1], None, [1], 0]]]),
        ],
    )
    def test_what_is_none_is_an_error(self, payload: bytes) -> None:
        with pytest.raises(WireError):
            decode_batch(payload)


class TestIndex:
    @given(st.data())
    @settings(max_examples=60)
    def test_hits_are_those_of_the_engines(self, data: st.DataObject) -> None:
        index, fleet = live_index(3)
        engines = [Engine(str(k)) for k in range(3)]
        prompts = [
            [(seed * 7 + k // 24) % 5 for k in range(length)]
            for seed, length in data.draw(
                st.lists(st.tuples(st.integers(0, 3), st.integers(1, 120)), min_size=1, max_size=5)
            )
        ]
        salts = [None, "tenant-a", "tenant-b"]
        for _ in range(data.draw(st.integers(1, 25))):
            which = data.draw(st.integers(0, 2))
            engine, bit = engines[which], fleet[which].bit
            if data.draw(st.booleans()) or not engine.cached:
                event = engine.store(
                    data.draw(st.sampled_from(prompts)), data.draw(st.sampled_from(salts))
                )
                if event is not None:
                    index.stored(bit, event)
            else:  # of any block, not only the ends of chains
                names = data.draw(st.lists(st.sampled_from(list(engine.cached)), max_size=3))
                index.removed(bit, engine.evict(list(dict.fromkeys(names))))
            for tokens in prompts:
                for salt in salts:
                    hits = index.hits(prompt(tokens, salt=salt), fleet)
                    assert [hits[item.bit] for item in fleet] == [
                        engine.hit(tokens, salt) for engine in engines
                    ]
        for item in fleet:
            index.cleared(item.bit)
            assert index.blocks(item.bit) == 0
        assert index._masks == {}
        assert index._guesses == {}

    def test_a_full_hit_leaves_a_token_to_compute(self) -> None:
        index, (one,) = live_index(1)
        engine = Engine()
        index.stored(one.bit, engine.store(list(range(64))))
        assert index.hits(prompt(list(range(64))), [one])[one.bit] == 48
        assert index.hits(prompt(list(range(65))), [one])[one.bit] == 64
        assert index.hits(prompt([]), [one])[one.bit] == 0

    @pytest.mark.parametrize(
        ("kind", "counts"),
        [
            (None, True),
            ("full_attention", True),
            ("mla_attention", True),
            ("sink_full_attention", True),
            ("sliding_window", False),
            ("mamba", False),
        ],
    )
    def test_only_full_attention_counts(self, kind: str | None, counts: bool) -> None:
        index, (one,) = live_index(1)
        event = Engine().store(list(range(64)))
        event.kind = kind
        index.stored(one.bit, event)
        assert (index.hits(prompt(list(range(65))), [one])[one.bit] == 64) is counts

    @pytest.mark.parametrize(("medium", "counts"), [("GPU", True), ("gpu", True), ("CPU", False)])
    def test_only_gpu_memory_counts(self, medium: str, counts: bool) -> None:
        index, (one,) = live_index(1)
        engine = Engine()
        event = engine.store(list(range(64)))
        event.medium = medium
        index.stored(one.bit, event)
        assert (index.hits(prompt(list(range(65))), [one])[one.bit] == 64) is counts
        index.removed(one.bit, BlocksRemoved(event.hashes, "CPU"))  # of the tier, not of the GPU
        assert (index.hits(prompt(list(range(65))), [one])[one.bit] == 64) is counts

    def test_a_block_stored_twice_is_gone_after_two_removals(self) -> None:
        index, (one,) = live_index(1)
        event = Engine().store(list(range(32)))
        index.stored(one.bit, event)
        index.stored(one.bit, event)  # another group of full attention
        index.removed(one.bit, BlocksRemoved(event.hashes))
        assert index.hits(prompt(list(range(33))), [one])[one.bit] == 32
        index.removed(one.bit, BlocksRemoved(event.hashes))
        assert index.hits(prompt(list(range(33))), [one])[one.bit] == 0
        index.removed(one.bit, BlocksRemoved(event.hashes))  # once too often changes nothing

    def test_adapters_are_kept_apart(self) -> None:
        index, (one,) = live_index(1)
        event = Engine().store(list(range(64)))
        event.lora_name = "adapter"
        index.stored(one.bit, event)
        tokens = list(range(65))
        assert index.loras == {"adapter"}
        assert index.hits(prompt(tokens, lora="adapter"), [one])[one.bit] == 64
        assert index.hits(prompt(tokens), [one])[one.bit] == 0
        old, (two,) = live_index(1)
        event.extra_keys = [["adapter"]] * 4  # the newer generation says it here
        old.stored(two.bit, event)
        assert old.hits(prompt(tokens, lora="adapter"), [two])[two.bit] == 64

    def test_blocks_whose_parent_is_not_known_are_counted_not_guessed(self) -> None:
        index, (one,) = live_index(1)
        engine = Engine()
        engine.store(list(range(32)))
        index.stored(one.bit, engine.store(list(range(64))))
        assert index.orphans[one.bit] == 2
        assert index.hits(prompt(list(range(65))), [one])[one.bit] == 0


class TestSpeculation:
    def test_a_prompt_counts_at_once_where_it_was_sent(self) -> None:
        now = [0.0]
        fleet = instances(2)
        index = ExactIndex(2.0, lambda: now[0])
        for item in fleet:
            index.live |= item.bit
            index.stored(item.bit, Engine(item.name).store(list(range(900, 916))))
        one, two = fleet
        asked = prompt(list(range(100)))
        guess = index.speculate(asked, one.bit)
        assert index.hits(asked, fleet) == {one.bit: 96, two.bit: 0}
        now[0] = 100.0  # a long prefill
        assert index.hits(asked, fleet)[one.bit] == 96
        guess.first_token()
        now[0] = 101.9
        assert index.hits(asked, fleet)[one.bit] == 96
        now[0] = 102.1
        assert index.hits(asked, fleet)[one.bit] == 0
        assert index._guesses == {}

    def test_a_failed_request_leaves_nothing(self) -> None:
        index, (one,) = live_index(1)
        index.stored(one.bit, Engine().store(list(range(16))))
        asked = prompt(list(range(100)))
        guess = index.speculate(asked, one.bit)
        guess.drop()
        guess.drop()
        guess.first_token()
        assert index.hits(asked, [one])[one.bit] == 16
        assert index._guesses == {}

    def test_an_event_ends_it(self) -> None:
        index, (one,) = live_index(1)
        engine = Engine()
        index.stored(one.bit, engine.store(list(range(16))))
        asked = prompt(list(range(100)))
        index.speculate(asked, one.bit)
        index.stored(one.bit, engine.store(list(range(100))))
        assert index._guesses == {}
        index.removed(one.bit, engine.evict(engine.hashes(list(range(100)))[3:]))
        assert index.hits(asked, [one])[one.bit] == 48
