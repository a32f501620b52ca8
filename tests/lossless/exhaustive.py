"""Greedy exactness in full: ``python -m tests.lossless.exhaustive --dtype float32 --tokens 32 --out exact.jsonl``.

Every drafter x K x 20 prompts. float32 is compared with ``transformers.generate``; bfloat16 with the engine's own plain
decoding through the same rows, and the first difference to one-row decoding is listed with its margin. One line of JSON
per case; cases already in the file are skipped, so a killed run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from specdemo.target import fixed_rows
from specdemo.types import Proposal
from tests.lossless import cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--k", type=int, nargs="*", help="draft lengths (float32: 0 to 8, bfloat16: 0 to 5)")
    parser.add_argument("--drafters", nargs="*", help="only these of the cases' drafters")
    parser.add_argument("--compile", action="store_true", help="score through compiled code")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    cases.COMPILE[0] = args.compile
    mode = args.dtype + (" compiled" if args.compile else "")
    done = (
        {tuple(json.loads(line)["case"]) for line in args.out.read_text().splitlines()} if args.out.exists() else set()
    )
    drafters = args.drafters or [*cases.DRAFTER_OPTIONS, *cases.TREES]
    lengths = args.k or range(9 if args.dtype == "float32" else 6)
    with args.out.open("a") as out:
        for k in lengths:  # every prompt at one draft length, then the next: a run cut short has seen all prompts
            for number, prompt in enumerate(cases.prompts()):
                for drafter in drafters if k else ("none",):
                    case = (mode, args.tokens, number, k, drafter)
                    if case not in done:
                        result = check(args.dtype, args.tokens, prompt, k, drafter)
                        print(json.dumps({"case": case, **result}), file=out, flush=True)
        for number, prompt in enumerate(cases.prompts() if args.dtype == "bfloat16" else ()):
            case = (mode, args.tokens, number, "one row", "none")
            if case not in done:
                print(json.dumps({"case": case, **one_row(args.tokens, prompt)}), file=out, flush=True)
    report(args.out)


def check(dtype: str, n: int, prompt: str, k: int, drafter: str) -> dict[str, object]:
    if dtype == "float32":
        wanted = cases.transformers_tokens(dtype, prompt, n)
    else:  # draft lengths up to 8 share one shape
        wanted = cases.plain_tokens(dtype, prompt, n, max(k, 8), drafter in cases.TREES)
    asked = cases.request(prompt, k, n) if drafter == "none" else cases.request(prompt, k, n, "fixed", arm=drafter)
    got = tuple(cases.run(dtype, cases.with_memory(asked, wanted)))
    return {"identical": got == wanted, "tokens": len(got)}


def one_row(n: int, prompt: str) -> dict[str, object]:
    """First difference between decoding through padded rows and through one, and the top-2 margins of both there."""
    target, padded = cases.target("bfloat16"), cases.plain_tokens("bfloat16", prompt, n, 8)
    padded_rows = fixed_rows(1)
    margins = {}
    ids = target.tokenizer.encode(cases.request(prompt, 0, n))
    sessions = {rows: target.session(len(ids) + n, rows) for rows in (1, padded_rows)}
    for session in sessions.values():
        session.prefill(ids)
    for i, token in enumerate(padded):
        logits = {rows: session.score(Proposal(()))[0] for rows, session in sessions.items()}
        if int(logits[1].argmax()) != token:
            for rows, row in logits.items():
                top = torch.topk(row, 2).values
                margins[f"margin_{rows}_rows"] = float(top[0] - top[1])
            return {"first_difference": i, **margins}
        for session in sessions.values():
            session.commit((), token)
    return {"first_difference": None, "tokens": len(padded)}


def report(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    exact = [r for r in rows if "identical" in r]
    wrong = [r["case"] for r in exact if not r["identical"]]
    print(f"{len(exact)} cases, {sum(r['tokens'] for r in exact)} tokens, {len(wrong)} not identical {wrong}")
    for r in rows:
        if r.get("first_difference") is not None:
            print("one row differs:", r)


if __name__ == "__main__":
    main()
