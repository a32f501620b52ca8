"""EAGLE heads and banks: what they compute, what they draft, and that it is drafted for the right place."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from specdemo import engine
from specdemo.drafters import DRAFTERS, eagle
from specdemo.drafters.bank import Bank, BankRun, Member
from specdemo.drafters.bank_files import read_head, read_member
from specdemo.drafters.eagle import Eagle
from specdemo.drafters.eagle_head import Delta, EagleHead
from specdemo.engine import generate
from specdemo.evaluation.replay import Answer, features, replay
from specdemo.feedback import likelihood_ratio, overlap
from specdemo.sampling import Dice, Warp
from specdemo.training.unroll import Rows, unroll
from specdemo.types import Arm, DraftContext, Pool, Proposal, Request, Sampling, SpecdemoError, Verified
from tests import heads, tiny
from tests.fakes import EveryOutcome, sequences, tokens_of

VARIANTS = {
    "eagle-3": {},
    "normed": {"norm_before_residual": True, "norm_output": True, "fc_norm": True},
    "qwen": {"qk_norm": True, "input_norm": True, "attention_bias": True},
    "eagle-1": {"version": 1, "fc_bias": True},
}


@pytest.fixture(scope="module")
def target():
    model = tiny.target()
    model.read_layers((0, 1, 2))
    return model


def bank_of(target, grow: bool = False, **switches) -> Bank:
    """Two members over a wild head: "a" as it is, over everything; "b" a delta over a part of the vocabulary."""
    head = heads.wild(EagleHead(heads.config(**switches))).double().requires_grad_(False)
    rows, columns = target.lm_head, lambda: target.layer_columns(head.config.layers)
    bank = Bank(head, target.embedding, columns, rows if grow else None)
    bank.join(Member("a", None, None if not grow else torch.arange(0, 64, 2), rows if not grow else rows[::2]))
    delta = heads.wild(Delta(head.config, 4), seed=1).double().requires_grad_(False)
    bank.join(Member("b", delta, heads.VOCAB, rows[heads.VOCAB]))
    return bank


def arm(name: str, bank: Bank, member: int, nodes: int = 0) -> Arm:
    return Arm(name, "eagle", lambda context: Eagle(bank, member, nodes, context), nodes=nodes)


def run(target, arms, prompt=(5, 9, 7, 3), n=24, k=4, selector="fixed", sampling=Sampling(), **options):  # noqa: B008
    request = Request(
        prompt=" ".join(f"w{t}" for t in prompt), k=k, max_new_tokens=n, selector=selector, options=options,
        ignore_eos=True, sampling=sampling,
    )  # fmt: skip
    return list(generate(request, Pool("eagle", target, tuple(arms))))


@cache
def plain(prompt: tuple[int, ...], n: int) -> list[int]:
    return tiny.plain(tiny.llama(), list(prompt), n, eos_token_id=None)


# --------------------------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("member", [0, 1])
def test_training_form_is_what_is_drafted(switches, member: int, target) -> None:
    """Every position, every step: the whole-text form that heads are trained in equals the drafter's own steps."""
    bank = bank_of(target, **switches)
    text = torch.randint(3, 64, (12,), generator=torch.Generator().manual_seed(0)).tolist()
    read, tokens = heads.states(target, text), torch.tensor([text])
    at_token = torch.cat([read[1:], torch.zeros_like(read[:1])])[None]  # features of token i, not of the one before
    columns = target.layer_columns(bank.head.config.layers)
    rows = Rows(tokens, torch.zeros_like(tokens), at_token[..., columns], *[tokens] * 3)
    steps = list(unroll(bank.head, bank.members[member].delta, rows, target.embedding, 4))
    for n in range(2, 9):
        drafter = Eagle(bank, member, 0, DraftContext((), Warp(Sampling(), 0), 40))
        drafter.catch_up(heads.verified(text, read, 0, n))
        outputs = drafter.run.last(member)
        for step, wanted in enumerate(steps):
            if n - 2 >= wanted.shape[1]:
                break
            got = bank.head.readout(outputs[None], bank.members[member].delta)[0, 0]
            assert torch.allclose(got, wanted[0, n - 2], atol=1e-9), (n, step)
            if n + step < len(text):
                state = drafter.run.state(member, outputs)
                outputs = drafter.run.extend(member, tokens[0, n + step][None], state, step, step)


