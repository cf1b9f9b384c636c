#include "llama/train/options_eval.h"

#include "llama/train/options_train.h"

namespace rz {

CommandTable command_table(EvalOptions& o) {
    CommandTable table{
        "eval", "Score a model on tasks and texts, as lm-evaluation-harness does; any number of ranks", {}};
    OptionGroup g(table.rows, "Evaluation");
    g.text("--from", Keeps::no, o.from, "Model to use: a run's folder, a checkpoint, or any Hugging Face LLaMA.")
        .required = true;
    g.text("--tasks", Keeps::no, o.tasks,
           "Tasks: names of .jsonl files in --data, such as hellaswag,arc_easy,perplexity.", "LIST")
        .required = true;
    g.text("--data", Keeps::no, o.data, "Folder of the tasks, made by data_prep/prepare.py eval.");
    g.whole("--limit", Keeps::no, o.limit, 0, int64_t(1) << 40,
            "Number of examples of each task, from its beginning. 0: all.");
    g.whole("--batch", Keeps::no, o.batch, 1, 1 << 20, "Number of sequences at a time on each rank.");
    g.checked(
        "--zero", Keeps::no, "0|3", "3: each rank keeps a part of the parameters; units are gathered as they are read.",
        [](const std::string& text) { return text == "0" || text == "3" ? "" : "parameters are whole (0) or cut (3)"; },
        [&o](const std::string& text) { o.zero = text == "3" ? 3 : 0; });
    g.whole("--tp", Keeps::no, o.tp, 1, 1 << 20, "Number of neighbouring ranks that hold parts of the same tensors.");
    g.whole("--max-length", Keeps::no, o.max_length, 0, 1 << 24,
            "Number of tokens that the model sees at once; longer contexts are cut from the left. 0: its positions.");
    g.choice("--bos", Keeps::no, o.bos, "Whether every text begins with the bos token. auto: as the tokenizer says.");
    g.text("--out", Keeps::no, o.out, "JSON file for the results.", "FILE");
    g.text("--requests", Keeps::no, o.requests, "JSONL file for the log-likelihood of every choice.", "FILE");
    g.text("--tokenizer", Keeps::no, o.tokenizer, "Tokenizer: a tokenizer.json. [the model folder's]");
    g.choice("--device", Keeps::no, o.device, "Device. auto: CUDA where it is usable.");
    g.choice("--dtype", Keeps::no, o.dtype, "Data type of weights and activations.", {DType::f32, DType::bf16});
    g.whole("--logits-mib", Keeps::no, o.logits_mib, 0, 1 << 20,
            "Largest chunk of logits, in MiB. 0: 1024 on CUDA, 32 on a CPU.");
    g.whole("--threads", Keeps::no, o.threads, 0, 1 << 16,
            "Number of CPU threads. 0: OMP_NUM_THREADS, or the cores divided among the ranks of this host.");
    add_gemm_rows(g, Keeps::no, o.gemm_tune, o.gemm_cache);
    return table;
}

}  // namespace rz
