#include "llama/model/hf.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "kernels/philox.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/finite.h"
#include "llama/base/folder_file.h"
#include "llama/base/json.h"
#include "llama/base/text.h"

namespace rz {

namespace fs = std::filesystem;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = kWeightIndex;
constexpr const char* kConfig = "config.json";
constexpr const char* kHead = "lm_head.weight";

static std::string shape_text(const std::vector<int64_t>& shape) { return "[" + joined(shape) + "]"; }

// ---- finding a model ----

static std::string hub_cache() {
    const auto env = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr ? "" : value);
    };
    if (const std::string s = env("HF_HUB_CACHE"); !s.empty()) return s;
    if (const std::string s = env("HF_HOME"); !s.empty()) return s + "/hub";
    if (const std::string s = env("XDG_CACHE_HOME"); !s.empty()) return s + "/huggingface/hub";
    return env("HOME") + "/.cache/huggingface/hub";
}

// "org/name": letters, digits, '-', '_' and '.', no part that is only dots.
static bool is_repo_id(const std::string& s) {
    const size_t slash = s.find('/');
    if (slash == std::string::npos || slash == 0 || slash + 1 == s.size()) return false;
    for (const std::string& part : {s.substr(0, slash), s.substr(slash + 1)})
        if (part.find_first_not_of('.') == std::string::npos) return false;
    return std::all_of(s.begin(), s.end(), [&](const char& c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || &c == &s[slash];
    });
}

static std::string download_command(const std::string& repo) {
    const std::string name = repo.substr(repo.find('/') + 1);
    return format(
        "  hf download %s --include \"*.json\" \"*.safetensors\" \"tokenizer*\"\n"
        "or, without Python, into a folder that you then name instead (a sharded model has %s and the files it "
        "lists):\n"
        "  for f in config.json generation_config.json tokenizer.json tokenizer_config.json %s; do\n"
        "    curl -fL --create-dirs -o %s/$f https://huggingface.co/%s/resolve/main/$f; done",
        repo.c_str(), kIndex, kWeights, name.c_str(), repo.c_str());
}