def mixed_bank(target, grow: bool) -> Bank:
    """Four members: vocabularies of different sizes that overlap, in no order; two deltas, of different rank."""
    head = heads.wild(EagleHead(heads.config(mixed_residual=True))).double().requires_grad_(False)
    bank = Bank(head, target.embedding, lambda: target.layer_columns((0, 1, 2)), target.lm_head if grow else None)
    vocabularies = (torch.arange(4, 50, 3), heads.VOCAB, torch.arange(20, 40), torch.tensor([61, 8, 5, 11]))
    for i, (rank, vocab) in enumerate(zip((0, 4, 2, 0), vocabularies, strict=True)):
        delta = heads.wild(Delta(head.config, rank), seed=i).double().requires_grad_(False) if rank else None
        bank.join(Member(str(i), delta, vocab, target.lm_head[vocab]))
    return bank


def text_that_repeats(n: int) -> list[int]:
    """Tokens of everybody's, of some and of nobody's vocabulary, many of them again and again."""
    return torch.randint(3, 64, (n,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize("grow", [False, True])
def test_logits_of_everybody_are_each_members_own(grow: bool, target) -> None:
    """At every position those of a member that stands there, over what it may draft there, and nothing else: asked
    at once, late and again, all members with their vocabularies and what the text has brought up to there."""
    bank, text = mixed_bank(target, grow), text_that_repeats(40)
    read, late = heads.states(target, text), bank.start(60, 10)
    late.read(0, heads.verified(text, read, 0, 40))
    for start, end in ((2, 9), (9, 10), (10, 26), (26, 40)):
        run = bank.start(60, 10)
        run.read(0, heads.verified(text, read, 0, start))
        run.read(start, heads.verified(text, read, start, end))
        together = run.judge(start)
        assert together.shape[:2] == (4, end - start + 1)
        assert torch.equal(run.judge(end)[:, 0], together[:, -1])
        afterwards = late.judge(start)
        for i, position in enumerate(range(start, end + 1)):
            alone = bank.start(60, 10)
            alone.read(0, heads.verified(text, read, 0, position))
            for member in range(4):
                wanted = torch.full((64,), float("-inf"), dtype=torch.float64)
                wanted[alone.columns.own(member).ids] = alone.logits(member, alone.last(member))[0]
                allowed = {*bank.members[member].vocab.tolist(), *(text[:position] if grow else ())}
                assert allowed == set(torch.isfinite(wanted).nonzero()[:, 0].tolist())
                for logits, columns in ((together, run.columns), (afterwards, late.columns)):
                    got = torch.full_like(wanted, float("-inf"))
                    got[columns.ids] = logits[member, i]
                    assert torch.allclose(got, wanted, atol=1e-9), (position, member)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=7), Sampling(0.9, repetition_penalty=1.3)])
@pytest.mark.parametrize("nodes", [0, 5])
def test_members_asked_together_answer_as_each_alone(nodes: int, sampling: Sampling, target) -> None:
    """What they would have proposed, whoever is asked, in whatever order: rows of one drafter at each position, at
    once, against those of a group, late."""
    bank, text, order = mixed_bank(target, grow=True), text_that_repeats(24), [2, 0, 3, 1]
    read, law = heads.states(target, text), torch.rand(24, 64, dtype=torch.float64).softmax(-1)
    for members in ([0, 1, 2, 3], order, [1]):
        context = DraftContext((), Warp(sampling, 3), 40)
        group = [Eagle(bank, member, nodes, context) for member in members]
        for start, end in ((0, 1), (1, 5), (5, 24)):
            for drafter in group:
                drafter.catch_up(heads.verified(text, read, start, end))
        rows = group[0].proposed(group, 1)
        late = heads.verified(text, read, 1, 24, law[1:])
        a, r = overlap(late, rows), likelihood_ratio(late, rows)
        assert a.shape == r.shape == (len(members), 23)
        for i, member in enumerate(members):
            context = DraftContext((), Warp(sampling, 3), 40)
            single = Eagle(bank, member, nodes, context)
            single.catch_up(heads.verified(text, read, 0, 1))
            if members == order:  # another one has read more
                Eagle(bank, 0, nodes, context).catch_up(heads.verified(text, read, 0, 24))
            for n in range(1, 24):
                now = heads.verified(text, read, n, n + 1, law[n : n + 1])
                own = single.catch_up(now)
                assert a[i, n - 1] == pytest.approx(overlap(now, own)[0], abs=1e-9), (member, n)
                assert r[i, n - 1] == pytest.approx(likelihood_ratio(now, own)[0], abs=1e-9), (member, n)
        assert (a[:, 0] == 0).all()
        assert (a[:, 1:] > 0).all()


