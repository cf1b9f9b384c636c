#!/usr/bin/env python3
"""Would the tests notice? Plants faults: of pipelines, the plan, evaluation, masks and mixes, or of number formats.

    test/llama/mutants.py [--table formats] [--only 'the plan|padding'] [--jobs N]
                                         build once, then each fault (or those that match): the tests that must fail; minutes
    test/llama/mutants.py --check        the places and the tests that are named here exist

Works in a copy of the sources, build/mutants. There every fault stands beside what is right, and RZ_PLANTED in the
environment picks one. Prints a line per fault and exits 1 if one survives. A row: what is wrong, the file, what
stands there, what is planted (an expression for an expression, or statements for statements, which end with ; or }),
and the tests of which at least one must fail: GoogleTest's names in build/cuda/unit_tests, or a script that gets the
program. In what is planted PLANTED may stand for the condition; a header's row compiles what INCLUDERS names again.
"""

import argparse
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys

from mutants_formats import FORMATS, INCLUDERS

TREE = pathlib.Path(__file__).resolve().parents[2]
EXECUTOR, PROGRAM = "llama/parallel/executor.cpp", "llama/parallel/pipeline_program.cpp"
SCHEDULES, CHECK = "llama/parallel/pipeline.cpp", "llama/parallel/pipeline_check.cpp"
EVAL, SCORER, ATTENTION = "llama/train/eval_tasks.cpp", "llama/train/scorer.cpp", "kernels/attention/attention.cpp"
PLAN = "llama/train/plan_memory.cpp"
BLOCK, FEEDER, TRAINER = "llama/model/block.cpp", "llama/data/batch_feeder.cpp", "llama/train/trainer.cpp"
NORM1 = "add_norm_gradient(s, at(dw, norm1_, grad_dtype_), d.dw_norm1, config_.dim, grad_dtype_);"

