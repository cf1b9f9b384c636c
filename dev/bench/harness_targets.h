#pragma once
// Targets of dev/bench/harness.cpp: pairs of a baseline and what is meant to be better. All but kernels and collectives
// are training runs of ./train_llama on made data, of the same model and the same tokens per update; those named
// sleep-... are passes that take known times, over real links and streams, and predict their times themselves.

#include <string>
#include <vector>

#include "dev/common/tool.h"

namespace rz {

struct BenchTarget {
    std::string name;      // "group:target"
    std::string baseline;  // name of the target that it is measured against; empty: it is one itself
    std::string about;
    std::string flags;                 // after those of base_flags(); the later one counts
    int needs = 1;                     // ranks are a multiple of it
    int ranks = 2;                     // where --ranks does not say
    std::string tool = "train_llama";  // else a microbenchmark, which writes a row for each op and shape
    bool gpu = false;   // on a CPU there is nothing to offload: there it runs in the emulator, whose times say nothing
    bool host = false;  // on GPUs it is left out: ranks map each other's host memory
    int per_host = 1;   // ranks behind one link of --link

    bool sleeps() const { return name.starts_with("sleep-"); }
};

// Passes of 0.5 s a step, and the bytes of 6 MiB of parameters.
inline std::string sleeping_flags(const std::string& tool) {
    return tool == "plan_clock" ? "links --units 6 --unit-mib 1 --forward-ms 15 --micro-batches 2"
                                : "--micro-batches 8 --task 10 --bytes 65536";
}

// The model and the batch. Every target divides the tokens of an update at 1, 2 and 4 ranks; fp8 products need
// multiples of 128.
inline std::string base_flags(bool cuda) {
    return cuda ? "--preset llama3.2-1b --head untied --data synthetic --dtype bf16 --seq-len 2048 --batch 1 "
                  "--batch-tokens 32768"
                : "--preset bytes --dim 128 --ffn 384 --heads 4 --kv-heads 2 --head-dim 32 --layers 8 --data synthetic "
                  "--seq-len 128 --batch 2 --batch-tokens 4096";
}

// The same where a GPU is emulated.
inline std::string emulated_flags() {
    return "--preset bytes --dim 16 --ffn 24 --heads 2 --kv-heads 1 --head-dim 8 --layers 2 --data synthetic "
           "--dtype bf16 --seq-len 16 --batch 2 --batch-tokens 64";
}

inline std::vector<BenchTarget> bench_targets() {
    return {
        {"ddp:no_overlap", "", "every all-reduce is waited for", "--no-overlap"},
        {"ddp:overlap", "ddp:no_overlap", "a unit's all-reduce runs beside the backward pass of the units below", ""},
        {"ddp:chunk_64k", "ddp:no_overlap", "64 KiB a hop of the ring", "--ring-chunk 64"},
        {"ddp:chunk_4m", "ddp:no_overlap", "4 MiB a hop of the ring", "--ring-chunk 4096"},
        {"ddp:direct", "ddp:no_overlap", "slices exchanged and summed in order of rank", "--collectives direct"},
        {"ddp:library", "ddp:no_overlap", "the library's own collectives", "--collectives library"},
        {"ddp:wire_fp32", "", "bf16 with fp32 gradients on the wire",
         "--dtype bf16 --grad-dtype fp32 --wire-dtype fp32"},
        {"ddp:wire_bf16", "ddp:wire_fp32", "the same gradients sent as bf16",
         "--dtype bf16 --grad-dtype fp32 --wire-dtype bf16"},
        {"ddp:attention_no_overlap", "", "sequences four times as long: more of the step is attention",
         "--seq-len 512 --batch 1 --no-overlap"},
        {"ddp:attention_overlap", "ddp:attention_no_overlap",
         "the same; all-reduces also run beside attention's backward", "--seq-len 512 --batch 1"},

        {"zero:zero0", "", "every rank holds everything", "--zero 0"},
        {"zero:zero1", "zero:zero0", "the optimizer's state sharded", "--zero 1"},
        {"zero:zero2", "zero:zero0", "gradients too", "--zero 2"},
        {"zero:zero2_accumulate", "zero:zero0", "gradients reduced once an update", "--zero 2 --accumulate-locally"},
        {"zero:zero3", "zero:zero0", "parameters too", "--zero 3"},
        {"zero:zero3_no_prefetch", "zero:zero0", "parameters gathered when they are needed", "--zero 3 --prefetch 0"},
        {"zero:hybrid", "zero:zero0", "sharded in pairs, which hold copies", "--zero 3 --shard-size 2", 4, 4},

        {"fsdp:fp32", "", "ZeRO-3 in fp32", "--zero 3 --dtype fp32"},
        {"fsdp:bf16", "fsdp:fp32", "ZeRO-3 in bf16", "--zero 3 --dtype bf16"},
        {"fsdp:fp8_recompute", "fsdp:bf16", "fp8 products and gathers, blocks recomputed, gradients reduced once",
         "--zero 3 --dtype bf16 --fp8 tensor --recompute block --accumulate-locally"},

        {"pipeline:gpipe", "", "all forward, then all backward", "--pp 2 --pp-schedule gpipe", 2},
        {"pipeline:1f1b", "pipeline:gpipe", "one forward, one backward", "--pp 2 --pp-schedule 1f1b", 2},
        {"pipeline:interleaved", "pipeline:gpipe", "two stages on each rank", "--pp 2 --pp-schedule interleaved", 2},
        {"pipeline:zb_h1", "pipeline:gpipe", "weight gradients fill the bubble", "--pp 2 --pp-schedule zb-h1", 2},
        {"pipeline:zb_v", "pipeline:gpipe", "the same with two stages on each rank, in a V",
         "--pp 2 --pp-schedule zb-v", 2},
        {"pipeline:dualpipe", "pipeline:gpipe", "micro-batches enter at both ends", "--pp 2 --pp-schedule dualpipe", 2},
        {"pipeline:dualpipev", "pipeline:gpipe", "DualPipe folded: two stages on each rank",
         "--pp 2 --pp-schedule dualpipev", 2},

        {"tensor:data", "", "the ranks share the batch instead", ""},
        {"tensor:tp", "tensor:data", "tensor and sequence parallelism", "--tp 2", 2},
        {"tensor:tp_overlap", "tensor:data", "products beside its collectives", "--tp 2 --tp-overlap on", 2},
        {"context:data", "", "sequences of 512 on one rank", "--seq-len 512 --batch 1"},
        {"context:gather", "context:data", "keys and values of all ranks gathered",
         "--seq-len 512 --batch 1 --cp 2 --cp-exchange gather", 2},
        {"context:ring", "context:data", "keys and values passed on while attention runs",
         "--seq-len 512 --batch 1 --cp 2 --cp-exchange ring", 2},

        {"symmetric:direct", "", "ZeRO-0 by messages", "--collectives direct"},
        {"symmetric:loads", "symmetric:direct", "ranks load gradients and parameters from each other's memory",
         "--collectives symmetric", 1, 2, "train_llama", false, true},
        {"symmetric:zero2_direct", "", "ZeRO-2 by messages; every rank has a copy of the parameters",
         "--zero 2 --collectives direct"},
        {"symmetric:zero2_one_copy", "symmetric:zero2_direct", "parameters are read where their owners have them",
         "--zero 2 --collectives symmetric", 1, 2, "train_llama", false, true},

        {"wire:zero0", "", "ZeRO-0, messages as they are", "--zero 0"},
        {"wire:zero0_checked", "wire:zero0", "the bits of each message summed where it leaves and where it arrives",
         "--zero 0 --check-wire 100"},
        {"wire:zero3", "", "ZeRO-3, which sends half as much again", "--zero 3"},
        {"wire:zero3_checked", "wire:zero3", "the same, summed on both sides", "--zero 3 --check-wire 100"},

        {"offload:none", "", "all state on the GPU", "--zero 3 --recompute block", 1, 1, "train_llama", true},
        {"offload:stream", "offload:none", "masters and moments on the host; they come in tiles",
         "--zero 3 --recompute block --offload-optimizer stream", 1, 1, "train_llama", true},
        {"offload:zero_copy", "offload:none", "masters and moments on the host; the kernel works on them there",
         "--zero 3 --recompute block --offload-optimizer zero-copy", 1, 1, "train_llama", true},
        {"offload:cpu", "offload:none", "the host's AdamW", "--zero 3 --recompute block --offload-optimizer cpu", 1, 1,
         "train_llama", true},
        {"offload:all", "offload:none", "parameters, gradients and activations on the host too",
         "--zero 3 --recompute block --offload-optimizer stream --offload-params on --offload-grads on "
         "--offload-activations on",
         1, 1, "train_llama", true},

        {"recompute:none", "", "activations are kept", "--recompute none", 1, 1},
        {"recompute:mlp", "recompute:none", "the MLP is computed again", "--recompute mlp", 1, 1},
        {"recompute:block", "recompute:none", "the block is computed again", "--recompute block", 1, 1},

        {"precision:fp32", "", "everything in fp32", "--dtype fp32", 1, 1},
        {"precision:bf16", "precision:fp32", "weights and activations in bf16", "--dtype bf16", 1, 1},
        {"precision:bf16_state", "precision:fp32", "the optimizer's moments in bf16 too",
         "--dtype bf16 --adam-dtype bf16", 1, 1},
        {"precision:fp16", "precision:fp32", "fp16 with dynamic loss scaling", "--dtype fp16", 1, 1},
        {"precision:fp8_tensor", "precision:bf16", "products in fp8, a scale for each operand",
         "--dtype bf16 --fp8 tensor", 1, 1},
        {"precision:fp8_block", "precision:bf16", "products in fp8, a scale for each 128 numbers",
         "--dtype bf16 --fp8 block", 1, 1},

        {"collectives:all", "", "ring and direct against the library's, by size",
         "--min 64K --max 16M --factor 16 --iterations 7", 2, 2, "bench_collectives"},
        {"kernels:gemm", "", "matrix products", "--iters 5", 1, 1, "bench_gemm"},
        {"kernels:attention", "", "attention", "--iters 5", 1, 1, "bench_attention"},
        {"kernels:rmsnorm", "", "RMSNorm", "--iters 5", 1, 1, "bench_rmsnorm"},
        {"kernels:rope", "", "rotary positions", "--iters 5", 1, 1, "bench_rope"},
        {"kernels:bias", "", "biases", "--iters 5", 1, 1, "bench_bias"},
        {"kernels:qk_norm", "", "norms of heads", "--iters 5", 1, 1, "bench_qk_norm"},
        {"kernels:swiglu", "", "SwiGLU", "--iters 5", 1, 1, "bench_swiglu"},
        {"kernels:cross_entropy", "", "cross-entropy", "--iters 5", 1, 1, "bench_cross_entropy"},
        {"kernels:embedding", "", "embedding", "--iters 5", 1, 1, "bench_embedding"},
        {"kernels:adamw", "", "AdamW", "--iters 5", 1, 1, "bench_adamw"},
        {"kernels:global_norm", "", "gradient norm", "--iters 5", 1, 1, "bench_global_norm"},
        {"kernels:elementwise", "", "casts and sums", "--iters 5", 1, 1, "bench_elementwise"},
        {"kernels:fp8_gemm", "", "products in fp8", "--iters 5", 1, 1, "bench_fp8_gemm"},
        {"kernels:quantise", "", "fp8 codes and scales", "--iters 5", 1, 1, "bench_quantise"},
        {"kernels:muon", "", "Muon's products", "--iters 5", 1, 1, "bench_muon"},

        {"sleep-ddp:no_overlap", "", "every all-reduce is waited for", "--zero 0 --no-overlap", 2, 2, "plan_clock"},
        {"sleep-ddp:overlap", "sleep-ddp:no_overlap", "all-reduces run beside the backward pass", "--zero 0", 2, 2,
         "plan_clock"},
        {"sleep-ddp:small", "", "64 small all-reduces, waited for",
         "--zero 0 --no-overlap --units 64 --unit-mib 0.0625 --forward-ms 1", 2, 2, "plan_clock"},
        {"sleep-ddp:buckets", "sleep-ddp:small", "the same in buckets of 1 MiB, beside the backward pass",
         "--zero 0 --bucket-mib 1 --units 64 --unit-mib 0.0625 --forward-ms 1", 2, 2, "plan_clock"},
        {"sleep-zero:zero3_no_prefetch", "", "parameters gathered when they are needed", "--zero 3 --prefetch 0", 2, 2,
         "plan_clock"},
        {"sleep-zero:zero3", "sleep-zero:zero3_no_prefetch", "a unit gathered ahead", "--zero 3 --prefetch 1", 2, 2,
         "plan_clock"},
        {"sleep-link:each", "", "gradients reduced in each micro-batch", "--zero 2 --no-overlap", 2, 2, "plan_clock"},
        {"sleep-link:once", "sleep-link:each", "gradients reduced once an update",
         "--zero 2 --no-overlap --accumulate-locally", 2, 2, "plan_clock"},
        {"sleep-wire:fp32", "", "fp32 gradients on the wire", "--zero 2 --no-overlap", 2, 2, "plan_clock"},
        {"sleep-wire:bf16", "sleep-wire:fp32", "the same gradients sent as bf16",
         "--zero 2 --no-overlap --wire-dtype bf16", 2, 2, "plan_clock"},
        {"sleep-hier:ring", "", "one ring through two hosts of two ranks", "--zero 0 --no-overlap --ranks-per-node 2",
         4, 4, "plan_clock", false, false, 2},
        {"sleep-hier:hier", "sleep-hier:ring", "sums inside the hosts, then across",
         "--zero 0 --no-overlap --ranks-per-node 2 --collectives hier", 4, 4, "plan_clock", false, false, 2},
        {"sleep-pipeline:naive", "", "a quarter of the micro-batches, one in flight; compute waits for what it sends",
         "--pp-schedule gpipe --baseline", 2, 2, "bench_pipeline"},
        {"sleep-pipeline:gpipe", "sleep-pipeline:naive", "all forward, then all backward", "--pp-schedule gpipe", 2, 2,
         "bench_pipeline"},
        {"sleep-pipeline:1f1b", "sleep-pipeline:naive", "one forward, one backward", "--pp-schedule 1f1b", 2, 2,
         "bench_pipeline"},
        {"sleep-pipeline:interleaved", "sleep-pipeline:naive", "two stages on each rank", "--pp-schedule interleaved",
         2, 2, "bench_pipeline"},
        {"sleep-pipeline:zb_h1", "sleep-pipeline:naive", "weight gradients fill the bubble", "--pp-schedule zb-h1", 2,
         2, "bench_pipeline"},
        {"sleep-pipeline:zb_v", "sleep-pipeline:naive", "the same with two stages on each rank, in a V",
         "--pp-schedule zb-v", 2, 2, "bench_pipeline"},
        {"sleep-pipeline:dualpipe", "sleep-pipeline:naive", "micro-batches enter at both ends",
         "--pp-schedule dualpipe", 2, 2, "bench_pipeline"},
        {"sleep-pipeline:dualpipev", "sleep-pipeline:naive", "DualPipe folded: two stages on each rank",
         "--pp-schedule dualpipev", 2, 2, "bench_pipeline"},
    };
}

}  // namespace rz
