"""target.py, session.py, slots.py, compiled.py, tokens.py: what is scored is what the model itself would say."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf

from specdemo import compiled as compiled_module
from specdemo.session import PREFILL_ROWS, HFSession
from specdemo.slots import block, slot_attention
from specdemo.target import HFTarget, auto_dtype, fixed_rows, slot_count
from specdemo.types import Message, Proposal, Request, SpecdemoError
from tests import tiny

# Sizes are multiples of 32, as in real models: elementwise kernels round the odd elements at the end differently.
SMALL = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
ENDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 2}


def random_model(config: hf.PreTrainedConfig, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """A random model whose weights are large enough that attention matters and logits are no ties."""
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.25)
    return model


def gemma(**options: object) -> dict[str, object]:
    return {**SMALL, **ENDS, "num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 32, **options}


MODELS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "llama": lambda: hf.LlamaConfig(**SMALL, **ENDS, num_key_value_heads=2, head_dim=32),
    "llama-mha": lambda: hf.LlamaConfig(**SMALL, **ENDS, head_dim=32),
    "mistral-window-8": lambda: hf.MistralConfig(**SMALL, **ENDS, num_key_value_heads=2, head_dim=32, sliding_window=8),
    "qwen2-mixed": lambda: hf.Qwen2Config(
        **SMALL, **ENDS, num_key_value_heads=2, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "gemma2-softcap-mixed": lambda: hf.Gemma2Config(**gemma(sliding_window=8, attn_logit_softcapping=3.0)),
    "gemma3-mixed": lambda: hf.Gemma3TextConfig(
        **gemma(sliding_window=8, layer_types=["sliding_attention", "sliding_attention", "full_attention"])
    ),
    "gpt-oss-sinks-mixed": lambda: hf.GptOssConfig(
        **SMALL,
        **ENDS,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=8,
        num_local_experts=2,
        num_experts_per_tok=1,
    ),
    "gpt2-learned-positions": lambda: hf.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, **ENDS
    ),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    dtype = torch.float32 if "oss" in request.param else torch.float64  # grouped products of experts know no float64
    return random_model(MODELS[request.param](), dtype)


def target(model: torch.nn.Module, **options: object) -> HFTarget:
    return HFTarget(model, tiny.tokenizer(), name="tiny", **options)


def chain(rng: random.Random, truth: list[int], n: int) -> Proposal:
    """A draft that is right up to a random place and random after it."""
    right = rng.randrange(min(n, len(truth)) + 1)
    return Proposal(tuple(truth[:right]) + tuple(rng.randrange(64) for _ in range(n - right)))


def tree(rng: random.Random, truth: list[int], n: int) -> Proposal:
    """A tree with the right tokens in random places of it."""
    tokens: list[int] = []
    parents: list[int] = []
    spine, depth = -1, 0
    while len(tokens) < n:
        if depth < len(truth) and rng.random() < 0.5:
            parents.append(spine)
            tokens.append(truth[depth])
            spine, depth = len(tokens) - 1, depth + 1
        else:
            parents.append(rng.randrange(-1, len(tokens)))
            tokens.append(rng.randrange(64))
    return Proposal(tuple(tokens), tuple(parents))


def verify(proposal: Proposal, logits: torch.Tensor) -> tuple[list[int], int]:
    """Greedy verification, written once more and simply: the accepted path and the target's own token."""
    path: list[int] = []
    while True:
        here = path[-1] if path else -1
        wanted = int(logits[here + 1].argmax())
        fits = [i for i, t in enumerate(proposal.tokens) if t == wanted and proposal.parent(i) == here]
        if not fits:
            return path, wanted
        path.append(fits[0])