PIPELINES = [
    (
        "zb-h1 runs a weight gradient one task earlier",
        SCHEDULES,
        "inputs - weights > rank",
        "inputs - weights >= rank",
        ["Pipeline.*"],
    ),
    (
        "gpipe runs backward in LIFO order",
        SCHEDULES,
        "for (int m = 0; m < M; ++m) o.add(Op::B, rank, m);",
        "for (int m = M; m-- > 0;) o.add(Op::B, rank, m);",
        ["Pipeline.*"],
    ),
    (
        "the checker misses a dropped I or W",
        CHECK,
        "!done_.count({op, stage, m})",
        "op == Op::F && !done_.count({op, stage, m})",
        ["Pipeline.CheckerRefusesEveryDroppedTask"],
    ),
    (
        "the checker misses two neighbouring micro-batches that are swapped",
        CHECK,
        "latest->second > t.micro_batch",
        "latest->second > t.micro_batch + 1",
        ["Pipeline.CheckerRefusesEverySwapOfNeighbouringMicroBatches"],
    ),
    (
        "one lane: a send stands before the recv that comes first",
        PROGRAM,
        "if (one_lane_) at = reached = std::max(reached, at);",
        ";",
        ["PipelineExecutor.OneLane*", "PipelineProgram.*"],
    ),
    (
        "the rendezvous has a queue for each lane where there is one lane",
        "llama/parallel/rendezvous.cpp",
        "one_lane_ ? QueueKey{rank, 0, false} : QueueKey{rank, i.lane, i.what == Do::send}",
        "QueueKey{rank, i.lane, i.what == Do::send}",
        ["PipelineProgram.OneLaneInTheOrderOfEachRanksOwnCellsDeadlocks"],
    ),
    ("compute does not wait for its input", EXECUTOR, "compute_.wait(p.input_here);", ";", ["PipelineExecutor.*"]),
    (
        "backward does not wait for its gradient",
        EXECUTOR,
        "compute_.wait(passage(i.stage, i.micro_batch).gradient_here);",
        ";",
        ["PipelineExecutor.*"],
    ),
    (
        "recv waits for all compute that was enqueued before",
        EXECUTOR,
        "link.stream().wait(slot.free);",
        "link.stream().wait(executor_.compute_.record());",
        ["PipelineExecutor.*"],
    ),
    (
        "recv does not wait until the slot is free",
        EXECUTOR,
        "link.stream().wait(slot.free);",
        ";",
        ["PipelineExecutor.*", "PipelineBits.*"],
    ),
    (
        "send does not wait for its tensor",
        EXECUTOR,
        "link.stream().wait(up ? p.output_written : p.gradient_written);",
        ";",
        ["PipelineExecutor.*"],
    ),
    (
        "forward does not wait until the slot's output was sent",
        EXECUTOR,
        "compute_.wait(executor_.events(i.stage, i.slot).output_sent);",
        ";",
        ["PipelineExecutor.*", "PipelineBits.*"],
    ),
    ("a norm's gradient is added twice", BLOCK, NORM1, NORM1 + NORM1, ["Cases/Stages.*"]),
    (
        "a unit is reduced before the stage's last weight gradient",
        "llama/parallel/program.cpp",
        "last.at(u) == at",
        "i.micro_batch == 0",
        ["PipelineProgram.*"],
    ),
    (
        "the device holds one batch of tokens, whatever is in flight",
        FEEDER,
        "i < held",
        "i < 1",
        ["test/program/test_pipeline.py"],
    ),
    (
        "slots are never given back",
        PROGRAM,
        "if (--holds[key] == 0) forward[i.stage].free_at[size_t(i.slot)] = done_at[key];",
        "--holds[key];",
        ["PipelineProgram.*", "PipelineResources.ActivationsAreTheSlotsTimesTheirBytes"],
    ),
    ("h1 is read after it was overwritten", BLOCK, "std::swap(a.h1, p.h1);", ";", ["Cases/Stages.*"]),
    (
        "the norm leaves the other stages out",
        "zero/optimizer.cpp",
        "if (!stage_sums_.empty())\n        streams_.mesh.model()",
        "if (false)\n        streams_.mesh.model()",
        ["PipelineBits.EveryScheduleHasTheBitsOfOneRank"],
    ),
    (
        "samples are counted by all ranks of the job",
        TRAINER,
        "mesh->place(Axis::dp), mesh->place(Axis::cp), mesh->is_first_reader()",
        "mesh->world(), mesh->place(Axis::cp), mesh->is_first_reader()",
        ["test/program/test_pipeline.py"],
    ),
    (
        "parameters are gathered for each use under --pp-gather step",
        PROGRAM,
        "out = gather_for_step(code);",
        "return place_gathers(code, shape_);",
        ["PipelineProgram.GathersForTheStepAndForEachUse", "PipelineResources.*"],
    ),
    (
        "a message is sent twice",
        "comm/mesh.cpp",
        "transport_->exchange(stream_, group);",
        "transport_->exchange(stream_, group); if (message.is_send) transport_->exchange(stream_, group);",
        ["PipelineResources.EachLinkCarriesEachTensorOnce"],
    ),
    (
        "the watchdog's names of messages have no stage",
        EXECUTOR,
        'return "tensor " + std::to_string(made_by) + (up ? "F" : "I") + std::to_string(micro_batch);',
        'return "tensor";',
        ["test/program/test_pipeline.py"],
    ),
    (
        "DualPipe's copies are not added",
        "llama/model/pipeline_plan.cpp",
        "c.units.push_back(u);",
        ";",
        ["DualPipe.*"],
    ),
    (
        "telemetry counts drain as steady",
        "llama/parallel/telemetry.cpp",
        "i > last_forward ?",
        "false ?",
        ["PipelineTelemetry.NumbersAreTheSimulators"],
    ),
    (
        "a fused cell's second task runs before its first",
        PROGRAM,
        "if (c.with) single.push_back({*c.with});",
        "if (c.with) single.insert(single.end() - 1, {*c.with});",
        ["PipelineProgram.*"],
    ),
    # The plan
    (
        "the plan gathers one unit more ahead",
        TRAINER,
        "int(o.prefetch)",
        "int(o.prefetch) + 1",
        ["Plan.EachUnitGatheredAheadTakesASlot"],
    ),
    (
        "embedding, blocks and head have slots of their own",
        "zero/unit_pool.cpp",
        "if (in_turn && bytes.size() > 1",
        "if (!in_turn && bytes.size() > 1",
        ["Plan.OneUnitAtATimeTakesTheLargestUnitsSlot"],
    ),
    (
        "the plan ignores recomputation",
        PLAN,
        "how.graphs = false;",
        "how.graphs = false, how.stage.recompute = Recompute::none;",
        ["Plan.RecomputationKeepsTheResidualStreamAlone"],
    ),
    (
        "the head's gradient is forgotten",
        "zero/gradient_store.cpp",
        "ownership_.elements(), dtype",
        "ownership_.elements() - ownership_.units().back().padded, dtype",
        ["Plan.TheHeadHasAGradientOfItsOwnUnlessItIsTied"],
    ),
    (
        "the last micro-batch's reduction is dropped",
        "llama/parallel/program.cpp",
        "ends || (shape.shard.reduce_each && open[u].empty())",
        "!ends && shape.shard.reduce_each && open[u].empty()",
        ["Plan.EveryMicroBatchIsReduced"],
    ),
    (
        "padding is left out",
        "zero/ownership.cpp",
        'u.padded, "parameters"',
        'u.size, "parameters"',
        ["Plan.PaddingIsCounted"],
    ),
    (
        "a step with --stats-every is planned as one without",
        PLAN,
        "number % o_.stats_every == 0",
        "number < 0",
        ["Plan.AStepWithStatisticsSendsKeysOnceMore"],
    ),
    (
        "attention's largest logit is the log-sum-exp",
        ATTENTION,
        "if (largest) largest[(b * s.H + h) * s.Tq + t] = max;",
        "if (largest) largest[(b * s.H + h) * s.Tq + t] = max + __builtin_logf(sum);",
        ["Simd/AttentionRanges.TheLargestLogitOfEachRowIsThatOfDenseAttention/0"],
    ),
    # Evaluation
    (
        "acc_norm divides by tokens",
        EVAL,
        "by_characters.push_back(log_p / e.requests[c].characters);",
        "by_characters.push_back(log_p / double(items_[item].scored));",
        ["EvalMetrics.AccNormDividesByCharactersAndLlmcsByTokens"],
    ),
    (
        "context and continuation are tokenised apart",
        EVAL,
        "encode_text(t, r.context + r.continuation, o.bos)",
        "[&] { auto ids = encode_text(t, r.context, o.bos); for (int id : t.encode(r.continuation)) ids.push_back(id); "
        "return ids; }()",
        ["EvalTokens.ContextAndContinuationAreTokenisedTogether"],
    ),
    (
        "BOS stands twice",
        EVAL,
        "!std::string_view(text).starts_with(t.decode(std::vector{t.bos_id()}))",
        "true",
        ["EvalTokens.BosStandsOnce"],
    ),
    (
        "a batch that only fills up counts",
        SCORER,
        "mine >= batches.size() || !mine_count",
        "!mine_count",
        ["EvalScores.AnyNumberOfRanksGivesTheSameBits"],
    ),
    (
        "the batches that the ranks do not divide are dropped",
        SCORER,
        "first < batches.size()",
        "first + size_t(dp_.size) <= batches.size()",
        ["EvalScores.AnyNumberOfRanksGivesTheSameBits"],
    ),
    # Documents
    (
        "keys are masked by the start of the tile's first query",
        ATTENTION,
        "r < valid ? hidden(r) : 0",
        "r < valid ? hidden(0) : 0",
        ["Simd/AttentionRanges.DocumentsAgreeWithDenseAttentionInDouble/0"],
    ),
    (
        "the backward pass skips no tile before the document",
        ATTENTION,
        "hidden_keys(s, b, q0, k0)(0) >= keys",
        "keys < int64_t{0}",
        ["Simd/AttentionRanges.BlocksBeforeTheDocumentAreNotRead/0"],
    ),
    (
        "the boundary's token is in the other document",
        "llama/data/documents.cpp",
        "mask.boundary == DocBoundary::eos ?",
        "mask.boundary != DocBoundary::eos ?",
        ["Documents.ATokenBeginsEach", "Documents.ATokenEndsEach"],
    ),
    (
        "recomputation ignores the mask",
        "llama/model/block.cpp",
        "if (what == Recompute::block) return forward(p.stream, p.shape, w, a, p.scratch, nullptr);",
        "if (what == Recompute::block) { BlockShape bare = p.shape; bare.first_key = nullptr; "
        "return forward(p.stream, bare, w, a, p.scratch, nullptr); }",
        ["Documents.RecomputationGivesTheSameBits"],
    ),
    (
        "a window is one key wider",
        "llama/model/stage.cpp",
        "position - c.window + 1",
        "position - c.window",
        ["Cases/ModelGolden.*"],
    ),
    (
        "a window in documents is one key narrower",
        "llama/data/documents.cpp",
        "t - mask.window + 1",
        "t - mask.window + 2",
        ["Documents.AWindowHidesWhatIsFurtherBack"],
    ),
    (
        "a ring leaves out a chunk of which one key is seen",
        "llama/parallel/context_ring.cpp",
        "(queries - keys - 1) * chunk_ + 1",
        "(queries - keys - 1) * chunk_ + 2",
        ["Layouts/Context.*"],
    ),
    # Mixes
    (
        "a rank's order of samples depends on where its part begins",
        "llama/data/data_mix.cpp",
        "sets_[size_t(p.set)].data.batch(p.index, 1, inputs + i * seq_len(), targets + i * seq_len());",
        "const DataLoader& d = sets_[size_t(p.set)].data; "
        "d.batch((p.index + position) % d.samples(), 1, inputs + i * seq_len(), targets + i * seq_len());",
        ["DataMixTest.AnyCutOfAStepReadsTheSameSamples"],
    ),
    (
        "a mix counts its calls instead of positions",
        "llama/data/mix.cpp",
        "period * shares.parts[size_t(set)]",
        "[&] { static int64_t calls = 0; return calls++ / shares.period * shares.parts[size_t(set)]; }()",
        ["Mix.AStartAnywhereSeesWhatARunFromTheBeginningSees"],
    ),
]