static std::string trimmed(std::string s) {
    const size_t first = s.find_first_not_of(" \t\r\n"), last = s.find_last_not_of(" \t\r\n");
    return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

static std::string resolve_repo(const std::string& repo, const std::string& revision) {
    std::string folder = "models--" + repo;
    folder.replace(folder.find('/'), 1, "--");
    const std::string root = hub_cache() + "/" + folder;
    require(is_folder(root), "%s: no such folder, and no such repo in the Hugging Face cache (%s). Fetch it with\n%s",
            repo.c_str(), hub_cache().c_str(), download_command(repo).c_str());
    std::string snapshot = revision;
    if (is_file(root + "/refs/" + revision)) snapshot = trimmed(read_file(root + "/refs/" + revision));
    require(!snapshot.empty() && snapshot.find('/') == std::string::npos && snapshot[0] != '.',
            "%s: refs/%s names no snapshot", root.c_str(), revision.c_str());
    const std::string path = root + "/snapshots/" + snapshot;
    require(has_file(path, kConfig), "%s: the cache has no config.json of revision %s (%s). Fetch it with\n%s",
            repo.c_str(), revision.c_str(), path.c_str(), download_command(repo).c_str());
    return path;
}

std::string resolve_model(const std::string& spec) {
    if (is_folder(spec)) {
        require(has_file(spec, kConfig), "%s: holds no config.json, so it is not a Hugging Face model", spec.c_str());
        return spec;
    }
    if (is_file(spec)) {
        const std::string file = fs::path(spec).filename();
        require(file == kConfig || file == kWeights || file == kIndex,
                "%s: name the model's folder, or its %s, %s or %s", spec.c_str(), kConfig, kWeights, kIndex);
        return resolve_model(parent_folder(spec));
    }
    const size_t at = spec.find('@');
    const std::string repo = spec.substr(0, at);
    require(is_repo_id(repo), "%s: no such folder or file, and not a repo id of the form org/name", spec.c_str());
    const std::string revision = at == std::string::npos ? "main" : spec.substr(at + 1);
    require(!revision.empty() && revision.find('/') == std::string::npos && revision[0] != '.',
            "%s: bad revision \"%s\"", spec.c_str(), revision.c_str());
    return resolve_repo(repo, revision);
}

ModelConfig load_config(const std::string& folder) {
    const std::string path = folder + "/" + kConfig;
    require(has_file(folder, kConfig), "%s: no such file", path.c_str());
    return config_from_json(read_file(path, kModelConfig), path);
}

// ---- reading ----

std::map<std::string, std::string> parse_weight_map(std::string_view text, const std::string& path) {
    const Json json = parse_json(text, path, kWeightIndexFile);
    const Json& map = json_at(json, "weight_map", path);
    require(map.is_object() && !map.empty(), "%s: weight_map must be an object of tensor and file names", path.c_str());
    std::map<std::string, std::string> files;
    for (const auto& [tensor, value] : map.items()) {
        const std::string file = json_string(value, tensor.c_str(), path);
        const bool plain = !file.empty() && file.find_first_of("/\\") == std::string::npos &&
                           file.find("..") == std::string::npos && file.find('\0') == std::string::npos;
        require(plain, "%s: weight_map places %s in %s: only plain file names of the same folder are allowed",
                path.c_str(), printable_line(tensor).c_str(), json_excerpt(value).c_str());
        files[tensor] = file;
    }
    return files;
}

void HfWeights::open_shards(const std::string& folder) {
    const std::map<std::string, std::string> index =
        parse_weight_map(read_file(folder + "/" + kIndex, kWeightIndexFile), folder + "/" + kIndex);
    std::set<std::string> names;
    for (const auto& [tensor, file] : index) names.insert(file);
    std::map<std::string, const Safetensors*> open;
    files_.reserve(names.size());  // places_ points into it
    for (const std::string& file : names) {
        if (!has_file(folder, file)) {
            problems_.push_back("missing file: " + printable_line(file) + ", which the index lists");
            continue;
        }
        files_.emplace_back(folder + "/" + file);
        open[file] = &files_.back();
        for (const StoredTensor& t : files_.back().tensors()) {
            const auto it = index.find(t.name);
            if (it == index.end())
                problems_.push_back("not in the index: " + printable_line(t.name) + ", stored in " + file);
            else if (it->second != file)
                problems_.push_back("stored in " + file + ": " + printable_line(t.name) +
                                    ", which the index places in " + it->second);
        }
    }
    for (const auto& [tensor, file] : index)
        if (open.count(file) && open[file]->find(tensor) == nullptr)
            problems_.push_back("not in " + file + ": " + printable_line(tensor) + ", which the index places there");
}

void HfWeights::index_tensors() {
    for (const Safetensors& file : files_)
        for (const StoredTensor& t : file.tensors()) {
            const auto [it, is_new] = places_.emplace(t.name, TensorInFile{&file, &t});
            if (!is_new)
                problems_.push_back("stored twice: " + printable_line(t.name) + ", in " + it->second.file->path() +
                                    " and " + file.path());
        }
}

void HfWeights::compare_with(const ParamTable& table) {
    int64_t elements[std::size(kDTypes)] = {};
    for (const Tensor& t : table.tensors()) {
        const auto it = places_.find(t.name);
        if (it == places_.end()) {
            const char* hint =
                t.name == kHead ? "; if the head is the embedding, config.json must say tie_word_embeddings" : "";
            problems_.push_back("missing: " + t.name + " " + shape_text(t.shape) + hint);
            continue;
        }
        const StoredTensor& stored = *it->second.tensor;
        const bool grows = grow_ && (&t == &table.embedding() || &t == &table.head()) && stored.shape.size() == 2 &&
                           stored.shape[1] == t.shape[1] && stored.shape[0] < t.shape[0];
        if (grows)
            new_rows_[t.name] = {
                .stored = stored.shape[0] * t.shape[1], .stream = new_rows_.size(), .mean = {}, .noise = 0};
        if (stored.shape != t.shape && !grows)
            problems_.push_back("wrong shape: " + t.name + " is " + shape_text(stored.shape) +
                                ", config.json makes it " + shape_text(t.shape));
        if (!stored.dtype())
            problems_.push_back("wrong type: " + t.name + " is " + stored.type +
                                ", only F32, BF16 and F16 are weights");
        else
            elements[int(*stored.dtype())] += t.size;
    }
    for (const Safetensors& file : files_)
        for (const StoredTensor& t : file.tensors()) {
            const bool ignored = t.name.ends_with(".rotary_emb.inv_freq") || (table.tied() && t.name == kHead);
            if (table.find(t.name) == nullptr && !ignored)
                problems_.push_back("unexpected: " + printable_line(t.name) + " " + t.type + " " + shape_text(t.shape));
        }
    dtype_ = DType(std::max_element(std::begin(elements), std::end(elements)) - elements);
}

void HfWeights::check_stored_head(const ParamTable& table) {
    const auto it = places_.find(kHead);
    if (!table.tied() || it == places_.end()) return;
    const TensorInFile& head = it->second;
    const TensorInFile& embedding = place(table.embedding());
    const bool same = head.tensor->type == embedding.tensor->type && head.tensor->shape == embedding.tensor->shape &&
                      !std::memcmp(head.file->data(*head.tensor), embedding.file->data(*embedding.tensor),
                                   size_t(head.tensor->bytes()));
    if (!same)
        warnings_.push_back(head.file->path() +
                            ": lm_head.weight differs from the embedding and is ignored, since config.json says "
                            "tie_word_embeddings");
}

// One file, or one for each unit.
void HfWeights::open_average(const std::string& folder) {
    std::vector<std::string> names;
    if (is_folder(folder + "/optimizer"))
        for (const std::string& name : names_in(folder + "/optimizer"))
            if (name.starts_with("ema") && name.ends_with(".safetensors")) names.push_back(name);
    require_request(!names.empty(),
                    "%s holds no average of the weights (optimizer/ema.safetensors): train with --ema 0.999, or leave "
                    "--average out",
                    folder.c_str());
    std::sort(names.begin(), names.end());
    files_.reserve(names.size());  // places_ points into it
    for (const std::string& name : names) files_.emplace_back(folder + "/optimizer/" + name);
}

HfWeights::HfWeights(const std::string& folder, const ParamTable& table, const uint64_t* grow, bool average) {
    if (grow != nullptr) grow_ = *grow;
    if (average)
        open_average(folder);
    else if (has_file(folder, kWeights))
        files_.emplace_back(folder + "/" + kWeights);
    else if (has_file(folder, kIndex))
        open_shards(folder);
    else
        fail(
            "%s: holds neither %s nor %s%s", folder.c_str(), kWeights, kIndex,
            is_file(folder + "/pytorch_model.bin") || is_file(folder + "/pytorch_model.bin.index.json")
                ? ", only pytorch_model.bin: load it in transformers and call save_pretrained, which writes safetensors"
                : "");
    index_tensors();
    compare_with(table);
    if (!problems_.empty()) {
        constexpr size_t kShown = 40;
        std::string list;
        for (size_t i = 0; i < std::min(problems_.size(), kShown); ++i) list += "\n  " + problems_[i];
        if (problems_.size() > kShown) list += format("\n  and %zu more", problems_.size() - kShown);
        fail("%s: the weights do not match the model (%zu problems):%s", folder.c_str(), problems_.size(),
             list.c_str());
    }
    check_stored_head(table);
    for (const Tensor& t : table.tensors())
        if (new_rows_.count(t.name)) make_rows(t);
}

// Mean and spread of the rows that are there, row by row in double.
void HfWeights::make_rows(const Tensor& t) {
    const TensorInFile& p = place(t);
    NewRows& rows = new_rows_.at(t.name);
    const int64_t columns = t.shape[1], count = rows.stored / columns;
    std::vector<double> sum(static_cast<size_t>(columns), 0), squares = sum;
    std::vector<float> row(static_cast<size_t>(columns));
    for (int64_t r = 0; r < count; ++r) {
        p.file->read(*p.tensor, r * columns, columns, DType::f32, row.data());
        require_finite(row.data(), r * columns, columns, DType::f32, p.file->path(), t.name);
        for (size_t c = 0; c < row.size(); ++c) sum[c] += row[c], squares[c] += double(row[c]) * row[c];
    }
    double variance = 0;
    for (size_t c = 0; c < row.size(); ++c) {
        const double mean = sum[c] / double(count);
        rows.mean.push_back(float(mean));
        variance += std::max(squares[c] / double(count) - mean * mean, 0.0) / double(columns);
    }
    rows.noise = 0.01f * float(std::sqrt(variance));
    warnings_.push_back(format("%s: %ld new rows are the mean of the %ld old ones, with noise of %.2g", t.name.c_str(),
                               t.shape[0] - count, count, rows.noise));
}

const HfWeights::TensorInFile& HfWeights::place(const Tensor& t) const {
    const auto it = places_.find(t.name);
    require(it != places_.end(), "%s: not a tensor of this model", t.name.c_str());
    return it->second;
}

DType HfWeights::stored_dtype(const Tensor& t) const { return *place(t).tensor->dtype(); }

void HfWeights::read(const Tensor& t, int64_t first, int64_t count, DType dtype, void* out) const {
    const TensorInFile& p = place(t);
    const auto grown = new_rows_.find(t.name);
    int64_t old = count;
    if (grown != new_rows_.end()) {
        require(first >= 0 && count >= 0 && first <= t.size - count, "%s: elements [%ld, %ld) asked of %ld",
                t.name.c_str(), first, first + count, t.size);
        old = std::clamp<int64_t>(grown->second.stored - first, 0, count);
    }
    if (old > 0 || count == 0) p.file->read(*p.tensor, first, old, dtype, out);
    require_finite(out, first, old, dtype, p.file->path(), t.name);
    if (old == count) return;
    const NewRows& rows = grown->second;
    constexpr uint64_t kNewRowsStream = 0x6e6577726f7773ull;  // apart from the streams that initialise tensors
    std::vector<float> values(static_cast<size_t>(count - old));
    for (size_t i = 0; i < values.size(); ++i) {
        const int64_t element = first + old + int64_t(i);
        float z[4];
        philox_normal4(*grow_, uint64_t(element / 4), kNewRowsStream + rows.stream, z);
        values[i] = rows.mean[size_t(element % t.shape[1])] + rows.noise * z[element % 4];
    }
    convert(values.data(), DType::f32, static_cast<char*>(out) + old * size_of(dtype), dtype, count - old,
            t.name.c_str());
}

// ---- writing ----

std::vector<TensorSpec> tensor_specs(const ParamTable& table, DType dtype) {
    std::vector<TensorSpec> specs;
    for (const Tensor& t : table.tensors()) specs.push_back({t.name, safetensors_type(dtype), t.shape});
    return specs;
}

void prepare_model_folder(const std::string& folder, const TokenizerFiles& tokenizer) {
    make_folder(folder);
    remove_left_temporaries(folder);
    tokenizer.write_to(folder);
}

std::vector<TensorFile> tensor_files(const std::string& stem, const ParamTable& table, DType dtype, int64_t shard_above,
                                     const std::function<std::vector<int64_t>(const Tensor&)>& shape) {
    std::vector<TensorSpec> all = tensor_specs(table, dtype);
    for (size_t t = 0; t < all.size(); ++t) all[t].shape = shape(table.tensors()[t]);
    const auto file_of = [&](std::string path, int first, int end) {
        TensorFile file{std::move(path)};
        std::vector<TensorSpec> specs;
        for (int t = first; t < end; ++t)
            if (!all[size_t(t)].shape.empty()) file.tensors.push_back(t), specs.push_back(all[size_t(t)]);
        file.layout = layout_safetensors(specs);
        return file;
    };
    TensorFile one = file_of(stem + ".safetensors", 0, int(all.size()));
    if (shard_above == 0 || one.layout.file_size <= shard_above || table.units().size() == 1) return {std::move(one)};
    std::vector<TensorFile> files;
    for (const Unit& u : table.units())
        files.push_back(
            file_of(format("%s-%05zu-of-%05zu.safetensors", stem.c_str(), files.size() + 1, table.units().size()),
                    u.first_tensor, u.first_tensor + u.tensors));
    return files;
}

std::string weight_index(const std::vector<TensorFile>& files, const ParamTable& table) {
    int64_t bytes = 0;
    OrderedJson map = OrderedJson::object();
    for (const TensorFile& f : files)
        for (size_t i = 0; i < f.tensors.size(); ++i) {
            bytes += f.layout.sizes[i];
            map[table.tensors()[size_t(f.tensors[i])].name] = f.path;
        }
    const OrderedJson index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
    return index.dump(2) + "\n";
}

void save_model(const std::string& folder, const ModelConfig& config, const ParamTable& table, DType dtype,
                const WeightSource& source, const TokenizerFiles& tokenizer, int64_t shard_above) {
    constexpr int64_t kPiece = 1 << 22;  // elements
    require(!is_file(folder + "/" + kIndex), "%s: holds a sharded model (%s): choose another folder", folder.c_str(),
            kIndex);
    prepare_model_folder(folder, tokenizer);
    int64_t largest = 0;
    for (const Tensor& t : table.tensors()) largest = std::max(largest, std::min(t.size, kPiece));
    std::vector<char> piece(size_t(largest * size_of(dtype)));
    const std::vector<TensorSpec> specs = tensor_specs(table, dtype);
    const std::vector<TensorFile> files = tensor_files("model", table, dtype, shard_above);
    for (const TensorFile& file : files) {
        const auto begin = specs.begin() + file.tensors.front();  // all of them are wanted
        SafetensorsWriter writer(folder + "/" + file.path, {begin, begin + int64_t(file.tensors.size())});
        for (size_t i = 0; i < file.tensors.size(); ++i) {
            const Tensor& t = table.tensors()[size_t(file.tensors[i])];
            for (int64_t first = 0; first < t.size; first += kPiece) {
                const int64_t count = std::min(kPiece, t.size - first);
                source(t, first, count, piece.data());
                writer.write(i, first * size_of(dtype), piece.data(), count * size_of(dtype));
            }
        }
        writer.commit();
    }
    if (files.size() > 1) {
        fs::remove(folder + "/" + kWeights);  // of an earlier model: readers would take it
        write_file_atomically(folder + "/" + kIndex, weight_index(files, table));
    }
    write_file_atomically(folder + "/" + kConfig, config_to_json(config, dtype));
}

// ---- files beside the weights ----

constexpr const char* kGeneration = "generation_config.json";

// Files that make up a tokenizer, or that only make sense with one.
static constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",     "merges.txt",      "chat_template.jinja",   "chat_template.json"};

static bool is_tokenizer_file(const std::string& name) {
    return std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) != std::end(kTokenizerFiles);
}

