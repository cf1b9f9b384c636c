#include "llama/train/options_export.h"

#include "kernels/runtime/request.h"

namespace rz {

static void add_written(OptionGroup& g, ExportOptions& o) {
    g.on_off("--overwrite", Keeps::no, o.overwrite, "Replace a model that --to holds already.");
    g.choice("--dtype", Keeps::no, o.dtype, "Data type of the weights that are written. [as stored]",
             {DType::f32, DType::bf16, DType::f16});
    g.whole("--max-shard-mib", Keeps::no, o.shard_above_mib, 0, int64_t(1) << 40,
            "Size in MiB above which a folder's weights become one file for each block, with an index. 0: always one "
            "file.")
        .was("shard-above");
    g.text("--tokenizer", Keeps::no, o.tokenizer, "Folder or tokenizer.json whose files are copied. [--from's]");
}

CommandTable command_table(AverageOptions& o) {
    CommandTable table{"average", "Write the mean of the weights of several models: average A B C --to D", {}};
    OptionGroup g(table.rows, "Average");
    g.text("--from", Keeps::no, o.from,
           "Models of one architecture, each a run's folder, a checkpoint, or any Hugging Face LLaMA; the words after "
           "`average` are the same. The first one's other files are copied.",
           "A,B,...")
        .required = true;
    g.text("--to", Keeps::no, o.to, "Folder to write.").required = true;
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
    g.text("--from", Keeps::no, o.from, "Model to export: a run's folder, a checkpoint, or any Hugging Face LLaMA.")
        .required = true;
    g.text("--to", Keeps::no, o.to, "Folder to write, or a file that ends with .gguf.").required = true;
    g.choice(
        "--format", Keeps::no, o.format,
        "hf: a folder for Hugging Face's libraries, vLLM and llama.cpp's converter; gguf: one file for llama.cpp.");
    g.on_off("--average", Keeps::no, o.average, "Export the average that a run keeps of its weights (--ema).");
    add_written(g, o);
    return table;
}

}  // namespace rz