def test_switching_reads_nothing_again(target, monkeypatch) -> None:
    """Members share keys and values: what one has read, the other finds."""
    read = []
    monkeypatch.setattr(EagleHead, "fuse", lambda self, x, fuse=EagleHead.fuse: read.append(len(x)) or fuse(self, x))
    bank = bank_of(target)
    rounds = run(target, [arm("a", bank, 0), arm("b", bank, 1)], selector="round-robin")
    assert 20 < sum(read) < 4 + sum(len(r.tokens) for r in rounds)


# ---------------------------------------------------------------------------------------------------- what is drafted


@pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("nodes", [0, 8])
def test_greedy_text_is_plain_decoding(switches, nodes: int, target) -> None:
    bank = bank_of(target, **switches)
    for k in range(7):
        rounds = run(target, [arm("b", bank, 1, nodes)], k=k, arm="b")
        assert tokens_of(rounds) == plain((5, 9, 7, 3), 24)
        assert k == 0 or all(r.draft for r in rounds[:-1])
        assert all(len(r.draft) <= max(k, nodes) for r in rounds)


@pytest.mark.parametrize("selector", ["round-robin", "hedgespec", "metasd-ucb", "random"])
def test_greedy_text_with_arms_to_choose_from(selector: str, target) -> None:
    for grow in (False, True):
        bank = bank_of(target, grow)
        for prompt in ((5, 9, 7, 3), (5,)):
            arms = [arm("a", bank, 0), arm("b", bank, 1), arm("tree", bank, 1, 8)]
            assert tokens_of(run(target, arms, prompt, selector=selector)) == plain(prompt, 24)