static bool is_weights_file(const std::string& name) {
    if (name == kIndex) return true;
    for (const char* end : {".safetensors", ".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".gguf", ".h5",
                            ".msgpack", ".onnx", ".tmp"})
        if (name.ends_with(end)) return true;
    return false;
}

// Why a file is not what its name says that it is; "": it is, or its name says nothing.
static std::string not_what_it_says(const std::string& name, std::string_view content) {
    const auto ends = [&](std::initializer_list<const char*> all) {
        return std::any_of(all.begin(), all.end(), [&](const char* end) { return name.ends_with(end); });
    };
    if (ends({".json"})) try {
            parse_json(content, name, kSideFile);
            return "";
        } catch (const Error&) {
            return "it is not valid JSON";
        }
    for (const auto& [end, begins] : {std::pair{".model", std::string_view("\n")},
                                      {".png", "\x89PNG"},
                                      {".jpg", "\xff\xd8\xff"},
                                      {".jpeg", "\xff\xd8\xff"},
                                      {".gif", "GIF8"},
                                      {".pdf", "%PDF"},
                                      {".webp", "RIFF"}})
        if (name.ends_with(end)) return content.starts_with(begins) ? "" : format("it is no %s file", end);
    const size_t dot = name.find_last_of("./");
    const bool text = dot == std::string::npos || name[dot] == '/' ||
                      ends({".txt", ".md", ".jinja", ".jsonl", ".py", ".yaml", ".yml", ".toml", ".svg", ".csv"});
    if (!text) return "it is of no kind that is known";
    const bool plain = std::none_of(content.begin(), content.end(), [](char c) {
        return (uint8_t(c) < 0x20 && c != '\n' && c != '\t' && c != '\r' && c != '\f') || c == 0x7f;
    });
    return plain && valid_utf8(content) ? "" : "it is no text";
}

