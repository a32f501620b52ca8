"""Hydra and Medusa heads: what they compute, what they draft, and that it is drafted for the right place."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel

from specdemo.drafters import hydra, medusa
from specdemo.drafters.head_configs import HydraConfig, MedusaConfig
from specdemo.drafters.hydra import DraftHeads, HeadBank, HeadDrafter, HeadRun, HydraHeads
from specdemo.drafters.law import Law
from specdemo.drafters.medusa import MedusaHeads
from specdemo.drafters.tree import dynamic_tree
from specdemo.engine import generate
from specdemo.sampling import Dice, Warp
from specdemo.types import Arm, DraftContext, Pool, Proposal, Request, Round, Sampling, SpecdemoError, Verified
from tests import tiny

H, V, HEADS, LAYERS = 32, 64, 3, 3
VOCAB = torch.tensor([40, 3, 9, 17, 5, 60, 21, 8, 33, 7])  # in no order
GREEDY = Sampling()
FAMILIES = ["hydra", "hydra-mlp", "hydra-rows", "medusa"]


def shape(prefix: bool) -> HydraConfig:
    layer = (48, 4, 2, 1e-5, 1e4) if prefix else (0, 0, 0, 0.0, 0.0)
    return HydraConfig(H, HEADS, LAYERS, prefix, *layer, V)


def network(family: str, seed: int = 0) -> DraftHeads:
    """Random heads, wild enough to hear every input. "hydra-rows" is the kind read by the target's LM head."""
    torch.manual_seed(seed)
    heads: DraftHeads
    if family == "medusa":
        heads = MedusaHeads(MedusaConfig(H, HEADS, 2, V))
    elif family == "hydra-rows":
        heads = HydraHeads(shape(True), own_lm_head=False, norm=True)
    else:
        heads = HydraHeads(shape(family == "hydra"))
    for name, p in heads.named_parameters():
        with torch.no_grad():
            p.copy_(torch.randn(p.shape) * 0.3 + (1.0 if "norm" in name else 0.0))
    return heads.double()


@pytest.fixture(scope="module")
def target():
    return tiny.target()


@cache
def bank_of(family: str, target) -> HeadBank:
    return HeadBank(target, network(family), VOCAB if family == "hydra-rows" else None)


@cache
def reference():
    model = tiny.llama()
    model.set_attn_implementation("eager")
    return model