def write(
    session: HFSession, prompt: list[int], n: int, draft: Callable[[int], Proposal]
) -> tuple[list[int], list[torch.Tensor], int]:
    """Decode at least n tokens: they, the logits each was chosen by, and how many were accepted."""
    session.prefill(prompt)
    tokens: list[int] = []
    rows: list[torch.Tensor] = []
    accepted = 0
    while len(tokens) < n:
        proposal = draft(len(tokens))
        logits = session.score(proposal)
        assert logits.shape[0] == len(proposal.tokens) + 1
        path, token = verify(proposal, logits)
        rows += [logits[i + 1] for i in (-1, *path)]
        tokens += [proposal.tokens[i] for i in path] + [token]
        accepted += len(path)
        session.commit(path, token)
    return tokens, rows, accepted


@pytest.mark.parametrize("shape", [chain, tree])
@pytest.mark.parametrize("length", [1, 6, 20])
def test_token_identical_to_generate_under_random_drafts(
    model: torch.nn.Module, length: int, shape: Callable[..., Proposal]
) -> None:
    """Bug class 11 (prompt of one token) and 12 (sliding windows), with rejections in every position."""
    rng = random.Random(length)
    prompt = [rng.randrange(3, 64) for _ in range(length)]
    truth = tiny.plain(model, prompt, 24)
    mine = target(model)
    for rows in (6, 9):
        draft = lambda at, rows=rows: shape(rng, truth[at:], rng.randrange(rows))  # noqa: E731
        tokens, _, accepted = write(mine.session(length + 24 + rows, rows), prompt, 24, draft)
        assert tokens[:24] == truth
        assert accepted > 0


def test_tree_masks_without_laying_out_agree_up_to_rounding(model: torch.nn.Module) -> None:
    rng, prompt = random.Random(0), [5, 9, 11, 4, 8, 20]
    truth = tiny.plain(model, prompt, 24)
    mine = target(model)
    exact, _, _ = write(mine.session(60, 9), prompt, 24, lambda at: tree(rng, truth[at:], 8))
    mine.exact_trees = False
    masked, _, _ = write(mine.session(60, 9), prompt, 24, lambda at: tree(rng, truth[at:], 8))
    assert exact[:24] == masked[:24] == truth


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "llama-mha", "gemma2-softcap-mixed", "mistral-window-8"])
@pytest.mark.parametrize("rows", [6, 9, 17, 33])
def test_logits_are_bit_equal_whatever_was_drafted_around_them(name: str, dtype: torch.dtype, rows: int) -> None:
    """Bug class 16: bfloat16 included, chain and tree, at every row index."""
    prompt, n = [5, 9, 11, 4, 8, 20, 33], 3 * rows
    mine = target(random_model(MODELS[name](), dtype))
    session = mine.session(len(prompt) + 4 * rows, rows)
    truth, plain, _ = write(session, prompt, n, lambda at: Proposal(()))
    for shape in (chain, tree):
        rng = random.Random(rows)
        session = mine.session(len(prompt) + 4 * rows, rows)
        tokens, logits, accepted = write(session, prompt, n, lambda at, s=shape, r=rng: s(r, truth[at:], rows - 1))
        assert tokens[:n] == truth
        assert accepted > 0
        assert [i for i in range(n) if not torch.equal(logits[i], plain[i])] == []


def test_a_long_prompt_is_read_in_pieces_and_windows_leave_whole_blocks_unseen() -> None:
    """Slots far behind a sliding window: rows that see nothing of the first hundreds must not become NaN."""
    mine = target(model := random_model(MODELS["mistral-window-8"]()))
    prompt = [3 + i * 7 % 61 for i in range(PREFILL_ROWS + 90)]
    truth = tiny.plain(model, prompt, 8)
    assert write(mine.session(700, 6), prompt, 8, lambda at: Proposal(tuple(truth[at : at + 3])))[0][:8] == truth