// Files of a model's folder that are neither weights nor config.json, nor what a run of this program puts there; those
// of its folders as "folder/name".
static std::vector<std::string> side_files(const std::string& folder, const std::string& inside = "") {
    constexpr int64_t kDeepest = 8, kMost = 10'000;  // a folder of data is not a model's
    std::vector<std::string> found;
    const std::vector<std::string> names = names_in(folder + "/" + inside);
    require(!names.empty() || !inside.empty(), "%s: the folder of the model is not there any more", folder.c_str());
    for (const std::string& name : names) {
        const std::string path = inside + name;
        std::error_code none;
        if (name[0] == '.' || is_weights_file(name) || is_temporary_name(name)) continue;
        if (inside.empty() && (name == kConfig || name == "manifest.json")) continue;
        const bool named = inside.empty() && (is_tokenizer_file(name) || name == kGeneration);  // then no folder
        if (named || !is_folder(folder + "/" + path)) {
            require(has_file(folder, path), "%s/%s: its folder lists it, and it can't be looked at", folder.c_str(),
                    path.c_str());
            found.push_back(path);
            continue;
        }
        if (fs::is_symlink(folder + "/" + path, none)) continue;
        const auto has = [&](const char* file) { return is_file(folder + "/" + path + "/" + file); };
        if (has(kConfig) || has("manifest.json") || has("run_status.json")) continue;
        require(std::count(path.begin(), path.end(), '/') < kDeepest, "%s/%s: folders in it are more than %ld deep",
                folder.c_str(), path.c_str(), kDeepest);
        const std::vector<std::string> deeper = side_files(folder, path + "/");
        found.insert(found.end(), deeper.begin(), deeper.end());
        require(int64_t(found.size()) <= kMost,
                "%s: more than %ld files lie beside the weights, and each checkpoint would carry them\n"
                "  move what does not belong to the model elsewhere",
                folder.c_str(), kMost);
    }
    return found;
}

