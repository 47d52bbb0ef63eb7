"""Prompts to tokens: cached by segment, equal to tokenising whole."""

from __future__ import annotations

import asyncio
import itertools
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_rig import FakeEngine, rig

from smetric_model.errors import SpecError
from smetric_model.live.router.chat_template import CannotRenderError, ChatTemplate
from smetric_model.live.router.exact import ExactIndex
from smetric_model.live.router.http_server import Incoming
from smetric_model.live.router.question import Question, ask
from smetric_model.live.router.tokenise import RenderCheck, SegmentCache, Tokeniser

CHATML = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
[{{ call.function.name }} {{ call.function.arguments.items() | list }}]
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox", "an answer to the question"], trainer)
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text in ("<|im_start|>", "<|im_end|>")
        ]
    )
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return folder


def question(body: dict[str, Any], path: bytes = b"/v1/chat/completions") -> Question:
    return ask(Incoming(b"POST", path, [], json.dumps(body).encode()))


def chat(*contents: str) -> dict[str, Any]:
    roles = ["user", "assistant"]
    return {"messages": [{"role": roles[k % 2], "content": c} for k, c in enumerate(contents)]}


class TestTokeniser:
    @given(st.lists(st.text(max_size=40), max_size=6))
    @settings(max_examples=60)
    def test_segments_give_the_tokens_of_the_whole(self, model: Path, contents: list[str]) -> None:
        tokeniser = Tokeniser(model)
        assert tokeniser.caches_segments
        text = "".join(f"<|im_start|>user\n{content}<|im_end|>\n" for content in contents)
        for _ in range(2):  # cold, then cached
            assert tokeniser.encode(text, False) == tokeniser._whole(
                text.encode("utf-8", "replace").decode(), False
            )
        tokeniser.close()

    def test_a_growing_session_tokenises_only_what_is_new(self, model: Path) -> None:
        tokeniser = Tokeniser(model)
        sizes = []
        for turns in range(1, 6):
            contents = [f"message {k} " * 20 for k in range(2 * turns - 1)]
            asked = question(chat(*contents))
            prompt = asyncio.run(tokeniser.prompt(asked, ExactIndex(), 5.0))
            assert prompt is not None
            sizes.append(len(tokeniser.cache))
        # three cuts a message, two messages a turn; the role's name is the same each time
        assert [b - a for a, b in itertools.pairwise(sizes[1:])] == [2] * 3
        tokeniser.close()

    def test_what_can_be_known_and_what_not(self, model: Path) -> None:
        tokeniser = Tokeniser(model)

        def tokens(body: dict[str, Any], path: bytes = b"/v1/chat/completions") -> Any:
            found = asyncio.run(tokeniser.prompt(question(body, path), ExactIndex(), 5.0))
            return None if found is None else found.tokens

        completions = b"/v1/completions"
        assert tokens({"prompt": [1, 2, 3]}, completions) == 3
        assert tokens({"prompt": list(range(300)) * 100}, completions) == 30_000
        assert tokens({"prompt": "the quick"}, completions) > 0
        assert tokens({"prompt": ["a", "b"]}, completions) is None
        assert tokens({"prompt": [2**40]}, completions) is None
        assert tokens(chat("hello")) > 0
        assert tokens({**chat("hello"), "chat_template": "mine"}) is None
        image = {"type": "image_url", "image_url": {"url": "data:x"}}
        assert tokens({"messages": [{"role": "user", "content": [image]}]}) is None
        assert tokens({"messages": [{"role": "user", "content": "x"}]}, b"/v1/messages") is None
        assert tokens({}) is None
        tokeniser.close()

    def test_without_a_tokenizer_token_ids_are_still_known(self) -> None:
        tokeniser = Tokeniser(None)
        asked = question({"prompt": [7] * 40}, b"/v1/completions")
        prompt = asyncio.run(tokeniser.prompt(asked, ExactIndex(), 5.0))
        assert prompt is not None
        assert prompt.data == array("I", [7] * 40).tobytes()
        text = question({"prompt": "x"}, b"/v1/completions")
        assert asyncio.run(tokeniser.prompt(text, ExactIndex(), 5.0)) is None
        tokeniser.close()

    def test_the_event_loop_runs_on_and_waits_no_longer_than_told(self, model: Path) -> None:
        tokeniser = Tokeniser(model)
        asked = question(chat(*[f"{k} the quick brown fox " * 4000 for k in range(9)]))

        async def main() -> None:
            loop = asyncio.get_running_loop()
            start = loop.time()
            assert await tokeniser.prompt(asked, ExactIndex(), 0.005) is None
            assert loop.time() - start < 0.2
            ticks = 0
            work = asyncio.ensure_future(tokeniser.prompt(asked, ExactIndex(), 30.0))
            while not work.done():
                await asyncio.sleep(0.001)
                ticks += 1
            assert work.result() is not None

        asyncio.run(main())
        tokeniser.close()

    def test_wrong_files(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="no such file"):
            Tokeniser(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(SpecError, match=r"not a tokenizer\.json"):
            Tokeniser(tmp_path)

    def test_the_cache_keeps_to_its_budget(self) -> None:
        cache = SegmentCache(10_000)
        for k in range(100):
            cache.put(b"%d" % k, bytes(400))
            assert cache.memory_bytes <= 10_000
        assert cache.get(b"0") is None
        assert cache.get(b"99") == bytes(400)


class TestTemplate:
    def test_messages_are_prepared_as_the_engine_does(self) -> None:
        template = ChatTemplate(CHATML)
        body = {
            "tools": [{"type": "function", "function": {"name": "ä<b>"}}],
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}],
                },
            ],
        }
        text = template.render(body)
        assert '{"type": "function", "function": {"name": "ä<b>"}}' in text  # no HTML escapes
        assert "<|im_start|>user\na\nb<|im_end|>" in text
        assert "[f [('x', 1)]]" in text
        assert text.endswith("<|im_start|>assistant\n")
        assert not template.render({**body, "add_generation_prompt": False}).endswith("assistant\n")

    def test_a_template_that_goes_through_parts_gets_parts(self) -> None:
        template = ChatTemplate(
            "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
        )
        assert template.render({"messages": [{"role": "user", "content": "whole"}]}) == "[whole]"

    def test_what_a_template_refuses_cannot_be_rendered(self) -> None:
        template = ChatTemplate("{{ raise_exception('no ' ~ messages[0].content) }}")
        with pytest.raises(CannotRenderError) as caught:
            template.render(chat("secret"))
        assert "secret" not in str(caught.value)

    def test_a_template_cannot_reach_out(self) -> None:
        template = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}")
        with pytest.raises(CannotRenderError):
            template.render(chat("x"))
        with pytest.raises(SpecError, match="not valid"):
            ChatTemplate("{% for %}")


def test_a_render_that_differs_from_the_engines_is_noticed() -> None:
    check = RenderCheck()
    for _ in range(9):
        check.compare(100, 101)
    assert check.is_believable  # too few to say
    check.compare(100, 101)
    assert not check.is_believable
    for _ in range(50):
        check.compare(100, 100)
    assert check.is_believable
    assert (check.compared, check.different) == (60, 10)


def test_the_router_falls_back_and_says_so(model: Path) -> None:
    async def main() -> None:
        config = {
            "hits": {"source": "exact", "tokenizer": str(model)},
            "instance_settings": [{"kv_events": "tcp://127.0.0.1:1"}],
        }
        async with rig(FakeEngine(prompt_tokens=lambda seen: 1), config=config) as r:
            r.service.exact.live = 1  # as if its events came
            for k in range(12):
                answer = await r.chat(f"u{k}", messages=chat("hello")["messages"])
            assert answer.headers["x-smetric-hit-source"] == "approximate"
            async with r.client.get(r.url + "/health") as response:
                hits = (await response.json())["hits"]
            assert hits["source"] == "approximate"
            assert "not as long" in hits["why"]

    asyncio.run(main())