@pytest.mark.parametrize("family", ["eagle", "eagle-tree", "hydra", "medusa"])
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.9, top_p=0.8, repetition_penalty=1.3)])
def test_output_law_is_the_targets(family: str, sampling: Sampling, tmp_path) -> None:
    """The whole engine with real heads over a real (tiny) model of four tokens, every outcome enumerated."""
    model = tiny.target(tiny.llama(vocab=4), size=4)
    if family.startswith("eagle"):
        model.read_layers((0, 1, 2))
        head = heads.wild(EagleHead(replace(heads.config(), vocab_size=4))).double().requires_grad_(False)
        bank = Bank(head, model.embedding, lambda: model.layer_columns((0, 1, 2)), None)
        vocab = torch.tensor([3, 0, 1])
        bank.join(Member("x", None, vocab, model.lm_head[vocab]))
        arms = [arm("x", bank, 0, 3 if family == "eagle-tree" else 0)]
    else:
        from specdemo.drafters.head_configs import HydraConfig, MedusaConfig
        from specdemo.drafters.hydra import HeadBank, HydraHeads
        from specdemo.drafters.medusa import MedusaHeads

        layer = (0, 0, 0, 0.0, 0.0)
        network = (
            MedusaHeads(MedusaConfig(32, 2, 1, 4))
            if family == "medusa"
            else HydraHeads(HydraConfig(32, 2, 2, False, *layer, 4), own_lm_head=False, norm=True)
        )
        vocab = None if family == "medusa" else torch.tensor([3, 0, 1])
        arms = [Arm("x", family, HeadBank(model, heads.wild(network).double(), vocab).start(0))]
    request = Request(prompt="w1 w3 w1", selector="fixed", k=2, max_new_tokens=2, ignore_eos=True, sampling=sampling)
    dice, law = EveryOutcome(), defaultdict(float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Dice", lambda seed: dice)
        for _ in dice.runs():
            law[tuple(tokens_of(list(generate(request, Pool("x", model, tuple(arms))))))] += dice.weight
    warp, reference = Warp(sampling, 3), tiny.llama(vocab=4)

    @torch.no_grad()
    def wanted(context):
        return warp(reference(torch.tensor([list(context)])).logits[0, -1:], [list(context)])[0]

    for tokens, p in sequences(wanted, model.tokenizer.encode(request), 2).items():
        assert law.get(tokens, 0.0) == pytest.approx(p, abs=1e-9), tokens


def test_growing_vocabulary_drafts_what_the_text_brought(target) -> None:
    """A token of the prompt that the head's vocabulary lacks can be drafted; it is never there twice."""
    bank, prompt = bank_of(target, grow=True), [5, 9, 50, 51, 3]
    drafter = Eagle(bank, 1, 0, DraftContext((), Warp(Sampling(1.0), 5), 40))
    drafter.catch_up(heads.verified(prompt, heads.states(target, prompt), 0, 5))
    proposal = drafter.propose(3, Dice(0))
    assert sorted(proposal.vocab.tolist()) == sorted({*heads.VOCAB.tolist(), 50, 51})
    assert proposal.probs.shape[1] == len(proposal.vocab)
    assert torch.allclose(proposal.probs.sum(-1), torch.ones(3, dtype=torch.float64))


def test_a_tree_keeps_the_likeliest_paths(target) -> None:
    """Against brute force over all paths of two tokens."""
    bank, prompt = bank_of(target), [5, 9, 7, 3]
    read = heads.states(target, prompt)
    drafter = Eagle(bank, 1, 6, DraftContext((), Warp(Sampling(), 4), 40))
    drafter.catch_up(heads.verified(prompt, read, 0, 4))
    run, first = drafter.run, drafter.run.last(1)
    scores = {}
    law = run.logits(1, first).log_softmax(-1)[0]
    for i, token in enumerate(heads.VOCAB.tolist()):
        scores[token,] = float(law[i])
        after = run.extend(1, torch.tensor([token]), run.state(1, first), 0, 0)
        for j, p in enumerate(run.logits(1, after).log_softmax(-1)[0].tolist()):
            scores[token, heads.VOCAB[j].item()] = scores[token,] + p
    proposal, paths = drafter.propose(2, Dice(0)), [()]
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        paths.append((*paths[parent + 1], token))
    assert set(paths[1:]) == set(sorted(scores, key=scores.get)[-6:])


# -------------------------------------------------------------------------------------------- heads that must be right


@cache
def trained(version: int) -> tuple[Bank, object]:
    """A head overfitted to the target's own text, through the training form."""
    model = tiny.target()
    model.read_layers((0, 1, 2))
    texts = torch.tensor([[*p, *plain(p, 40)][:41] for p in ((5, 9, 7), (30, 31), (33, 50, 44, 8), (6,))])
    read = torch.stack([heads.states(model, [*t.tolist(), 0])[1:] for t in texts])
    torch.manual_seed(0)
    head = heads.wild(EagleHead(heads.config(version))).double()
    columns = model.layer_columns(head.config.layers)
    rows = Rows(texts, torch.arange(4)[:, None].expand_as(texts), read[..., columns], *[texts] * 3)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)
    if version == 1:  # its output is not normed before it is read
        with torch.no_grad():
            for p in head.parameters():
                p.mul_(0.4 if p.ndim == 2 else 1)
    for _ in range(500):
        states = list(unroll(head, None, rows, model.embedding, 3))
        logits = [(s @ model.lm_head.T)[:, : 41 - 2 - i] for i, s in enumerate(states)]
        labels = [texts[:, i + 2 :] for i in range(3)]
        right = [float((x.argmax(-1) == y).double().mean()) for x, y in zip(logits, labels, strict=True)]
        if min(right) > 0.97:
            break
        loss = sum(F.cross_entropy(x.flatten(0, 1), y.flatten()) for x, y in zip(logits, labels, strict=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert min(right) > 0.9, right
    bank = Bank(head.requires_grad_(False), model.embedding, lambda: columns, None)
    bank.join(Member("x", None, None, model.lm_head))
    return bank, model


def accepted(bank: Bank, model, nodes: int = 0) -> float:
    """Mean number of drafts kept per round, of at most 3."""
    rounds = []
    for prompt in ((5, 9, 7), (30, 31), (33, 50, 44, 8)):
        got = run(model, [arm("x", bank, 0, nodes)], prompt, 40 - len(prompt), 3)
        assert tokens_of(got) == plain(prompt, 40 - len(prompt))
        rounds += [r for r in got if r.k == 3]
    return sum(r.accepted for r in rounds) / len(rounds)


@pytest.mark.parametrize("version", [1, 3])
def test_heads_that_know_the_text_are_accepted(version: int, target) -> None:
    bank, model = trained(version)
    assert accepted(bank, model) > 2.5
    assert accepted(bank, model, nodes=6) > 2.5
    assert accepted(bank_of(target), target) < 0.5


@pytest.mark.parametrize("defect", ["features", "position", "feedback"])
def test_an_off_by_one_is_not_accepted(defect: str, monkeypatch) -> None:
    """The same head with its inputs one position off: the test above would fail."""
    bank, model = trained(3)
    if defect == "features":
        right = BankRun.read
        monkeypatch.setattr(
            BankRun, "read", lambda self, n, v: right(self, n, replace(v, features=v.features.roll(1, 0)))
        )
    elif defect == "position":
        right = BankRun.last
        monkeypatch.setattr(
            BankRun, "last", lambda self, m: self._run(slice(max(0, self.length - 2), self.length), None)[0, :1]
        )
    else:
        monkeypatch.setattr(BankRun, "state", lambda self, m, outputs: torch.zeros_like(outputs))
    assert accepted(bank, model) < 1.6


# --------------------------------------------------------------------------------------------------------- from files


def test_banks_are_loaded_once_and_shared(tmp_path) -> None:
    model, folder = tiny.target(), str(heads.bank(tmp_path / "bank"))
    starts = [DRAFTERS["eagle"].load(model, model=folder, member=name) for name in ("all", "some")]
    context = DraftContext((), Warp(Sampling(), 0), 40)
    one, two = (start(context) for start in starts)
    assert one.run is two.run
    assert model.layers == (0, 1, 2)
    with pytest.raises(SpecdemoError, match="no head 'sql'; it has: all, some"):
        eagle.load(model, model=folder, member="sql")


def test_what_is_written_is_read(tmp_path) -> None:
    folder, model = heads.bank(tmp_path / "bank"), tiny.target()
    head = read_head(folder, model.tokenizer.hf)
    wanted = heads.wild(EagleHead(heads.config()))
    for name, tensor in head.state_dict().items():
        exact = wanted.state_dict()[name]
        # Matrices are int8 with a scale per row: half a step of the row's largest weight / 127.
        step = exact.abs().amax(-1, keepdim=True) / 127 if tensor.ndim == 2 else exact.abs() / 128
        assert ((tensor - exact).abs() <= 0.5001 * step + 1e-9).all(), name
    member = read_member(folder, "some", head, model.lm_head)
    assert torch.equal(member.vocab, heads.VOCAB)
    assert torch.equal(member.lm_head, model.lm_head[heads.VOCAB])
    assert member.delta.rank == 4


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("head.safetensors", lambda t: t.pop("fc.weight"), "missing: fc.weight"),
        ("head.safetensors", lambda t: t.update({"fc.weight": torch.zeros(3, 3)}), r"fc.weight \[3, 3\] instead of"),
        ("head.safetensors", lambda t: t["fc.weight.scale"].fill_(float("nan")), "fc.weight"),
        ("head.safetensors", lambda t: t.pop("fc.weight.scale"), "missing: fc.weight.scale"),
        ("some.safetensors", lambda t: t.pop("vocab"), "vocab"),
        ("some.safetensors", lambda t: t["vocab"].fill_(3), "different token ids"),
        ("some.safetensors", lambda t: t["vocab"].add_(64), "different token ids below 64"),
        ("some.safetensors", lambda t: t.pop("up_proj_a"), "missing: up_proj_a"),
    ],
)
def test_a_corrupt_bank_is_refused_by_name(tmp_path, file: str, change, message: str) -> None:
    folder = heads.bank(tmp_path / "bank")
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file)
    with pytest.raises(SpecdemoError, match=message):
        eagle.load(tiny.target(), model=str(folder), member="some")


