// Flags of generate, eval, export and average (options.h).

#include "kernels/runtime/request.h"
#include "llama/train/options.h"

namespace rz {

static void add_from(OptionGroup& g, ModelUse& o) {
    g.text("--from", ResumeClass::no, o.from, "Model to use: a run's folder, a checkpoint, or any Hugging Face LLaMA.")
        .required = true;
}

static void add_tokenizer_and_device(OptionGroup& g, ModelUse& o) {
    g.text("--tokenizer", ResumeClass::no, o.tokenizer, "Tokenizer: a tokenizer.json. [the model folder's]");
    g.choice("--device", ResumeClass::no, o.device, "Device. auto: CUDA where it is usable.");
    g.choice("--dtype", ResumeClass::no, o.dtype, "Data type of weights and activations.", {DType::f32, DType::bf16});
}

CommandTable command_table(GenerateOptions& o) {
    CommandTable table{"generate", "Continue a prompt with a trained model", {}};
    OptionGroup g(table.rows, "Generation");
    add_from(g, o);
    g.text("--prompt", ResumeClass::no, o.prompt, "Text to continue. Its special tokens (\"<s>\") are their ids.",
           "TEXT");
    g.text("--prompt-file", ResumeClass::no, o.prompt_file, "File with the text to continue; -: standard input.");
    g.on_off("--interactive", ResumeClass::no, o.interactive, "Continue each line of standard input.");
    g.on_off(
        "--chat", ResumeClass::no, o.chat,
        "The prompt is what a user says to the model, in the model's chat template; with --interactive each line is "
        "the next turn. Python 3 with jinja2 renders templates that the program does not know.");
    g.text("--system", ResumeClass::no, o.system, "System message of the chat.", "TEXT");
    g.on_off("--raw-prompt", ResumeClass::no, o.raw_prompt,
             "Put no begin token before the prompt: for text that a chat template has made.");
    g.on_off("--ignore-eos", ResumeClass::no, o.ignore_eos, "Write on after an end token.");
    g.whole("--num-samples", ResumeClass::no, o.num_samples, 1, 1 << 20,
            "Number of continuations, each with the next seed.");
    g.whole("--max-tokens", ResumeClass::no, o.max_tokens, 1, 1 << 24, "Largest number of tokens to generate.");
    g.real("--temperature", ResumeClass::no, o.temperature, 0, 100,
           "Temperature of the sampling. 0: always the likeliest token.");
    g.whole("--top-k", ResumeClass::no, o.top_k, 0, 1 << 30, "Number of likeliest tokens to choose from. 0: all.");
    g.real("--top-p", ResumeClass::no, o.top_p, 0, 1,
           "Probability that the likeliest tokens to choose from reach together.");
    g.seed("--seed", ResumeClass::no, o.seed, "Seed of the random choices.");
    add_tokenizer_and_device(g, o);
    g.whole("--threads", ResumeClass::no, o.threads, 0, 1 << 16,
            "Number of CPU threads. 0: one for a model below 64 MiB, else one for each idle core.");
    add_gemm_rows(g, ResumeClass::no, o.gemm_tune, o.gemm_cache);
    return table;
}

CommandTable command_table(EvalOptions& o) {
    CommandTable table{
        "eval", "Score a model on tasks and texts, as lm-evaluation-harness does; any number of ranks", {}};
    OptionGroup g(table.rows, "Evaluation");
    add_from(g, o);
    g.text("--tasks", ResumeClass::no, o.tasks,
           "Tasks: names of .jsonl files in --data, such as hellaswag,arc_easy,perplexity.", "LIST")
        .required = true;
    g.text("--data", ResumeClass::no, o.data, "Folder of the tasks, made by data_prep/prepare.py eval.");
    g.whole("--limit", ResumeClass::no, o.limit, 0, int64_t(1) << 40,
            "Number of examples of each task, from its beginning. 0: all.");
    g.whole("--batch", ResumeClass::no, o.batch, 1, 1 << 20, "Number of sequences at a time on each rank.");
    g.checked(
        "--zero", ResumeClass::no, "0|3",
        "3: each rank keeps a part of the parameters; units are gathered as they are read.",
        [](const std::string& text) { return text == "0" || text == "3" ? "" : "parameters are whole (0) or cut (3)"; },
        [&o](const std::string& text) { o.zero = text == "3" ? 3 : 0; });
    g.whole("--tp", ResumeClass::no, o.tp, 1, 1 << 20,
            "Number of neighbouring ranks that hold parts of the same tensors.");
    g.whole("--max-length", ResumeClass::no, o.max_length, 0, 1 << 24,
            "Number of tokens that the model sees at once; longer contexts are cut from the left. 0: its positions.");
    g.choice("--bos", ResumeClass::no, o.bos,
             "Whether every text begins with the bos token. auto: as the tokenizer says.");
    g.text("--out", ResumeClass::no, o.out, "JSON file for the results.", "FILE");
    g.text("--requests", ResumeClass::no, o.requests, "JSONL file for the log-likelihood of every choice.", "FILE");
    add_tokenizer_and_device(g, o);
    g.whole("--logits-mib", ResumeClass::no, o.logits_mib, 0, 1 << 20,
            "Largest chunk of logits, in MiB. 0: 1024 on CUDA, 32 on a CPU.");
    g.whole("--threads", ResumeClass::no, o.threads, 0, 1 << 16,
            "Number of CPU threads. 0: OMP_NUM_THREADS, or the cores divided among the ranks of this host.");
    add_gemm_rows(g, ResumeClass::no, o.gemm_tune, o.gemm_cache);
    return table;
}

static void add_written(OptionGroup& g, ExportOptions& o) {
    g.on_off("--overwrite", ResumeClass::no, o.overwrite, "Replace a model that --to holds already.");
    g.choice("--dtype", ResumeClass::no, o.dtype, "Data type of the weights that are written. [as stored]",
             {DType::f32, DType::bf16, DType::f16});
    g.whole("--max-shard-mib", ResumeClass::no, o.shard_above_mib, 0, int64_t(1) << 40,
            "Size in MiB above which a folder's weights become one file for each block, with an index. 0: always one "
            "file.")
        .was("shard-above");
    g.text("--tokenizer", ResumeClass::no, o.tokenizer, "Folder or tokenizer.json whose files are copied. [--from's]");
}

CommandTable command_table(AverageOptions& o) {
    CommandTable table{"average", "Write the mean of the weights of several models: average A B C --to D", {}};
    OptionGroup g(table.rows, "Average");
    g.text("--from", ResumeClass::no, o.from,
           "Models of one architecture, each a run's folder, a checkpoint, or any Hugging Face LLaMA; the words after "
           "`average` are the same. The first one's other files are copied.",
           "A,B,...")
        .required = true;
    g.text("--to", ResumeClass::no, o.to, "Folder to write.").required = true;
    add_written(g, o);
    return table;
}

std::vector<std::string> models_as_flag(std::vector<std::string> arguments) {
    size_t end = 1;
    std::string models;
    for (; end < arguments.size() && !arguments[end].starts_with("-"); ++end) {
        require_request(arguments[end].find(',') == std::string::npos,
                        "average: %s has a comma in its name, which parts one model from the next\n  rename it",
                        arguments[end].c_str());
        models += (end == 1 ? "" : ",") + arguments[end];
    }
    if (end == 1) return arguments;
    arguments.erase(arguments.begin() + 1, arguments.begin() + long(end));
    arguments.insert(arguments.begin() + 1, {"--from", models});
    return arguments;
}

CommandTable command_table(ExportOptions& o) {
    CommandTable table{"export", "Write a model for Hugging Face's libraries, vLLM and llama.cpp", {}};
    OptionGroup g(table.rows, "Export");
    g.text("--from", ResumeClass::no, o.from,
           "Model to export: a run's folder, a checkpoint, or any Hugging Face LLaMA.")
        .required = true;
    g.text("--to", ResumeClass::no, o.to, "Folder to write, or a file that ends with .gguf.").required = true;
    g.choice(
        "--format", ResumeClass::no, o.format,
        "hf: a folder for Hugging Face's libraries, vLLM and llama.cpp's converter; gguf: one file for llama.cpp.");
    g.on_off("--average", ResumeClass::no, o.average, "Export the average that a run keeps of its weights (--ema).");
    add_written(g, o);
    return table;
}

}  // namespace rz