def test_padding_does_not_pass_the_window_of_learned_positions() -> None:
    """Bug class 13: window 64, prompt 60, a block of 17 rows."""
    model = random_model(MODELS["gpt2-learned-positions"]())
    prompt = [3 + i % 50 for i in range(60)]
    mine = target(model)
    assert mine.window == 64
    truth = tiny.plain(model, prompt, 4)
    assert write(mine.session(64, 17), prompt, 4, lambda at: Proposal(tuple(truth[at:3])))[0] == truth
    session = mine.session(64, 17)
    session.prefill(prompt)
    assert session.score(Proposal((7,) * 16)).isfinite().all()  # even a draft that passes it


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (lambda: hf.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4), "linear_attention"),
        (lambda: hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4), ""),
        (
            lambda: hf.Lfm2Config(
                **SMALL, num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"], conv_L_cache=3
            ),
            "conv",
        ),
        (
            lambda: hf.Qwen3NextConfig(
                **SMALL,
                num_key_value_heads=2,
                head_dim=32,
                layer_types=["linear_attention", "full_attention", "linear_attention"],
                num_experts=2,
                num_experts_per_tok=1,
            ),
            "linear_attention",
        ),
    ],
    ids=["recurrent", "alibi", "hybrid-conv", "hybrid-linear"],
)
def test_models_that_slots_cannot_serve_are_refused(config: Callable[[], hf.PreTrainedConfig], why: str) -> None:
    """Bug class 12: an uncroppable cache is refused clearly, not corrupted silently."""
    with pytest.raises(SpecdemoError, match=f"cannot be a target.*{why}"):
        target(random_model(config(), torch.float32))


