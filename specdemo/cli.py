"""The command line: arguments, exit codes, messages. What the commands do is in commands.py and doctor.py.

torch, transformers and gradio are imported by the commands that need them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from specdemo import __version__
from specdemo.types import Message, Request, Sampling, SpecdemoError

OK, FAILED, USAGE, DIFFERENT, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 130, 141
DOMAINS = ("code", "maths", "sql", "translation", "summarisation", "rag", "science", "chat", "questions")
EPILOG = """\
exit codes: 0 done, 1 failed (one line on standard error says why), 2 wrong usage, 3 --check found a difference,
130 interrupted with ctrl-c, 141 the reader of the output went away
environment: SPECDEMO_HOME (folder for model and runs), SPECDEMO_MODEL (folder of the embedded pool's model),
HF_HUB_OFFLINE=1 (do not ask the Hub), SPECDEMO_DEBUG=1 (tracebacks)"""


class UsageError(SpecdemoError):
    """Arguments that cannot be meant."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code (argparse exits by itself for ``--help`` and wrong usage)."""
    args = parser().parse_args(argv)
    debug = args.debug or os.environ.get("SPECDEMO_DEBUG", "") not in ("", "0")
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _complain(error, USAGE, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("specdemo: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _complain(error, FAILED, debug)


def _run(args: argparse.Namespace) -> int:
    from specdemo import commands

    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character is no reason to stop
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    _show_log()
    command: Any = getattr(commands, "list_entries" if args.command == "list" else args.command)
    return int(command(args))


def _show_log() -> None:
    """What takes long, such as compilation, says so on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("specdemo: %(message)s"))
    log = logging.getLogger("specdemo")
    log.handlers = [handler]  # in the place of an earlier call's
    log.setLevel(logging.INFO)


def _complain(error: Exception, code: int, debug: bool) -> int:
    if debug:
        raise error
    known = isinstance(error, SpecdemoError)
    text = str(error) if known else f"{type(error).__name__}: {error} (--debug shows where)"
    print("specdemo: " + " ".join(text.split("\n")), file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="specdemo",
        description="Speculative decoding with several drafters: the text of the target model, written faster.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"specdemo {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--debug", action="store_true", help="show tracebacks")
    for name, summary, fill in (
        ("serve", "open the page in a browser", _serve),
        ("generate", "answer one prompt on the command line", _generate),
        ("doctor", "say what is installed, where things are, and what is wrong", _doctor),
        ("list", "print the selectors, drafters or pools there are", _list),
        ("simulate", "compare selectors on synthetic worlds, in seconds", _simulate),
        ("bench", "measure what a target forward costs and how fast plain decoding is", _bench),
        ("compile", "compile scoring for this machine, once, at low priority", _add_pool),
        ("train", "train draft heads for a pool's target, see docs/training.md", _train),
        ("evaluate", "measure drafters or selectors on prompts, domain by domain", _evaluate),
    ):
        fill(commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:], parents=[shared]))
    return top


def _serve(p: argparse.ArgumentParser) -> None:
    p.add_argument("--host", help="address to listen on (default: $GRADIO_SERVER_NAME, else this machine only)")
    p.add_argument("--port", type=int, help="port (default: $GRADIO_SERVER_PORT, else 7860)")
    p.add_argument("--compile", action="store_true", help="compile scoring behind the page; faster once that is done")
    _add_db(p)


def _generate(p: argparse.ArgumentParser) -> None:
    p.add_argument("prompt", metavar="PROMPT", help="what to say to the model; - reads standard input")
    p.add_argument("--system", help="system prompt")
    p.add_argument("--raw", action="store_true", help="complete the prompt as it is, without chat template")
    p.add_argument("--selector", default="hedgespec", help="who chooses the drafter, see `specdemo list selectors`")
    p.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the selector, repeatable"
    )
    p.add_argument("--k", type=int, default=5, help="longest draft in tokens; 0 is plain decoding (default 5)")
    p.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="most tokens to write (default 128)")
    p.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    p.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text, repeatable")
    p.add_argument("--ignore-eos", action="store_true", help="write on after the model's end token")
    _add_sampling(p)
    _add_pool(p)
    p.add_argument("--check", action="store_true", help="decode plainly, too, and compare (exit code 3: different)")
    _add_estimates(p)
    p.add_argument("--rerun", action="store_true", help="then let every arm write the answer alone, for the regret")
    p.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    _add_db(p)
    p.add_argument("--no-db", action="store_true", help="do not store the run")


def _add_sampling(p: argparse.ArgumentParser) -> None:
    p.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    p.add_argument("--top-k", type=int, default=0, help="keep the k likeliest tokens; 0 is off")
    p.add_argument("--top-p", type=float, default=1.0, help="keep the likeliest tokens up to this mass; 1 is off")
    p.add_argument("--min-p", type=float, default=0.0, help="drop tokens below this share of the likeliest; 0 is off")
    p.add_argument("--repetition-penalty", type=float, default=1.0, help="as CTRL defines it; 1 is off")
    p.add_argument("--frequency-penalty", type=float, default=0.0, help="as OpenAI defines it; 0 is off")
    p.add_argument("--presence-penalty", type=float, default=0.0, help="as OpenAI defines it; 0 is off")


def _add_estimates(p: argparse.ArgumentParser) -> None:
    text = "evaluate all arms for the regret, whatever the selector asks, outside of the measured time"
    p.add_argument("--shadow", action="store_true", help=text)
    text = "correct estimates of arms by what drafts realise (default)"
    p.add_argument("--calibrate", action=argparse.BooleanOptionalAction, default=True, help=text)


def _add_pool(p: argparse.ArgumentParser) -> None:
    p.add_argument("--pool", default="embedded", help="see `specdemo list pools`, or the path of a pool file")
    p.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    p.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="score through compiled code (slower start, faster rounds)",
    )


def _add_db(p: argparse.ArgumentParser) -> None:
    p.add_argument("--db", metavar="PATH", help="SQLite file of the runs (default: in the user's data folder)")


def _doctor(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.add_argument("--no-fetch", action="store_true", help="do not fetch the embedded model if it is missing")
    p.add_argument("--verify", action="store_true", help="read the model's files and compare their hashes")
    _add_db(p)


def _list(p: argparse.ArgumentParser) -> None:
    p.add_argument("what", choices=["selectors", "drafters", "pools"])
    p.add_argument("--json", action="store_true", help="print a JSON list with summaries and options")


def _simulate(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--world", default="stationary", help="stationary, markov, domains, changes, drift, costs, or FILE.npz"
    )
    p.add_argument("--arms", type=int, nargs="+", default=[21], metavar="N", help="numbers of arms (default 21)")
    p.add_argument("--gap", type=float, default=0.1, help="acceptance by which the best arm is ahead (default 0.1)")
    p.add_argument("--base", type=float, default=0.6, help="acceptance of the others (default 0.6)")
    p.add_argument("--segment", type=int, default=60, help="tokens between changes (default 60)")
    p.add_argument(
        "--cost", type=float, nargs="+", default=[], help="of drafting a token, in target forwards: one, or N"
    )
    p.add_argument("--evaluation-cost", type=float, help="of evaluating all arms once, in target forwards")
    p.add_argument("--signal", choices=["soft", "bits"], default="soft", help="bits: as at temperature 0")
    p.add_argument("--selectors", help="with commas; options as hedgespec:signal=vr:choice=argmax (default: twelve)")
    p.add_argument(
        "--alternate", type=int, default=0, metavar="N", help="recorded: two answers in turns, N tokens each"
    )
    p.add_argument("--rounds", type=int, help="of every text (default 300, or all of a recorded one)")
    p.add_argument("--seeds", type=int, help="texts (default 20, or all that are recorded)")
    p.add_argument("--k", type=int, default=5, help="draft length (default 5)")
    p.add_argument("--processes", type=int, help="at work at once (default: as many as there are cores, if it pays)")
    p.add_argument("--json", action="store_true", help="print a JSON list, with curves of the regret")


def _bench(p: argparse.ArgumentParser) -> None:
    _add_pool(p)
    p.set_defaults(compile=True)
    p.add_argument("--rows", type=int, default=16, metavar="N", help="measure forwards of 1 to N rows (default 16)")
    p.add_argument("--repeats", type=int, default=20, metavar="N", help="times that each is measured (default 20)")
    p.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens that plain decoding writes (default 64)")
    p.add_argument("--json", action="store_true", help="print one JSON object")


def _train(p: argparse.ArgumentParser) -> None:
    """The steps of training, in their order."""
    steps = p.add_subparsers(dest="step", required=True, metavar="STEP")

    def step(name: str, summary: str) -> argparse.ArgumentParser:
        q = steps.add_parser(name, help=summary, description=summary[0].upper() + summary[1:])
        _add_pool(q)
        q.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
        return q

    q = step("distil", "let the target answer training prompts")
    q.add_argument("--corpus", required=True, metavar="FOLDER", help="where answers are kept, a file per domain")
    q.add_argument("--domain", action="append", help="repeatable; default: all that have templates")
    q.add_argument("--count", type=int, default=1000, metavar="N", help="prompts of each domain (default 1000)")
    q.add_argument("--prompts", metavar="FILE", help="JSON lines with a prompt each, instead of the templates")
    q.add_argument("--batch", type=int, default=64, metavar="N", help="answers written at once (default 64)")
    q = step("features", "let the target read its answers, and keep its hidden states")
    q.add_argument("--corpus", required=True, metavar="FOLDER", help="the answers")
    q.add_argument("--features", required=True, metavar="FOLDER", help="where hidden states are kept")
    for name, summary, positions in (
        ("head", "train a general EAGLE-3 head: the beginning of a bank", 2_800_000),
        ("specialist", "train a low-rank delta of a bank's head on one domain", 250_000),
        ("hydra", "train Hydra heads", 1_000_000),
    ):
        q = step(name, summary)
        q.add_argument("--features", required=True, metavar="FOLDER", help="the hidden states")
        q.add_argument("--out", required=True, metavar="FOLDER", help="the bank, or the folder of the Hydra heads")
        q.add_argument("--positions", type=float, default=positions, help=f"tokens to train on (default {positions})")
        q.add_argument("--lr", type=float, help="peak learning rate")
        if name == "head":
            q.add_argument("--start", metavar="FOLDER", help="a bank whose head it begins as (default: from nothing)")
        if name == "specialist":
            q.add_argument("--rank", type=int, default=32, help="of the delta (default 32)")
            q.add_argument("--vocabulary", type=int, default=4096, help="tokens it drafts (default 4096)")
        q.add_argument("--domain", action="append", required=True, help="what to train on; repeatable")
        if name != "hydra":
            q.add_argument("--name", required=True, help="of the head in its bank")
        else:
            q.add_argument("--heads", type=int, default=3, help="longest draft (default 3)")

    q = steps.add_parser("router", help="train the selector router: which drafter a prompt wants")
    q.add_argument("--world", action="append", required=True, metavar="FILE", help="recorded answers; repeatable")
    q.add_argument("--out", required=True, metavar="FILE", help="an .npz file")


def _evaluate(p: argparse.ArgumentParser) -> None:
    """What can be evaluated."""
    kinds = p.add_subparsers(dest="what", required=True, metavar="WHAT")

    def kind(name: str, summary: str) -> argparse.ArgumentParser:
        q = kinds.add_parser(name, help=summary, description=summary[0].upper() + summary[1:])
        _add_pool(q)
        q.add_argument("--prompts", nargs="+", metavar="FILE", help="JSON lines with prompt, or turns (default: ours)")
        q.add_argument("--k", type=int, default=5, help="longest draft (default 5)")
        q.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="of an answer (default 128)")
        q.add_argument("--per-domain", type=int, metavar="N", help="only the first prompts of each domain")
        q.add_argument("--json", action="store_true", help="print the table as JSON")
        return q

    q = kind("drafters", "how well each drafter drafts along the target's greedy answers")
    q.add_argument("--arm", action="append", help="repeatable; default: all arms of the pool")
    q.add_argument("--out", required=True, metavar="FOLDER", help="answers and results; goes on where it was")
    q.add_argument("--publish", metavar="ROOT", help="write docs/results, assets/strengths and the heads' cards there")
    q = kind("selectors", "selectors against one another, prompt by prompt; goes on where it was")
    q.add_argument("--selectors", default="none,fixed,hedgespec", metavar="A,B", help="NAME or NAME:OPTION=VALUE:...")
    q.add_argument("--baseline", metavar="A", help="what ratios are against (default: the first selector)")
    _add_estimates(q)
    _add_runs(q)
    q = kind("record", "what every drafter would do at every position of greedy answers, for `specdemo simulate`")
    _add_training_prompts(q)
    q.add_argument("--answers", metavar="FILE", help="answers to use; missing ones are written there (default: by OUT)")
    q.add_argument("--out", required=True, metavar="FILE", help="an .npz file; goes on where it was")
    q = kind("ledger", "estimated rounds of every drafter against really run ones; goes on where it was")
    q.add_argument("--writer", default="random", metavar="A", help="selector that writes the text (default random)")
    _add_runs(q)


def _add_training_prompts(p: argparse.ArgumentParser) -> None:
    text = "training prompts of this domain instead of files, repeatable"
    p.add_argument("--domain", action="append", choices=DOMAINS, help=text)
    p.add_argument("--count", type=int, default=10, metavar="N", help="of each domain (default 10)")
    p.add_argument("--seed", type=int, default=1, help="of these prompts; 0 are those that heads are trained on")


def _add_runs(p: argparse.ArgumentParser) -> None:
    p.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="one or more (default 0)")
    _add_sampling(p)
    p.add_argument("--out", metavar="FOLDER", help="write the table there, and what it is made of")
    _add_db(p)


def request(args: argparse.Namespace) -> Request:
    """The request that the arguments of ``generate`` describe; reads standard input for the prompt ``-``.

    Raises:
        UsageError: a value out of range.
    """
    from specdemo.selectors import read_option

    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if args.raw and args.system:
        raise UsageError("--raw completes the prompt as it is: a --system prompt has no place in it.")
    said = [("system", args.system)] if args.system else []
    messages = () if args.raw else tuple(Message(role, text) for role, text in [*said, ("user", prompt)])
    try:
        sampling = Sampling(**{name: getattr(args, name) for name in Sampling.__dataclass_fields__})
        return Request(
            messages=messages,
            prompt=prompt if args.raw else None,
            selector=args.selector,
            options=dict(read_option(text) for text in args.option),
            k=args.k,
            max_new_tokens=args.max_new_tokens,
            sampling=sampling,
            seed=args.seed,
            stop=tuple(args.stop),
            ignore_eos=args.ignore_eos,
            calibrate=args.calibrate,
            shadow=args.shadow,
        )
    except SpecdemoError as error:
        raise UsageError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