void TokenizerFiles::take(const std::string& folder, const std::string& name) {
    const std::string path = folder + "/" + name;
    const bool needed = is_tokenizer_file(name) || name == kGeneration;
    std::error_code none;
    if (!needed && fs::file_size(path, none) > uintmax_t(kSideFile.bytes) && !none) {
        left_out_.push_back(
            format("%s is left out: it has more than %s", path.c_str(), human_bytes(kSideFile.bytes).c_str()));
        return;
    }
    std::string content = read_file(path, kSideFile);
    const std::string problem = not_what_it_says(name, content);
    require(problem.empty() || !needed, "%s: %s\n  it would be copied beside the weights: put the right file there",
            path.c_str(), problem.c_str());
    if (problem.empty())
        files_[name] = std::move(content);
    else
        left_out_.push_back(format("%s is left out: %s", path.c_str(), problem.c_str()));
}

TokenizerFiles::TokenizerFiles(const std::string& from) {
    if (from.empty()) return;
    const std::string folder = is_folder(from) ? from : parent_folder(from);
    require(is_folder(folder), "%s: no such folder to take the tokenizer from", folder.c_str());
    // Its name is its own: what else lies there may be another tokenizer's, but for what Tokenizer::load() reads, too.
    if (is_file(from) && !is_tokenizer_file(fs::path(from).filename())) {
        std::string content = read_file(from, kSideFile);
        const bool json = content.find('{') == content.find_first_not_of(" \t\r\n");
        files_.emplace(json ? "tokenizer.json" : "tokenizer.model", std::move(content));
        if (has_file(folder, "tokenizer_config.json")) take(folder, "tokenizer_config.json");
        return;
    }
    for (const char* file : kTokenizerFiles)
        if (has_file(folder, file)) take(folder, file);
    if (has_file(folder, kGeneration)) take(folder, kGeneration);
}

