#!/usr/bin/env python3
"""Draws models, layouts, optimizers, schedules, tokenizers, task rows and exports, and compares this program with PyTorch,
transformers, tokenizers, lm-evaluation-harness and llama.cpp.

    make oracle SEED=1 MINUTES=10              or, with packages of one's own:
    python3 -m venv v && v/bin/pip install "lm-eval[hf]" xllamacpp
    v/bin/python dev/golden/oracle/oracle.py --seed 1 --minutes 10 [--area NAME]

    --case JSON        that case alone, as a difference prints it
    --faults           plants each fault of areas.py in the reference, and draws from five seeds until it is found
    --self-test        the stored draws (stored.json), and each fault in the one that shows it: part of make test-full

Numbers are compared with double: the error may be 8 times that of the other program in the same precision, and at least a
rounding's (areas.py: FACTOR, FLOOR, and what is named there). Ids, texts, orders and bits are equal or different. A
difference is made smaller while it stays one, and printed as a command. A case that the program refuses is counted, with
what it said; if it refuses more than half, that is a failure. The last line is "N passed, N failed"; exit code 1 if
anything differs.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reference  # noqa: E402
import torch  # noqa: E402
from areas import AREAS, FAULTS, ROOT, Refused, Tools  # noqa: E402


def look(case, options):
    """-> (number compared, list of differences). A crash of either side is a difference."""
    with tempfile.TemporaryDirectory() as work:
        try:
            found = AREAS[case["area"]].compare(case, Tools(options.program, options.logits, options.tokens, work))
        except Refused:
            raise
        except Exception:
            return 1, [traceback.format_exc(limit=-3).strip()]
        return found.compared, found.wrong


def reduce(case, wrong, options, seconds=120):
    """The smallest case that still differs, of those that are tried."""
    until, again, crash = time.monotonic() + seconds, True, "Traceback" in wrong[0]
    while again and time.monotonic() < until:
        again = False
        for simpler in AREAS[case["area"]].smaller(case):
            try:
                still = look(simpler, options)[1]
            except Refused:
                continue
            if still and crash == ("Traceback" in still[0]):
                case, wrong, again = simpler, still, True
                break
            if time.monotonic() > until:
                break
    return case, wrong


def report(case, wrong, options):
    print("DIFFERENT", wrong[0], json.dumps(case), sep="\n    ", flush=True)
    case, wrong = reduce(case, wrong, options)
    print("  at its smallest", *wrong[:5], sep="\n    ")
    fault = f" --fault '{reference.FAULT}'" if reference.FAULT else ""
    print(f"  dev/golden/oracle/run.sh{fault} --case '" + json.dumps(case).replace("'", "\\u0027") + "'", flush=True)


def draws(seed, areas):
    """Endless: (area, case). One area after the other."""
    generators = {a: random.Random(f"{seed} {a}") for a in areas}
    while True:
        for a in areas:
            yield dict(AREAS[a].draw(generators[a]), area=a)


def campaign(options):
    begun, counts, refusals, failed = time.monotonic(), {a: [0, 0] for a in options.area}, [], 0
    for case in draws(options.seed, options.area):
        if time.monotonic() - begun > 60 * options.minutes:
            break
        try:
            compared, wrong = look(case, options)
        except Refused as refusal:
            refusals.append((case["area"], str(refusal)))
            continue
        counts[case["area"]][0] += 1
        counts[case["area"]][1] += compared
        if wrong:
            failed += 1
            report(case, wrong, options)
    for area, (cases, compared) in counts.items():
        said = [text for a, text in refusals if a == area]
        print(f"{area:11s} {cases:5d} cases, {compared:7d} comparisons, {len(said)} refused")
        for text in sorted({t.splitlines()[0] for t in said})[:8]:
            print("    " + text[:170])
        if len(said) > 0.5 * (cases + len(said)) and len(said) > 3:
            print("FAILED: too many draws of this area are refused")
            failed += 1
    print(f"seed {options.seed}, {time.monotonic() - begun:.0f} s, torch {torch.__version__}")
    print(f"{sum(c[0] for c in counts.values()) - failed} passed, {failed} failed")
    return failed


def search_faults(options):
    """Seconds until each is found, of five seeds with as many minutes each."""
    missed = 0
    for name, area in FAULTS.items():
        reference.plant(name)
        begun, cases, found = time.monotonic(), 0, None
        for seed in range(options.seed, options.seed + 5):
            until = time.monotonic() + 60 * options.minutes
            for case in draws(seed, [area]):
                try:
                    cases += 1
                    if look(case, options)[1] and not reference.soundly(look, case, options)[1]:
                        found = seed
                except Refused:
                    pass
                if found is not None or time.monotonic() > until:
                    break
            if found is not None:
                break
        missed += found is None
        print(f"{name:32s} {area:11s} " + (f"seed {found}, case {cases}, {time.monotonic() - begun:.0f} s" if found is not None else "NOT FOUND"), flush=True)
    reference.plant(None)
    print(f"{len(FAULTS) - missed} passed, {missed} failed")
    return missed


def self_test(options):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "stored.json"), encoding="utf-8") as f:
        stored = json.load(f)
    passed = failed = 0
    for entry in stored:
        for fault in [None, *entry["faults"]]:
            reference.plant(fault)
            wrong = look(entry["case"], options)[1]
            good = bool(wrong) == (fault is not None)
            passed, failed = passed + good, failed + (not good)
            if not good:
                print("FAILED:", fault or "a stored case differs", *wrong[:3], json.dumps(entry["case"])[:300], sep="\n    ")
    print(f"{passed} passed, {failed} failed")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "train_llama"))
    parser.add_argument("--logits", default=os.path.join(ROOT, "build", "dev", "model_logits"))
    parser.add_argument("--tokens", default=os.path.join(ROOT, "build", "dev", "tokens"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--area", action="append", choices=AREAS)
    parser.add_argument("--fault", choices=FAULTS, help="plant it")
    parser.add_argument("--case")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    options.area = options.area or list(AREAS)
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    reference.plant(options.fault)
    if options.self_test:
        return self_test(options) > 0
    if options.faults:
        return search_faults(options) > 0
    if options.case:
        compared, wrong = look(json.loads(options.case), options)
        print(f"{compared} comparisons, {len(wrong)} differences", *wrong, sep="\n    ")
        return bool(wrong)
    return campaign(options) > 0


if __name__ == "__main__":
    sys.exit(main())