PICK = """#include <cstdlib>
#define RZ_PLANTED(n) (std::getenv("RZ_PLANTED") && std::atoi(std::getenv("RZ_PLANTED")) == (n))
"""


def test_files():
    """By test, as --gtest_filter names it: the file that it is in."""
    found = {}
    for file in sorted((TREE / "test").glob("*/test_*.cpp")):
        text = file.read_text()
        prefixes = dict(re.findall(r"INSTANTIATE_TEST_SUITE_P\((\w+), *\n? *(\w+),", text))
        suites = {suite: prefix for prefix, suite in prefixes.items()}
        for kind, suite, name in re.findall(r"^TEST(_F|_P|)\((\w+), *(\w+)\)", text, re.M):
            full = f"{suites.get(suite, '')}/{suite}.{name}/0" if kind == "_P" else f"{suite}.{name}"
            found[full] = file.relative_to(TREE)
    return found


def check(table, files):
    """Rows whose place is gone or not unique, or whose tests are not there."""
    wrong = []
    for what, file, before, _, names in table:
        if (TREE / file).read_text().count(before) != 1:
            wrong.append(f"{what}: {file} does not have its line, or more than one")
        for name in names:
            there = (TREE / name).exists() if name.startswith("test/") else fnmatch.filter(files, name)
            if not there:
                wrong.append(f"{what}: there is no test {name}")
    return wrong