TokenizerFiles TokenizerFiles::beside_model(const std::string& folder) {
    TokenizerFiles files;
    for (const std::string& name : side_files(folder)) files.take(folder, name);
    return files;
}

bool TokenizerFiles::has_tokenizer() const {
    const auto has = [&](const char* name) { return files_.count(name) > 0; };
    return has("tokenizer.json") || has("tokenizer.model");
}

void TokenizerFiles::replace_tokenizer(const TokenizerFiles& from) {
    std::erase_if(files_, [](const auto& file) { return is_tokenizer_file(file.first); });
    for (const auto& [name, content] : from.files_) files_.emplace(name, content);  // generation_config.json: own first
}

// Strict, since it is written again.
static OrderedJson parse_object(const std::string& text, const std::string& name) {
    parse_json(text, name);
    OrderedJson json = OrderedJson::parse(text);
    require(json.is_object(), "%s: expected a JSON object", name.c_str());
    return json;
}

void TokenizerFiles::add_chat_template(const TokenizerFiles& from) {
    constexpr const char* kTemplate = "chat_template";
    const auto config_of = [](const TokenizerFiles& files) {
        const auto found = files.files_.find("tokenizer_config.json");
        return found == files.files_.end() ? OrderedJson::object() : parse_object(found->second, found->first);
    };
    OrderedJson own = config_of(*this);
    const OrderedJson theirs = config_of(from);
    if (own.contains(kTemplate) || files_.count("chat_template.jinja") || files_.count("chat_template.json")) return;
    for (const char* file : {"chat_template.jinja", "chat_template.json"})
        if (const auto found = from.files_.find(file); found != from.files_.end()) files_[file] = found->second;
    if (!theirs.contains(kTemplate)) return;
    own[kTemplate] = theirs[kTemplate];
    files_["tokenizer_config.json"] = own.dump(2) + "\n";
}