def test_a_bank_of_another_target_is_refused(tmp_path) -> None:
    folder = heads.bank(tmp_path / "bank", tiny.tokenizer(swap=(5, 6)))
    with pytest.raises(SpecdemoError, match="another vocabulary"):
        eagle.load(tiny.target(), model=str(folder), member="some")
    wider = tiny.llama(hidden_size=64)
    with pytest.raises(SpecdemoError, match="hidden states of 32 numbers; tiny has 64"):
        eagle.load(tiny.target(wider), model=str(heads.bank(tmp_path / "same")), member="some")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format": "other"}))
    with pytest.raises(SpecdemoError, match="format"):
        eagle.load(tiny.target(), model=str(folder), member="some")


@pytest.mark.parametrize("layout", ["eagle-3", "eagle-1"])
def test_a_published_head_drafts_through_the_engine(tmp_path, layout: str) -> None:
    """A random checkpoint in the published layout; its drafts are those of its network."""
    version = 3 if layout == "eagle-3" else 1
    switches = {"draft_vocab_size": 12} if version == 3 else {"fc_bias": True}
    head = heads.wild(EagleHead(heads.config(version, **switches)))
    place = "midlayer." if version == 3 else "layers.0."
    kinds = {"q_proj": "self_attn.", "k_proj": "self_attn.", "v_proj": "self_attn.", "o_proj": "self_attn."}
    kinds |= {"gate_proj": "mlp.", "up_proj": "mlp.", "down_proj": "mlp."}
    tensors: dict[str, Tensor] = {}
    for name, tensor in head.state_dict().items():
        first = name.split(".")[0]
        inside = first in kinds or "layernorm" in first or first == "hidden_norm"
        tensors[(place + kinds.get(first, "") if inside else "") + name] = tensor.clone()
    vocab = heads.VOCAB.sort().values
    if version == 3:
        tensors["d2t"] = vocab - torch.arange(12)
        tensors["t2d"] = torch.isin(torch.arange(64), vocab)
    else:
        tensors["embed_tokens.weight"] = tiny.llama().get_input_embeddings().weight.detach().clone()
    settings = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 64,
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    if version == 3:
        settings |= {"draft_vocab_size": 12, "eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
    else:
        settings |= {"bias": True}
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    torch.save(tensors, folder / "pytorch_model.bin")
    model = tiny.target()
    start = DRAFTERS["eagle"].load(model, model=str(folder))
    rounds = run(model, [Arm("x", "eagle", start)])
    assert tokens_of(rounds) == plain((5, 9, 7, 3), 24)
    drafted = {t for r in rounds for t in r.draft}
    assert drafted
    assert version == 1 or drafted <= set(vocab.tolist())


def test_a_replay_is_the_engines_run(target) -> None:
    for nodes in (0, 8):
        drafter = arm("b", bank_of(target), 1, nodes)
        trained_bank, model = trained(3)
        for chosen, of in ((drafter, target), (arm("x", trained_bank, 0, nodes), model)):
            rounds = run(of, [chosen], k=3)
            answer = Answer("1", "d", (5, 9, 7, 3), tuple(tokens_of(rounds)))
            got = replay(chosen, of, answer, features(of, answer), 3)
            assert got.accepted == tuple(r.accepted for r in rounds)
            assert got.drafted == tuple(len(r.draft) for r in rounds)
            assert got.tokens == 24


def test_nothing_is_drafted_from_nothing(target) -> None:
    drafter = Eagle(bank_of(target), 0, 0, DraftContext((), Warp(Sampling(), 0), 40))
    assert drafter.propose(4, Dice(0)) == Proposal(())
    read = heads.states(target, [5, 9])
    drafter.catch_up(heads.verified([5, 9], read, 0, 1))
    assert drafter.propose(4, Dice(0)) == Proposal(())
    rows = drafter.catch_up(Verified((9,), torch.full((1, 64), 1 / 64), read[1:]))
    assert rows.tokens == (-1,)
    assert len(drafter.propose(4, Dice(0)).tokens) == 4
