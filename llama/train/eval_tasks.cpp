#include "llama/train/eval_tasks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/base/text.h"

namespace rz {
namespace {

constexpr int64_t kMaxCount = int64_t(1) << 48;

size_t length_without_trailing_space(const std::string& text) {
    size_t end = 0;
    for (size_t at = 0; at < text.size();) {
        const unicode::Utf8Char c = unicode::next_char(text, at);
        at += size_t(c.bytes);
        if (!unicode::is_python_space(c.code_point)) end = at;
    }
    return end;
}

double characters(const std::string& text) {
    return double(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

std::vector<std::string> strings(const Json& value, const char* key, const std::string& where) {
    require(value.is_array() && !value.empty(), "%s: \"%s\" must be an array of texts, not %s", where.c_str(), key,
            json_excerpt(value).c_str());
    std::vector<std::string> out;
    for (const Json& one : value) out.push_back(json_string(one, key, where));
    return out;
}

// As Hugging Face's encode() does.
std::vector<int32_t> encode_text(const Tokenizer& t, const std::string& text, bool bos) {
    std::vector<int32_t> ids = t.encode(text, /*allow_special=*/true);
    if (bos && t.bos_id() >= 0 && !std::string_view(text).starts_with(t.decode(std::vector{t.bos_id()})))
        ids.insert(ids.begin(), t.bos_id());
    return ids;
}

// Stands where a text has nothing before it.
int32_t prefix_token(const Tokenizer& t, const std::string& where) {
    const int32_t id = t.bos_id() >= 0 ? t.bos_id() : t.eos_id();
    require(id >= 0, "%s: nothing stands before this text, and the tokenizer has no bos and no eos to put there",
            where.c_str());
    return id;
}

size_t first_largest(const std::vector<double>& values) {
    return size_t(std::max_element(values.begin(), values.end()) - values.begin());
}

void add_mean(std::vector<Metric>& out, const std::string& name, const std::vector<double>& values) {
    const double n = double(values.size()), mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
    double squares = 0;
    for (const double v : values) squares += (v - mean) * (v - mean);
    out.push_back({name, mean, n > 1 ? std::sqrt(squares / (n - 1) / n) : NAN});
}

}  // namespace

// ---- reading --------------------------------------------------------------------------------------------------------

EvalTask::EvalTask(const std::string& folder, const std::string& name, int64_t limit)
    : name_(name), path_(folder + "/" + name + ".jsonl") {
    const std::string text = read_file(path_, kEvalTask);
    int64_t number = 0;
    for (const std::string& line : split(text, '\n')) {
        if (limit > 0 && examples() == limit) break;
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        lines_.push_back(number);
        read_line(line, path_ + ":" + std::to_string(number));
    }
    require(!examples_.empty(), "%s: no example in it; prepare it again", path_.c_str());
}

std::string EvalTask::where(size_t example) const { return path_ + ":" + std::to_string(lines_[example]); }

void EvalTask::read_line(const std::string& line, const std::string& where) {
    const Json row = parse_json(line, where, kEvalTask);
    require(row.is_object(), "%s: an example is a JSON object, not %s", where.c_str(), json_excerpt(row).c_str());
    Example e;
    Kind kind = Kind::choices;
    const auto choices = [&](const Json& of, std::vector<Request>& to) {
        const std::string context = json_string_at(of, "context", where);
        for (const std::string& choice : strings(json_at(of, "choices", where), "choices", where))
            to.push_back({context, " " + choice, characters(choice)});
    };
    if (row.contains("text")) {
        kind = Kind::rolling;
        e.text = json_string(row["text"], "text", where);
        e.words = json_int_at(row, "words", 0, kMaxCount, where);
        e.bytes = json_int_at(row, "bytes", 0, kMaxCount, where);
    } else if (row.contains("choices")) {
        choices(row, e.requests);
        if (const Json* llmc = json_find(row, "llmc")) {
            choices(*llmc, e.llmc);
            require(e.llmc.size() == e.requests.size(), "%s: %zu choices, but \"llmc\" has %zu", where.c_str(),
                    e.requests.size(), e.llmc.size());
        }
        normalised_ = true;
    } else {
        const std::string continuation = json_string_at(row, "continuation", where);
        const Json& context = json_at(row, "context", where);
        if (context.is_array()) {
            for (const std::string& each : strings(context, "context", where))
                e.requests.push_back({each, continuation, 1});
        } else {
            kind = Kind::continuation;
            e.requests.push_back({json_string(context, "context", where), continuation, 1});
        }
    }
    if (kind == Kind::choices) {
        require(e.requests.size() > 1, "%s: one choice is none; give at least two", where.c_str());
        e.gold = json_int_at(row, "gold", 0, int64_t(e.requests.size()) - 1, where);
    }
    if (examples_.empty()) kind_ = kind;
    require(kind == kind_, "%s: another kind of example than the first one of this file", where.c_str());
    require(examples_.empty() || e.llmc.empty() == examples_[0].llmc.empty(),
            "%s: \"llmc\" stands in some examples and not in others", where.c_str());
    examples_.push_back(std::move(e));
}

std::vector<EvalTask> load_eval_tasks(const std::string& folder, const std::string& names, int64_t limit) {
    std::vector<std::string> there, asked;
    for (const std::string& file : names_in(folder))
        if (file.size() > 6 && file.ends_with(".jsonl")) there.push_back(file.substr(0, file.size() - 6));
    for (const std::string& name : split(names, ','))
        if (!name.empty()) asked.push_back(name);
    require_request(!asked.empty(), "no evaluation task is named: give names such as hellaswag,perplexity");
    std::vector<EvalTask> tasks;
    for (size_t i = 0; i < asked.size(); ++i) {
        const std::string& name = asked[i];
        require_request(std::find(asked.begin(), asked.begin() + int64_t(i), name) == asked.begin() + int64_t(i),
                        "evaluation task %s is named twice", name.c_str());
        if (std::find(there.begin(), there.end(), name) == there.end())
            fail("evaluation task %s: %s/%s.jsonl is not there%s\n  python3 data_prep/prepare.py eval %s --out %s",
                 name.c_str(), folder.c_str(), name.c_str(),
                 there.empty() ? "" : ("; the folder has " + joined(there)).c_str(), name.c_str(), folder.c_str());
        tasks.emplace_back(folder, name, limit);
    }
    return tasks;
}

// ---- tokens ---------------------------------------------------------------------------------------------------------

void EvalTask::add_item(std::vector<int32_t> tokens, int64_t scored, const EncodeOptions& o, const std::string& at) {
    require(scored > 0, "%s: the continuation has no token of its own", at.c_str());
    require(scored <= o.max_length, "%s: the continuation has %ld tokens, and the model sees %ld\n  raise --max-length",
            at.c_str(), scored, o.max_length);
    if (const int64_t most = o.max_length + 1; int64_t(tokens.size()) > most)
        tokens.erase(tokens.begin(), tokens.end() - most);
    items_.push_back({std::move(tokens), scored});
}

void EvalTask::encode_pair(const Request& r, const Tokenizer& t, const EncodeOptions& o, const std::string& at) {
    if (r.context.empty()) {
        std::vector<int32_t> ids = t.encode(r.continuation, /*allow_special=*/true);
        const int32_t prefix = prefix_token(t, at);
        if (ids.empty() || ids[0] != prefix) ids.insert(ids.begin(), prefix);
        const int64_t scored = int64_t(ids.size()) - 1;
        return add_item(std::move(ids), scored, o, at);
    }
    // Spaces at the end of the context belong to the next word.
    const std::string context = r.context.substr(0, length_without_trailing_space(r.context));
    std::vector<int32_t> ids = encode_text(t, context, o.bos);
    const std::vector<int32_t> whole = encode_text(t, r.context + r.continuation, o.bos);
    const int64_t before = int64_t(ids.size()), scored = int64_t(whole.size()) - before;
    if (ids.empty()) ids.push_back(prefix_token(t, at));  // the context is white space alone
    // A token may span the end of the context; the context then keeps its own tokens, and the rest of the whole counts.
    if (scored > 0) ids.insert(ids.end(), whole.begin() + before, whole.end());
    add_item(std::move(ids), scored, o, at);
}

void EvalTask::encode_apart(const Request& r, const Tokenizer& t, const EncodeOptions& o, const std::string& at) {
    std::vector<int32_t> ids = t.encode(r.context);
    const std::vector<int32_t> ending = t.encode(r.continuation);
    require(!ids.empty(), "%s: llm.c's variant needs a context", at.c_str());
    ids.insert(ids.end(), ending.begin(), ending.end());
    add_item(std::move(ids), int64_t(ending.size()), o, at);
}

// Windows of max_length predicted tokens; the first one begins with the prefix, the others see one token before theirs,
// and the last one as many as fit.
void EvalTask::encode_rolling(const std::string& text, const Tokenizer& t, const EncodeOptions& o) {
    const std::vector<int32_t> ids = encode_text(t, text, o.bos);
    const int64_t n = int64_t(ids.size());
    for (int64_t done = 0; done < n;) {
        const int64_t end = std::min(n, done + o.max_length), scored = end - done;
        const int64_t begin = done == 0 ? 0 : end - o.max_length - 1;
        std::vector<int32_t> tokens(ids.begin() + begin, ids.begin() + end);
        if (done == 0) tokens.insert(tokens.begin(), prefix_token(t, path_));
        items_.push_back({std::move(tokens), scored});
        done = end;
    }
}

void EvalTask::encode(const Tokenizer& t, const EncodeOptions& o) {
    items_.clear();
    for (size_t i = 0; i < examples_.size(); ++i) {
        Example& e = examples_[i];
        e.first_item = items_.size();
        if (kind_ == Kind::rolling) encode_rolling(e.text, t, o);
        for (const Request& r : e.requests) encode_pair(r, t, o, where(i));
        for (const Request& r : e.llmc) encode_apart(r, t, o, where(i));
        e.items = items_.size() - e.first_item;
    }
    require(!items_.empty(), "%s: its texts have no token", path_.c_str());
}

// ---- metrics --------------------------------------------------------------------------------------------------------

std::vector<Metric> EvalTask::choice_metrics(std::span<const Score> scores) const {
    std::vector<double> acc, acc_norm, llmc_acc, llmc_acc_norm;
    for (const Example& e : examples_) {
        const size_t n = e.requests.size();
        std::vector<double> sum, by_characters, apart, by_tokens;
        for (size_t c = 0; c < e.items; ++c) {
            const size_t item = e.first_item + c;
            const double log_p = scores[item].log_p;
            (c < n ? sum : apart).push_back(log_p);
            if (c < n)
                by_characters.push_back(log_p / e.requests[c].characters);
            else
                by_tokens.push_back(log_p / double(items_[item].scored));
        }
        const auto right = [&](const std::vector<double>& of) {
            return int64_t(first_largest(of)) == e.gold ? 1.0 : 0.0;
        };
        acc.push_back(right(sum));
        acc_norm.push_back(right(by_characters));
        if (apart.empty()) continue;
        llmc_acc.push_back(right(apart));
        llmc_acc_norm.push_back(right(by_tokens));
    }
    std::vector<Metric> out;
    add_mean(out, "acc", acc);
    if (normalised_) add_mean(out, "acc_norm", acc_norm);
    if (!llmc_acc.empty()) {
        add_mean(out, "llmc_acc", llmc_acc);
        add_mean(out, "llmc_acc_norm", llmc_acc_norm);
    }
    return out;
}

std::vector<Metric> EvalTask::metrics(std::span<const Score> scores) const {
    require(scores.size() == items_.size(), "%s: %zu scores for %zu items", path_.c_str(), scores.size(),
            items_.size());
    if (kind_ == Kind::choices) return choice_metrics(scores);
    std::vector<Metric> out;
    double log_p = 0, tokens = 0, words = 0, bytes = 0;
    std::vector<double> greedy;
    for (size_t i = 0; i < scores.size(); ++i) {
        log_p += scores[i].log_p;
        tokens += double(items_[i].scored);
        greedy.push_back(scores[i].greedy ? 1 : 0);
    }
    for (const Example& e : examples_) words += double(e.words), bytes += double(e.bytes);
    if (kind_ == Kind::continuation) {
        add_mean(out, "acc", greedy);
        out.push_back({"perplexity", std::exp(-log_p / double(scores.size())), {}});
        return out;
    }
    return {{"token_perplexity", std::exp(-log_p / tokens), {}},
            {"word_perplexity", words > 0 ? std::exp(-log_p / words) : NAN, {}},
            {"byte_perplexity", bytes > 0 ? std::exp(-log_p / bytes) : NAN, {}},
            {"bits_per_byte", bytes > 0 ? -log_p / bytes / M_LN2 : NAN, {}}};
}

std::string EvalTask::request_lines(std::span<const Score> scores) const {
    std::string out;
    for (size_t i = 0; i < examples_.size(); ++i) {
        const Example& e = examples_[i];
        for (size_t c = 0; c < e.items; ++c) {
            const size_t item = e.first_item + c;
            const bool llmc = kind_ == Kind::choices && c >= e.requests.size();
            OrderedJson line{{"task", name_},
                             {"example", i},
                             {kind_ == Kind::rolling ? "window" : "choice", llmc ? c - e.requests.size() : c},
                             {"log_p", scores[item].log_p},
                             {"greedy", scores[item].greedy},
                             {"scored", items_[item].scored},
                             {"tokens", items_[item].tokens.size()}};
            if (llmc) line["llmc"] = true;
            out += line.dump() + "\n";
        }
    }
    return out;
}

}  // namespace rz