def with_both(number, before, after):
    """What is right and what is planted, one of them at run time."""
    if "PLANTED" in after:
        return after.replace("PLANTED", f"RZ_PLANTED({number})")
    if before.endswith("?"):  # a condition, up to its question mark
        return f"(RZ_PLANTED({number}) ? {after[:-1]} : {before[:-1]}) ?"
    if "\n" in before:  # if (condition), and what follows it
        right, rest = before.split("\n", 1)
        return f"if (RZ_PLANTED({number}) ? {after.split(chr(10), 1)[0][4:-1]} : {right[4:-1]})\n{rest}"
    if before.endswith(";"):
        return f"if (RZ_PLANTED({number})) {{ {after} }} else {{ {before} }}"
    if "{" not in before + after and ", " in before:  # arguments, of which the first is another
        right, rest = before.split(", ", 1)
        return f"RZ_PLANTED({number}) ? {after.split(', ', 1)[0]} : {right}, {rest}"
    return f"(RZ_PLANTED({number}) ? ({after}) : ({before}))"


def copy_and_plant(table, tree):
    """The sources, those of the table with every fault in them. Files that are as they were keep their times."""
    listed = subprocess.run(["git", "ls-files"], cwd=TREE, capture_output=True, text=True, check=True).stdout
    for name in [n for n in listed.split("\n") if n and (TREE / n).is_file()] + ["build/config.mk"]:
        data = (TREE / name).read_bytes()
        rows = [(n, before, after) for n, (_, file, before, after, _) in enumerate(table) if file == name]
        if rows:
            text = data.decode()
            for number, before, after in rows:
                text = text.replace(before, with_both(number, before, after), 1)
            data = (PICK + text).encode()
        target = tree / name
        if not target.exists() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            shutil.copymode(TREE / name, target)