def test_a_model_that_answers_wrongly_through_slots_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load-time trial sees a wrong mask, for instance."""
    wrong = lambda *args, **kwargs: slot_attention(*args[:4], torch.zeros_like(args[4]), **kwargs)  # noqa: E731
    monkeypatch.setitem(hf.AttentionInterface._global_mapping, "specdemo_slots", wrong)
    with pytest.raises(SpecdemoError, match="logits through slots differ"):
        target(random_model(MODELS["llama"]()))


def two_threads_write_what_they_write_alone(mine: HFTarget) -> None:
    prompts = [[5, 9, 11], [40, 3, 22, 17, 8]]
    alone = [write(mine.session(80, 6), p, 40, lambda at: Proposal((7, 7)))[0] for p in prompts]
    together: dict[int, list[int]] = {}

    def run(i: int) -> None:
        together[i] = write(mine.session(80, 6), prompts[i], 40, lambda at: Proposal((7, 7)))[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[0], together[1]] == alone


def test_two_threads_write_what_they_write_alone() -> None:
    """Bug class 20: sessions share nothing but weights."""
    two_threads_write_what_they_write_alone(target(random_model(MODELS["llama"](), torch.float32)))


def test_sessions_say_what_does_not_fit() -> None:
    mine = target(random_model(MODELS["llama"]()))
    session = mine.session(90, 6)
    with pytest.raises(SpecdemoError, match="not read yet"):
        session.score(Proposal(()))
    with pytest.raises(SpecdemoError, match="0 tokens"):
        session.prefill([])
    with pytest.raises(SpecdemoError, match="holds 1 to"):
        session.prefill([3] * 300)
    session.prefill([3, 4])
    with pytest.raises(SpecdemoError, match="draft of 6 tokens"):
        session.score(Proposal((5,) * 6))


def test_few_shapes() -> None:
    assert [fixed_rows(n) for n in (1, 6, 9, 10, 17, 18, 129, 200)] == [9, 9, 9, 17, 17, 33, 129, 200]
    assert [slot_count(n) for n in (1, 256, 257, 1024, 1025, 1537, 2049)] == [256, 256, 512, 1024, 1536, 2048, 3072]


def test_blocks_of_trees() -> None:
    rows = block((-1, 0, -1, 2, 3), 7, torch.device("cpu"))
    assert rows.depth.tolist() == [0, 1, 2, 1, 2, 3, 0]
    assert rows.ancestor[5, :4].tolist() == [0, 3, 4, 5]
    assert rows.sees[5].nonzero().flatten().tolist() == [0, 3, 4, 5]
    assert rows.sees[6].nonzero().flatten().tolist() == [6]


# --------------------------------------------------------------------------------------------------------- properties


def test_end_tokens_may_be_one_several_or_the_tokenizers() -> None:
    model = random_model(MODELS["llama"]())
    for value, expected in ((7, {7}), ([7, 8], {7, 8}), (None, {2})):
        model.generation_config.eos_token_id = value
        assert target(model).eos == expected


def test_long_rope_ends_at_its_original_window() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, "factor": 4.0}
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = hf.LlamaConfig(
        **SMALL, **ENDS, num_key_value_heads=2, max_position_embeddings=128, rope_parameters={**rope, **factors}
    )
    assert target(random_model(config)).window == 32


def test_load_explains_itself(tmp_path: Path) -> None:
    with pytest.raises(SpecdemoError, match="could not be loaded"):
        HFTarget.load(str(tmp_path))
    with pytest.raises(SpecdemoError, match="dtype is 'int3'"):
        HFTarget.load(str(tmp_path), dtype="int3")
    assert auto_dtype("cpu") in {"float32", "bfloat16"}


def test_load_reads_a_folder(tiny_model: Path) -> None:
    mine = HFTarget.load(str(tiny_model), dtype="float32", device="cpu")
    assert mine.dtype == torch.float32
    assert mine.name == str(tiny_model)
    ids = mine.tokenizer.encode(Request(messages=(Message("user", "a"),)))
    session = mine.session(len(ids) + 8, 6)
    session.prefill(ids)
    assert session.score(Proposal(())).shape == (1, mine.vocab_size)


# ---------------------------------------------------------------------------------------------------------- tokenizer


def test_prompts_have_at_least_one_token_and_never_two_beginnings() -> None:
    tokenizer = target(random_model(MODELS["llama"]())).tokenizer
    assert tokenizer.encode(Request(prompt="")) == [1]
    assert tokenizer.encode(Request(prompt="w1 w1 w5")) == [1, 5]
    assert tokenizer.encode(Request(prompt="w5 w6")) == [5, 6]
    tokenizer.hf.bos_token = None
    assert tokenizer.encode(Request(prompt="")) == [2]


def test_conversations_go_through_the_chat_template() -> None:
    tokenizer = target(random_model(MODELS["llama"]())).tokenizer
    request = Request(messages=(Message("system", "w9"), Message("user", "w5")))
    with pytest.raises(SpecdemoError, match="no chat template"):
        tokenizer.encode(request)
    tokenizer.hf.chat_template = (
        "{% for m in messages %}w3 {{ m.content }} {% endfor %}{% if add_generation_prompt %}w4{% endif %}"
    )
    assert tokenizer.encode(request) == [3, 9, 3, 5, 4]
    tokenizer.hf.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(SpecdemoError, match="no system role"):
        tokenizer.encode(request)


def test_decoding_leaves_out_special_tokens_and_padding_of_the_vocabulary() -> None:
    """Bug class 14: logits may have more columns than there are tokens."""
    tokenizer = target(random_model(MODELS["llama"]())).tokenizer
    assert tokenizer.decode([1, 5, 6, 2]) == tokenizer.decode([5, 6]) != ""
    assert tokenizer.decode([5, 64, 6, 9999]) == tokenizer.decode([5, 6])


# ----------------------------------------------------------------------------------------------------------- compiled


def test_without_a_working_compiler_scoring_goes_on_eagerly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no g++ here")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", broken)
    model = random_model(MODELS["llama"](), torch.float32)
    mine = target(model, compile=True, compile_folder=tmp_path)
    with caplog.at_level(logging.WARNING):
        tokens = [write(mine.session(60, 6), [5, 6], 20, lambda at: Proposal(()))[0] for _ in range(2)]
        write(mine.session(60, 6), [5, 6], 20, lambda at: Proposal((3, 4), (-1, -1)))
    assert tokens[0] == tokens[1] == tiny.plain(model, [5, 6], 20)
    assert "no g++ here" in mine.compile_note
    assert len([r for r in caplog.records if r.name == compiled_module.__name__]) == 1
    assert not list(tmp_path.glob("*.pt2"))


def test_working_files_of_killed_compilations_go_away(tmp_path: Path) -> None:
    for name, age in (("part-old", 90_000), ("part-new", 60)):
        (tmp_path / name / "deep").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    with compiled_module._scratch(tmp_path):
        assert len(list(tmp_path.glob("part-*"))) == 2
    assert [path.name for path in tmp_path.glob("part-*")] == ["part-new"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> HFTarget:
    model = random_model(MODELS["gemma3-mixed"](), torch.float32)
    mine = target(model, compile=True, compile_folder=tmp_path_factory.mktemp("compiled"))
    waited = mine.warm_up(6, 90)
    if mine.compile_note:
        pytest.skip(mine.compile_note)
    assert waited > 0
    assert mine.warm_up(6, 90) < waited / 10
    return mine


def test_one_package_serves_every_shape_in_equal_bits(compiled: HFTarget) -> None:
    prompt = [5, 9, 11, 4, 8, 20, 33]
    for rows, capacity in ((6, 100), (9, 100), (17, 400)):
        truth, plain, _ = write(compiled.session(capacity, rows), prompt, 40, lambda at: Proposal(()))
        assert truth == tiny.plain(compiled.model, prompt, 40)
        for shape in (chain, tree):
            rng = random.Random(1)
            draft = lambda at, s=shape, r=rng, t=truth, n=rows: s(r, t[at:], n - 1)  # noqa: E731
            tokens, logits, accepted = write(compiled.session(capacity, rows), prompt, 40, draft)
            assert tokens[:40] == truth
            assert accepted > 0
            assert all(torch.equal(a, b) for a, b in zip(logits, plain, strict=False))


def test_two_threads_share_compiled_code(compiled: HFTarget) -> None:
    two_threads_write_what_they_write_alone(compiled)


def test_the_next_process_loads_what_was_compiled(compiled: HFTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", None)  # would fail
    again = target(
        random_model(MODELS["gemma3-mixed"](), torch.float32), compile=True, compile_folder=compiled.compiled.folder
    )
    again.warm_up(6, 90)
    assert again.compile_note == ""
    other = random_model(MODELS["gemma3-mixed"](), torch.float32)
    other.model.layers[0].mlp.up_proj.weight.data[0, 0] += 1  # other weights are never served by this package
    changed = target(other, compile=True, compile_folder=compiled.compiled.folder)
    changed.warm_up(6, 90)
    assert changed.compile_note != ""


# ----------------------------------------------------------------------------------------------------- embedded model


@pytest.mark.model
@pytest.mark.timeout(1200)  # compiling takes two minutes on two idle cores
@pytest.mark.parametrize(("dtype", "compile"), [("bfloat16", False), ("float32", False), ("bfloat16", True)])
def test_embedded_model_bit_equal(dtype: str, compile: bool) -> None:
    """The promise of this package: logits do not depend on what was drafted, to the last bit, bfloat16 included.

    Compiled trees are another package, as expensive to make; a small model's are tested above, this one's by
    tests.lossless.exhaustive.
    """
    from specdemo.models import embedded_model

    mine = HFTarget.load(str(embedded_model()), dtype=dtype, device="cpu", compile=compile)
    prompt = mine.tokenizer.encode(Request(messages=(Message("user", "Tell me about the sea."),)))
    for rows, capacity, shape in ((9, 100, chain), (9, 400, tree), (17, 100, chain)):
        if compile and shape is tree:
            continue
        truth, plain, _ = write(mine.session(capacity, rows), prompt, 40, lambda at: Proposal(()))
        if mine.compile_note:
            pytest.skip(mine.compile_note)
        rng = random.Random(rows)
        draft = lambda at, s=shape, r=rng, t=truth, n=rows: s(r, t[at:], n - 1)  # noqa: E731
        tokens, logits, _ = write(mine.session(capacity, rows), prompt, 40, draft)
        assert tokens[:40] == truth
        assert [i for i in range(40) if not torch.equal(logits[i], plain[i])] == []