void TokenizerFiles::set_token_ids(const ModelConfig& config) {
    const auto found = files_.find(kGeneration);
    if (found == files_.end() && config.eos.empty()) return;
    OrderedJson json = {{"_from_model_config", true}};
    if (found != files_.end()) json = parse_object(found->second, kGeneration);
    if (config.bos >= 0) json["bos_token_id"] = config.bos;
    if (config.eos.size() == 1) json["eos_token_id"] = config.eos[0];
    if (config.eos.size() > 1) json["eos_token_id"] = config.eos;
    files_[kGeneration] = json.dump(2) + "\n";
}

void TokenizerFiles::write_to(const std::string& folder) const {
    for (const auto& [name, content] : files_) {
        if (const size_t slash = name.rfind('/'); slash != std::string::npos)
            make_folder(folder + "/" + name.substr(0, slash));
        write_file_atomically(folder + "/" + name, content);
    }
}

void read_generation_config(const std::string& folder, ModelConfig& config) {
    const std::string path = folder + "/" + kGeneration;
    if (!has_file(folder, kGeneration)) return;
    const Json json = read_json(path, kModelConfig);
    require(json.is_object(), "%s: expected a JSON object, found %s", path.c_str(), json_excerpt(json).c_str());
    const auto read = [&](const Json& value, const char* key) {
        return json_int(value, key, 0, config.vocab - 1, path);
    };
    if (const Json* bos = json_find(json, "bos_token_id")) config.bos = read(*bos, "bos_token_id");
    const Json* eos = json_find(json, "eos_token_id");
    if (eos == nullptr) return;
    config.eos.clear();
    if (!eos->is_array()) config.eos.push_back(read(*eos, "eos_token_id"));
    if (eos->is_array())
        for (const Json& id : *eos) config.eos.push_back(read(id, "eos_token_id"));
}

void remove_model(const std::string& folder) {
    for (const std::string& name : names_in(folder)) {
        const bool weights = name.starts_with("model") && name.ends_with(".safetensors");
        if (weights || name == kIndex || name == kConfig || name == kGeneration || is_tokenizer_file(name))
            fs::remove(folder + "/" + name);
    }
    fsync_folder(folder);
}

}  // namespace rz