def must(command, **how):
    done = subprocess.run(command, capture_output=True, text=True, **how)
    if done.returncode != 0:
        sys.exit(f"{command} ends with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def build(table, tree, files, jobs):
    """The planted files' objects stand before the library's, and the linker takes the first of two definitions."""
    cuda = "build/cuda/"
    sources = {source for _, file, _, _, _ in table for source in INCLUDERS.get(file, [file])}
    tests = {str(files[t]) for _, _, _, _, names in table for n in names for t in fnmatch.filter(files, n)}
    objects = [cuda + re.sub("cpp$", "o", t) for t in sorted(tests - sources)]
    must(["make", f"-j{jobs}", cuda + "libringzero.a", "train_llama", *objects], cwd=TREE)
    planted = [cuda + re.sub("cpp$", "o", source) for source in sorted(sources)]
    must(["make", f"-j{jobs}", *planted], cwd=tree)
    link = must(["make", "-n", "-W", "Makefile", cuda + "train_llama"], cwd=TREE)
    link = [line for line in link.split("\n") if f"-o {cuda}train_llama " in line][-1]
    compiler, rest = link.split(f" -o {cuda}train_llama ")
    libraries = rest.split("libringzero.a", 1)[1].split("&&")[0].split()
    first = [str(tree / p) for p in planted if not p.startswith(cuda + "test/")]
    objects += [str(tree / p) for p in planted if p.startswith(cuda + "test/")]
    options = [*compiler.split(), "-Wl,-z,muldefs", "-o"]
    must(
        [*options, str(tree / "train_llama"), cuda + "train_llama.o", *first, cuda + "libringzero.a", *libraries],
        cwd=TREE,
    )
    end = [cuda + "libringzero.a", "-lgtest_main", "-lgtest", *libraries]
    must([*options, str(tree / "tests"), *objects, *first, *end], cwd=TREE)


def failing(tree, number, names):
    """Which of the tests fail with this fault."""
    environment = dict(os.environ, RZ_PLANTED=str(number))
    if names[0].startswith("test/"):
        command = [tree / names[0], tree / "train_llama", "--few"]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
        return [f"{names[0]}: {line.strip()}" for line in re.findall(r"^FAILED: +(.*)", done.stdout, re.M)]
    command = ["timeout", "300", tree / "tests", "--gtest_brief=1", "--gtest_filter=" + ":".join(names)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
    found = sorted(set(re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", done.stdout, re.M)))
    if not found and done.returncode != 0:
        ended = "hangs" if done.returncode == 124 else f"ends with {done.returncode}"
        found = [f"{':'.join(names)} {ended}"]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", choices=["pipelines", "formats"], default="pipelines")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    table = {"pipelines": PIPELINES, "formats": FORMATS}[args.table]
    files = test_files()
    if wrong := check(table, files):
        print("\n".join("    " + w for w in wrong))
    if args.check or wrong:
        return len(wrong) > 0
    table = [row for row in table if re.search(args.only, row[0])]
    tree = TREE / "build/mutants" / args.table
    copy_and_plant(table, tree)
    build(table, tree, files, args.jobs)
    caught = survived = 0
    for number, (what, _, _, _, names) in enumerate(table):
        found = failing(tree, number, names)
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        print(f"caught    {what}: {'; '.join(found[:3])}{more}" if found else f"SURVIVES  {what}", flush=True)
        caught, survived = caught + bool(found), survived + (not found)
    print(f"{caught} passed, {survived} failed")
    return survived > 0


if __name__ == "__main__":
    sys.exit(main())