@torch.no_grad()
def states(tokens) -> Tensor:
    """[t, hidden] the target's last hidden state at each token, by transformers alone."""
    return reference()(torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states[-1][0]


def embedded(tokens) -> Tensor:
    return reference().get_input_embeddings().weight[torch.tensor(list(tokens))].detach()


def text(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, V, n).tolist()


class Reading:
    """A text as the engine hands it out."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.at = tokens, 0
        self.features = torch.cat([torch.zeros(1, H, dtype=torch.float64), states(tokens)[:-1]])

    def rest(self, start: int) -> Verified:
        self.at = start
        return self.next(len(self.tokens) - start)

    def next(self, n: int, judged: bool = False) -> Verified:
        here = slice(self.at, self.at + n)
        self.at += n
        probs = torch.full((n, V), 1 / V, dtype=torch.float64) if judged else None
        return Verified(tuple(self.tokens[here]), probs, self.features[here])


def started(bank: HeadBank, sampling: Sampling = GREEDY, nodes: int = 0, prompt: int = 6) -> HeadDrafter:
    drafter = bank.start(nodes)(DraftContext((), Warp(sampling, prompt), 100))
    assert isinstance(drafter, HeadDrafter)
    return drafter


# --------------------------------------------------------------------------------------------------- what is computed


def published(weights: dict[str, Tensor], hidden: Tensor, tokens: list[int]) -> list[Tensor]:
    """Logits of a published head on a whole text, as its authors' code has it: a Llama model of one layer, embeddings
    rolled to the left, three residual blocks with the same weights."""
    config = LlamaConfig(
        vocab_size=V, hidden_size=H, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=1e4,
    )  # fmt: skip
    prefix = LlamaModel(config).double().eval()
    start = "prefix_embeding_layer."
    own = {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
    missing = prefix.load_state_dict(own, strict=False)
    assert missing.missing_keys == ["embed_tokens.weight"]
    assert not missing.unexpected_keys
    inputs = [prefix(inputs_embeds=hidden[None]).last_hidden_state[0]]
    logits = []
    for i in range(HEADS):
        inputs.append(embedded(tokens).roll(-(i + 1), 0))
        x, block = torch.cat(inputs, -1), f"hydra_mlp.{i}."
        for j in (1, *[3] * (LAYERS - 1)):
            linear = F.linear(x, weights[f"{block}{j}.linear.weight"], weights[f"{block}{j}.linear.bias"])
            if j == 1:
                residual = [weights[f"{block}1.res_connection.{n}"] for n in ("weight", "bias")]
                x = F.linear(x, *residual) + F.silu(linear)
            else:
                x = x + F.silu(linear)
        logits.append(F.linear(x, weights[f"hydra_lm_head.{i}.1.weight"], weights[f"hydra_lm_head.{i}.1.bias"]))
    return logits


@torch.no_grad()
def test_hydra_computes_what_the_published_network_does() -> None:
    tokens, heads = text(20), network("hydra")
    hidden = states(tokens)
    wanted = published(dict(heads.state_dict()), hidden, tokens)
    for i, read in enumerate(heads(hidden, embedded(tokens))):
        # rolled embeddings are wrong where the text ends, so the last i + 1 positions are left out
        assert torch.allclose(heads.logits(i, read), wanted[i][: 19 - i], atol=1e-4)


@torch.no_grad()
def test_texts_side_by_side_do_not_see_each_other() -> None:
    heads, texts = network("hydra"), [text(9, 1), text(12, 2)]
    joined = texts[0] + texts[1]
    hidden = torch.cat([states(t) for t in texts])
    document = torch.tensor([0] * 9 + [1] * 12)
    mask = (document[:, None] == document) & torch.ones(21, 21).tril().bool()
    both = heads(hidden[None], embedded(joined)[None], mask[None])
    alone = heads(states(texts[0]), embedded(texts[0]))
    assert [read.shape for read in both] == [(1, 20 - i, H) for i in range(HEADS)]
    assert all(torch.allclose(b[0, : 8 - i], a, atol=1e-12) for i, (a, b) in enumerate(zip(alone, both, strict=True)))
    assert len(heads(hidden[:2], embedded(joined[:2]))) == 1
    assert heads(hidden[:1], embedded(joined[:1])) == []


def test_heads_can_be_trained() -> None:
    heads = HydraHeads(shape(True), own_lm_head=False, norm=True).double()
    tokens = text(12)
    sum(read.square().sum() for read in heads(states(tokens), embedded(tokens))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in heads.parameters())
    assert all("lm_head" not in name for name in heads.state_dict())


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_step_by_step_is_the_whole_text_at_once(family: str, target) -> None:
    """Every position and every head; blocks of all sizes, with and without verdicts, drafts in between."""
    bank, tokens, sampling = bank_of(family, target), text(46), Sampling(1.0)
    full = [bank.heads.logits(i, r, bank.lm_head) for i, r in enumerate(bank.heads(states(tokens), embedded(tokens)))]
    drafter, reading, dice, rows = started(bank, sampling), Reading(tokens), Dice(0), 0
    for turn, n in enumerate((9, 1, 4, 1, 1, 7, 2, 1, 3, 5, 1, 1, 4, 2, 1)):
        at, judged = reading.at, turn % 3 != 0
        got = drafter.catch_up(reading.next(n, judged))
        assert (got is not None) == judged
        if got is not None:
            assert torch.allclose(got.probs, full[0][at - 2 : at - 2 + n].softmax(-1), atol=1e-12)
            rows += n
        proposal = drafter.propose(turn % 5, dice)
        assert len(proposal.tokens) == min(turn % 5, HEADS)
        for i in range(HEADS):
            path = torch.tensor([tokens[reading.at - 1 : reading.at + i]])
            logits = drafter.run.logits(i, drafter.ahead, path)
            assert torch.allclose(logits[0], full[i][reading.at - 2], atol=1e-12)
    assert rows > 20


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_chain_goes_on_from_its_own_drafts(family: str, target) -> None:
    bank, tokens, n = bank_of(family, target), text(20, 5), 14
    drafter, reading = started(bank), Reading(tokens)
    drafter.catch_up(reading.next(n))
    drafts = drafter.propose(HEADS, Dice(0)).tokens
    hidden = torch.cat([states(tokens[:n])[:-1], torch.zeros(HEADS + 1, H, dtype=torch.float64)])  # n - 1 are known
    for i, read in enumerate(bank.heads(hidden, embedded([*tokens[:n], *drafts]))):
        best = int(bank.heads.logits(i, read[n - 2], bank.lm_head).argmax())
        assert drafts[i] == (best if bank.vocab is None else int(bank.vocab[best]))


def test_every_draft_token_matters_to_hydra_and_none_to_medusa(target) -> None:
    for family in FAMILIES:
        bank, tokens = bank_of(family, target), text(12)
        drafter = started(bank)
        drafter.catch_up(Reading(tokens).next(12))
        path = torch.tensor([[*tokens[-1:], 11, 12]])
        for column in range(HEADS):
            other = path.clone()
            other[0, column] += 1
            differ = not torch.equal(
                drafter.run.logits(2, drafter.ahead, path), drafter.run.logits(2, drafter.ahead, other)
            )
            assert differ == (family != "medusa")


# -------------------------------------------------------------------------------------------- the drafters' contract


@pytest.mark.parametrize("family", FAMILIES)
def test_proposals_are_drawn_from_their_law(family: str, target) -> None:
    bank, dice = bank_of(family, target), Dice(0)
    drafter = started(bank, Sampling(1.5, top_k=6))
    drafter.catch_up(Reading(text(8)).next(8))
    proposals = [drafter.propose(2, dice) for _ in range(1500)]
    for position in range(2):
        count = np.bincount([p.tokens[position] for p in proposals], minlength=V) / len(proposals)
        q = torch.zeros(V, dtype=torch.float64)
        q[torch.arange(V) if bank.vocab is None else bank.vocab] = torch.stack(
            [p.probs[position] for p in proposals]
        ).mean(0)
        assert (q > 0).sum() > 2
        assert 0.5 * np.abs(count - q.numpy()).sum() < 0.06


PENALTIES = Sampling(1.0, repetition_penalty=1.5, frequency_penalty=0.7)
LAWS = {
    "greedy": Sampling(),
    "sampled": Sampling(1.0),
    "penalised": PENALTIES,
    "greedy penalised": Sampling(repetition_penalty=2.0),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("nodes", [0, 5])
def test_catch_up_tells_what_would_have_been_proposed(family: str, law: str, nodes: int, target) -> None:
    bank, dice, tokens = bank_of(family, target), Dice(0), [*text(6), 5, 9, 9, 5, 8, 9, 5, 40, 9]
    if nodes and "penalised" in law:
        pytest.skip("trees rank nodes by the bare law")
    grouped, single = (started(bank, LAWS[law], nodes) for _ in range(2))
    many, few = Reading(tokens), Reading(tokens)
    assert grouped.catch_up(many.next(6)) is None
    single.catch_up(few.next(6))
    grouped.propose(3, dice)
    first = grouped.catch_up(many.next(4, judged=True))
    grouped.propose(2, dice)
    then = grouped.catch_up(many.next(5, judged=True))
    greedy = LAWS[law].temperature == 0
    for row in [row for said in (first, then) for row in (said.children if nodes else said.tokens or said.probs)]:
        proposal = single.propose(1, dice)
        if nodes:  # a tree of depth 1 is its root's children
            assert set(proposal.tokens) == set(row.tolist())
            single.catch_up(few.next(1))
            continue
        assert (proposal.probs is None) == greedy
        assert proposal.tokens[0] == row if greedy else torch.allclose(row, proposal.probs[0], atol=1e-9)
        single.catch_up(few.next(1))


def test_penalties_find_their_columns_in_a_draft_vocabulary() -> None:
    """The law over a draft vocabulary is that over all tokens, of which the others are impossible."""
    logits = torch.randn(2, len(VOCAB), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    contexts = [[9, 9, 40, 33], [9, 9, 40, 33, 33]]
    got = Law(Warp(PENALTIES, 1), V)(logits, VOCAB, contexts)
    for row, one, context in zip(got, logits, contexts, strict=True):
        wanted = one.clone()
        for column, token in enumerate(VOCAB.tolist()):
            if token in context:
                wanted[column] = one[column] * 1.5 if one[column] < 0 else one[column] / 1.5
                wanted[column] -= 0.7 * context[1:].count(token)
        assert torch.allclose(row, wanted.softmax(-1), atol=1e-12)


@pytest.mark.parametrize("nodes", [0, 6])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_to_draft_from(family: str, nodes: int, target) -> None:
    """One token has no state before it; with two there is one."""
    drafter, reading = started(bank_of(family, target), nodes=nodes), Reading(text(9))
    drafter.catch_up(reading.next(1))
    assert drafter.propose(3, Dice(0)) == Proposal(())
    assert drafter.catch_up(reading.next(2, judged=True)).tokens == (-1, -1)
    assert drafter.propose(0, Dice(0)) == Proposal(())
    rows = drafter.catch_up(reading.next(1, judged=True))
    assert (rows.children if nodes else rows.tokens) is not None
    assert drafter.propose(3, Dice(0)).tokens


def test_arms_of_one_bank_read_the_text_once(target) -> None:
    bank = bank_of("hydra", target)
    context = DraftContext((), Warp(Sampling(), 6), 100)
    chain, tree = bank.start()(context), bank.start(6)(context)
    one, other, tokens = Reading(text(20)), Reading(text(20)), text(20)
    chain.catch_up(one.next(5))
    chain.catch_up(one.next(4, judged=True))
    tree.catch_up(other.next(9))
    alone = started(bank, nodes=6)
    alone.catch_up(Reading(tokens).next(9))
    assert tree.run is chain.run
    assert tree.propose(3, Dice(0)) == alone.propose(3, Dice(0))
    chain.catch_up(one.next(2))
    tree.catch_up(other.next(2))
    late = bank.start()(context)  # has read nothing while the others were at 11: of its 14 three are new
    late.catch_up(Reading(tokens).next(14))
    alone.catch_up(Reading(tokens[:14]).rest(9))
    assert late.propose(1, Dice(0)).tokens == alone.propose(1, Dice(0)).tokens[:1]
    assert torch.allclose(late.ahead, alone.ahead, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("nodes", [1, 4, 8])
def test_a_tree_holds_the_likeliest_paths(family: str, nodes: int, target) -> None:
    """Of all paths through the vocabulary: no beam cuts off one of the likeliest n, as long as it is n wide."""
    bank, tokens = bank_of(family, target), text(12)
    drafter = started(bank, nodes=nodes)
    drafter.catch_up(Reading(tokens).next(12))
    ids = torch.arange(V) if bank.vocab is None else bank.vocab
    paths, scores = torch.tensor([tokens[-1:]]), torch.zeros(1, dtype=torch.float64)
    ranked: list[tuple[float, tuple[int, ...]]] = []
    for level in range(HEADS):
        law = drafter.run.logits(level, drafter.ahead.expand(len(paths), -1), paths).log_softmax(-1)
        scores = (scores[:, None] + law).flatten()
        paths = torch.cat([paths.repeat_interleave(len(ids), 0), ids.repeat(len(paths))[:, None]], 1)
        ranked += [(float(scores[i]), tuple(paths[i, 1:].tolist())) for i in scores.topk(nodes).indices]
    wanted = {path for _, path in sorted(ranked, reverse=True)[:nodes]}
    proposal, kept = drafter.propose(HEADS, Dice(0)), [()]
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        kept.append((*kept[parent + 1], token))
    assert set(kept[1:]) == wanted
    assert len(kept) == 1 + nodes


def test_dynamic_tree_of_a_known_law() -> None:
    """Level 0: 0.6, 0.3, 0.1; everywhere below 0.9, 0.06, 0.04."""
    calls = []

    def expand(level: int, tokens: Tensor, parents: Tensor) -> Tensor:
        calls.append((level, tokens.tolist(), parents.tolist()))
        return torch.tensor([0.9, 0.06, 0.04]).log().expand(len(tokens), -1)

    first = torch.tensor([[0.3, 0.6, 0.1]]).log()
    tree = dynamic_tree(3, 5, first, expand, torch.tensor([10, 11, 12]))
    # 11 (.6), 11 10 (.54), 11 10 10 (.486), 10 (.3), 10 10 (.27)
    assert tree == Proposal((11, 10, 10, 10, 10), (-1, -1, 0, 1, 2))
    assert calls[0] == (0, [11, 10, 12], [0, 0, 0])
    assert calls[1:] == [(1, [10, 10], [0, 1])]  # 12 (.1) is among the likeliest five, but will have no child there


# ------------------------------------------------------------------------------------------------- through the engine


def run(pool: Pool, prompt: list[int], n: int, k: int, selector: str, sampling: Sampling = GREEDY, **options):
    request = Request(
        prompt=" ".join(f"w{t}" for t in prompt), k=k, max_new_tokens=n, selector=selector, options=options,
        ignore_eos=True, sampling=sampling,
    )  # fmt: skip
    return list(generate(request, pool))


def tokens_of(rounds: list[Round]) -> list[int]:
    return [t for r in rounds for t in r.tokens]


def pool_of(target, **banks: tuple[HeadBank, int]) -> Pool:
    arms = (Arm(name, "heads", bank.start(nodes)) for name, (bank, nodes) in banks.items())
    return Pool("heads", target, tuple(arms))


@cache
def plain(prompt: tuple[int, ...], n: int) -> list[int]:
    return tiny.plain(reference(), list(prompt), n, eos_token_id=None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("nodes", [0, 8])
def test_greedy_text_is_plain_decoding(family: str, nodes: int, target) -> None:
    bank, prompt = bank_of(family, target), (5, 9, 7, 3)
    pool = pool_of(target, heads=(bank, nodes))
    for k in range(7):
        rounds = run(pool, list(prompt), 24, k, "fixed", arm="heads")
        assert tokens_of(rounds) == plain(prompt, 24)
        assert all(len(r.draft) <= max(nodes, HEADS) for r in rounds)
        assert k == 0 or any(r.draft for r in rounds)


@pytest.mark.parametrize("selector", ["round-robin", "hedgespec", "metasd-ucb"])
def test_greedy_text_with_arms_to_choose_from(selector: str, target) -> None:
    one, other = bank_of("hydra", target), bank_of("medusa", target)
    for prompt in ((5, 9, 7, 3), (5,)):
        for k in (1, 3, 6):
            for arms in ({"a": (one, 0), "b": (other, 8)}, {"a": (one, 0), "b": (one, 8)}):
                rounds = run(pool_of(target, **arms), list(prompt), 24, k, selector)
                assert tokens_of(rounds) == plain(prompt, 24)


@pytest.mark.parametrize("selector", ["round-robin", "hedgespec", "metasd-ucb"])
def test_sampled_and_penalised_runs_go_through(selector: str, target) -> None:
    pool = pool_of(target, a=(bank_of("hydra-rows", target), 0), b=(bank_of("medusa", target), 8))
    for sampling in (Sampling(1.0), PENALTIES, Sampling(0.0, repetition_penalty=1.3)):
        assert len(tokens_of(run(pool, [5, 9, 7], 20, 3, selector, sampling))) == 20


def test_columns_are_looked_up_when_a_run_starts() -> None:
    """A drafter loaded later may ask for earlier layers, which move everybody's columns."""
    target = tiny.target()
    bank = HeadBank(target, network("hydra"))
    target.read_layers((0, 1))
    pool, prompt = pool_of(target, heads=(bank, 0)), (5, 9, 7, 3)
    alone = tiny.target()
    wanted = run(pool_of(alone, heads=(HeadBank(alone, network("hydra")), 0)), list(prompt), 24, 3, "round-robin")
    assert [r.draft for r in run(pool, list(prompt), 24, 3, "round-robin")] == [r.draft for r in wanted]


# ----------------------------------------------------------------------------------------- heads that must be right

PROMPTS = [(5, 9, 7), (30, 31), (33, 50, 44, 8), (6,)]  # words that begin like "w0" to "w2" are taken for these
LONG = 40


@cache
def trained(family: str, target) -> HeadBank:
    """Heads overfitted to the target's greedy texts, from random weights. Labels count positions of the text itself."""
    bank = HeadBank(target, network(family))
    texts = torch.tensor([[*p, *plain(p, LONG)][: LONG + 1] for p in PROMPTS])
    hidden, embeddings = torch.stack([states(t.tolist()) for t in texts]), embedded(texts.tolist())
    heads = network(family)
    optimizer = torch.optim.Adam(heads.parameters(), 3e-3)
    for _ in range(400):
        reads = heads(hidden, embeddings)
        logits = [heads.logits(i, r[:, :-1], bank.lm_head) for i, r in enumerate(reads)]  # the last has no label
        labels = [texts[:, i + 2 :] for i in range(HEADS)]
        right = [(x.argmax(-1) == y).double().mean() for x, y in zip(logits, labels, strict=True)]
        if min(right) > 0.97:
            break
        loss = sum(F.cross_entropy(x.flatten(0, 1), y.flatten()) for x, y in zip(logits, labels, strict=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert min(right) > 0.9, right
    return HeadBank(target, heads)


def accepted(bank: HeadBank, target, nodes: int = 0) -> float:
    """Mean number of drafts kept per round, of at most HEADS."""
    rounds = []
    for prompt in PROMPTS:
        got = run(pool_of(target, heads=(bank, nodes)), list(prompt), LONG - len(prompt), HEADS, "fixed", arm="heads")
        assert tokens_of(got) == plain(prompt, LONG - len(prompt))
        rounds += [r for r in got if r.k == HEADS and r.draft]
    return float(np.mean([r.accepted for r in rounds]))


@pytest.mark.parametrize("family", ["hydra", "hydra-rows", "medusa"])
def test_heads_that_know_the_text_are_accepted(family: str, target) -> None:
    assert accepted(trained(family, target), target) > 0.85 * HEADS
    assert accepted(trained(family, target), target, nodes=8) > 0.85 * HEADS
    assert accepted(HeadBank(target, network(family)), target) < 0.5


@pytest.mark.parametrize("defect", ["state", "text", "head"])
def test_an_off_by_one_is_not_accepted(defect: str, target, monkeypatch) -> None:
    """The same heads with their inputs one position off: the test above would fail."""
    bank = trained("hydra", target)
    if defect == "state":
        late = HeadRun.states
        monkeypatch.setattr(HeadRun, "states", lambda self, n: late(self, min(n + 1, self.length))[:n])
    elif defect == "text":
        right = HeadDrafter._tokens
        monkeypatch.setattr(HeadDrafter, "_tokens", lambda self, ids: right(self, self.text[-2:-1] or ids))
    else:
        logits = HeadRun.logits
        monkeypatch.setattr(HeadRun, "logits", lambda self, i, s, path: logits(self, 1, s, path[:, [0] * 2]))
    assert accepted(bank, target) < 0.6


# --------------------------------------------------------------------------------------------------------- from files


def write(folder, config: dict[str, object], weights: dict[str, Tensor], name: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(weights, folder / name)
    return str(folder)


def hydra_file(folder, heads: HydraHeads) -> str:
    """A published file: tied blocks under all their names, two copies of the embedding."""
    weights = dict(heads.state_dict())
    weights |= {n.replace(".3.", f".{j}."): w for n, w in weights.items() for j in (3, 5) if ".3." in n and "mlp" in n}
    weights |= {n: embedded(range(V)) for n in ("input_embed_fn.weight", "prefix_embeding_layer.embed_tokens.weight")}
    config = {"hydra_head_arch": "prefix-mlp", "grounded_heads": True, "hydra_num_heads": HEADS}
    return write(folder, {**config, "hydra_num_layers": LAYERS, "hidden_state_offset": 0}, weights, "hydra_lm_head.pt")


@pytest.mark.parametrize("nodes", [0, 8])
def test_published_files_draft_as_the_networks_in_them(nodes: int, tmp_path, target) -> None:
    heads = network("hydra")
    assert isinstance(heads, HydraHeads)
    weights = dict(network("medusa").state_dict())
    config = {"medusa_num_heads": 2, "medusa_num_layers": 2}
    paths = [hydra_file(tmp_path / "hydra", heads), write(tmp_path / "medusa", config, weights, "medusa_lm_head.pt")]
    for family, module, path in zip(("hydra", "medusa"), (hydra, medusa), paths, strict=True):
        arm = Arm("heads", family, module.load(target, model=path, nodes=nodes))
        got = run(Pool("p", target, (arm,)), [5, 9, 7], 20, 3, "round-robin")
        same = run(pool_of(target, heads=(bank_of(family, target), nodes)), [5, 9, 7], 20, 3, "round-robin")
        assert [r.draft for r in got] == [r.draft for r in same]


def test_what_cannot_be_loaded_is_explained(tmp_path, target) -> None:
    for module in (hydra, medusa):
        with pytest.raises(SpecdemoError, match="only for targets loaded through transformers"):
            module.load(object(), model="x")
        with pytest.raises(SpecdemoError, match="is not a folder"):
            module.load(target, model=str(tmp_path / "nowhere"))
    with pytest.raises(SpecdemoError, match="nodes is -1"):
        bank_of("medusa", target).start(-1)
