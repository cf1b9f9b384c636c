#include "llama/checkpoint/gguf.h"

#include <algorithm>
#include <bit>

#include "kernels/rope.h"
#include "llama/base/atomic_file.h"

namespace rz {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian");

constexpr int64_t kAlignment = 32;

enum ValueType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

int ggml_type(DType d) { return d == DType::f32 ? 0 : d == DType::f16 ? 1 : 30; }
int file_type(DType d) { return d == DType::f32 ? 0 : d == DType::f16 ? 1 : 32; }

// Keys and values, as bytes.
class Metadata {
   public:
    void add(const std::string& key, uint32_t value) { begin(key, kUint32), put(value); }
    void add(const std::string& key, float value) { begin(key, kFloat32), put(value); }
    void add(const std::string& key, bool value) { begin(key, kBool), put(uint8_t(value)); }
    void add(const std::string& key, const std::string& value) { begin(key, kString), put_text(value); }
    void add(const std::string& key, const std::vector<std::string>& values) {
        begin_array(key, kString, values.size());
        for (const std::string& v : values) put_text(v);
    }
    template <class T>
    void add_numbers(const std::string& key, ValueType type, const std::vector<T>& values) {
        begin_array(key, type, values.size());
        for (const T& v : values) put(v);
    }

    template <class T>
    void put(T value) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void put_text(const std::string& text) {
        put(uint64_t(text.size()));
        bytes += text;
    }

    uint64_t count = 0;
    std::string bytes;

   private:
    void begin(const std::string& key, ValueType type) {
        ++count;
        put_text(key);
        put(uint32_t(type));
    }
    void begin_array(const std::string& key, ValueType type, size_t size) {
        begin(key, kArray);
        put(uint32_t(type));
        put(uint64_t(size));
    }
};

uint32_t narrow(int64_t value, const char* what) {
    require(value >= 0 && value <= int64_t(UINT32_MAX), "GGUF: %s = %ld does not fit 32 bits", what, value);
    return uint32_t(value);
}

void add_model(Metadata& m, const ModelConfig& c, DType dtype) {
    const std::string name = architecture_of(c).gguf;
    const auto key = [&](const char* of_model) { return name + "." + of_model; };
    m.add("general.architecture", name);
    m.add("general.file_type", uint32_t(file_type(dtype)));
    m.add("general.alignment", uint32_t(kAlignment));
    m.add(key("context_length"), narrow(c.max_seq_len, "max_position_embeddings"));
    m.add(key("embedding_length"), narrow(c.dim, "hidden_size"));
    m.add(key("block_count"), narrow(c.layers, "num_hidden_layers"));
    m.add(key("feed_forward_length"), narrow(c.ffn, "intermediate_size"));
    m.add(key("attention.head_count"), narrow(c.heads, "num_attention_heads"));
    m.add(key("attention.head_count_kv"), narrow(c.kv_heads, "num_key_value_heads"));
    m.add(key("attention.key_length"), narrow(c.head_dim, "head_dim"));
    m.add(key("attention.value_length"), narrow(c.head_dim, "head_dim"));
    m.add(key("attention.layer_norm_rms_epsilon"), float(c.norm_eps));
    m.add(key("vocab_size"), narrow(c.vocab, "vocab_size"));
    m.add(key("rope.dimension_count"), narrow(c.head_dim, "head_dim"));
    m.add(key("rope.freq_base"), float(c.rope_theta));
    const RopeScaling& s = c.rope_scaling;
    if (s.kind == RopeKind::linear && s.factor != 1) {
        m.add(key("rope.scaling.type"), std::string(name_of(s.kind)));
        m.add(key("rope.scaling.factor"), float(s.factor));
    }
    // Without a type of scaling, llama.cpp still multiplies cos and sin with this.
    if (rope_attention_factor(s) != 1) m.add(key("rope.scaling.attn_factor"), float(rope_attention_factor(s)));
}

// Refuses what llama.cpp would compute otherwise.
void refuse_other_arithmetic(const ModelConfig& c) {
    const Architecture& a = architecture_of(c);
    const RopeKind kind = c.rope_scaling.kind;
    require(a.rope_factors || c.rope_scaling.factor == 1 || (kind != RopeKind::llama3 && kind != RopeKind::yarn),
            "GGUF: llama.cpp's \"%s\" does not read the frequencies of %s rope scaling\n"
            "  export it for Hugging Face's libraries",
            a.gguf, name_of(kind));
    require(c.nope_every == 0 || c.nope_every == 4,
            "GGUF: llama.cpp's \"%s\" rotates in all but every fourth block, this model in all but every %ld\n"
            "  export it for Hugging Face's libraries",
            a.gguf, c.nope_every);
    require(c.hiding_window() == 0,
            "GGUF: llama.cpp's \"%s\" has no window: beyond %ld tokens of this model's context of %ld it would "
            "compute otherwise\n  export it for Hugging Face's libraries",
            a.gguf, c.window, c.max_seq_len);
    require(c.q_rows() == c.dim || a.gguf_heads,
            "GGUF: llama.cpp's \"%s\" has %ld heads of %ld only where the model's width is %ld, and it is %ld\n"
            "  export it for Hugging Face's libraries",
            a.gguf, c.heads, c.head_dim, c.q_rows(), c.dim);
    require(!c.tied || a.gguf_tied,
            "GGUF: llama.cpp's \"%s\" wants a head of its own, and this model's is the embedding\n"
            "  export it for Hugging Face's libraries",
            a.gguf);
}

// llama.cpp's name of a way to cut text into words.
const char* name_of_split(const Tokenizer::Parts& parts, PreTokenizer split) {
    switch (split) {
        case PreTokenizer::kGpt2:
            return "gpt-2";
        case PreTokenizer::kLlama3:
            return parts.whole_words ? "llama-bpe" : "dbrx";  // cut alike; OLMo 2's is the second
        case PreTokenizer::kQwen2:
            return "qwen2";
        case PreTokenizer::kSmolLm2:
            return "smollm";
        case PreTokenizer::kNone:
            break;
    }
    require(parts.merges.empty(),
            "GGUF: this tokenizer merges over whole texts, without cutting them into words: llama.cpp has no name for "
            "that\n  export it for Hugging Face's libraries");
    return "gpt-2";  // nothing is merged, so it does not matter where text is cut
}

void add_tokenizer(Metadata& m, const ModelConfig& c, const Tokenizer& t) {
    Tokenizer::Parts parts = t.parts();
    require(int64_t(parts.names.size()) <= c.vocab, "GGUF: the tokenizer has %zu tokens, the model %ld",
            parts.names.size(), c.vocab);
    while (int64_t(parts.names.size()) < c.vocab) {
        parts.names.push_back(format("[PAD%zu]", parts.names.size()));
        parts.kinds.push_back(Tokenizer::Parts::kUnused);
        parts.scores.push_back(0);
    }
    m.add("tokenizer.ggml.model", std::string(parts.byte_level ? "gpt2" : "llama"));
    if (parts.byte_level) m.add("tokenizer.ggml.pre", std::string(name_of_split(parts, t.pre_tokenizer())));
    m.add("tokenizer.ggml.tokens", parts.names);
    m.add_numbers("tokenizer.ggml.token_type", kInt32, parts.kinds);
    if (parts.byte_level)
        m.add("tokenizer.ggml.merges", parts.merges);
    else
        m.add_numbers("tokenizer.ggml.scores", kFloat32, parts.scores);
    const int64_t bos = c.bos >= 0 ? c.bos : t.bos_id(), eos = !c.eos.empty() ? c.eos[0] : t.eos_id();
    if (bos >= 0) m.add("tokenizer.ggml.bos_token_id", uint32_t(bos));
    if (eos >= 0) m.add("tokenizer.ggml.eos_token_id", uint32_t(eos));
    // Further ends of a text, such as the token that begins the next one: llama.cpp stops at these two as well.
    constexpr const char* kMore[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    for (size_t i = 1; i < std::min<size_t>(c.eos.size(), 3); ++i) m.add(kMore[i - 1], uint32_t(c.eos[i]));
    m.add("tokenizer.ggml.add_bos_token", parts.begins);
    m.add("tokenizer.ggml.add_eos_token", parts.ends);
}

struct Entry {
    std::string name;
    const Tensor* tensor;  // nullptr: rope_freqs.weight
    DType dtype;
    int64_t offset = 0, bytes = 0;
};

std::vector<Entry> entries_of(const ModelConfig& c, const ParamTable& table, DType dtype) {
    constexpr const char* kBlock[kBlockTensors] = {
        "attn_norm.weight", "attn_q.weight",   "attn_k.weight",      "attn_v.weight",     "attn_output.weight",
        "ffn_norm.weight",  "ffn_gate.weight", "ffn_up.weight",      "ffn_down.weight",   "attn_q.bias",
        "attn_k.bias",      "attn_v.bias",     "attn_q_norm.weight", "attn_k_norm.weight"};
    std::vector<Entry> entries;
    const auto name_of = [&](int k) {
        if (!c.post_norm || (k != kNorm1 && k != kNorm2)) return kBlock[k];
        return k == kNorm1 ? "post_attention_norm.weight" : "post_ffw_norm.weight";
    };
    const auto add = [&](const std::string& name, const Tensor& t) {
        entries.push_back({name, &t, t.shape.size() == 1 ? DType::f32 : dtype});
    };
    add("token_embd.weight", table.embedding());
    for (int64_t l = 0; l < c.layers; ++l)
        for (int k = 0; k < kBlockTensors; ++k)
            if (table.has(BlockTensor(k))) add(format("blk.%ld.%s", l, name_of(k)), table.block(l, BlockTensor(k)));
    add("output_norm.weight", table.final_norm());
    if (!table.tied()) add("output.weight", table.head());
    if (c.rope_scaling.factor != 1 &&
        (c.rope_scaling.kind == RopeKind::llama3 || c.rope_scaling.kind == RopeKind::yarn))
        entries.push_back({"rope_freqs.weight", nullptr, DType::f32});
    int64_t at = 0;
    for (Entry& e : entries) {
        e.offset = at;
        e.bytes = (e.tensor ? e.tensor->size : c.head_dim / 2) * size_of(e.dtype);
        at = round_up(at + e.bytes, kAlignment);
    }
    return entries;
}

// Divisors of each frequency in llama.cpp.
std::vector<float> rope_factors(const ModelConfig& c) {
    const std::vector<double> plain = rope_inverse_frequencies(c.head_dim, c.rope_theta, {});
    const std::vector<double> scaled = rope_inverse_frequencies(c.head_dim, c.rope_theta, c.rope_scaling);
    std::vector<float> factors;
    for (size_t i = 0; i < plain.size(); ++i) factors.push_back(float(plain[i] / scaled[i]));
    return factors;
}

// Row r of a head in llama.cpp's order is this row of Hugging Face's.
int64_t source_row(int64_t r, int64_t D) { return r / D * D + (r % D % 2) * (D / 2) + r % D / 2; }

void write_tensor(AtomicFile& file, int64_t data, const Entry& e, const ModelConfig& c, const HfWeights& weights) {
    constexpr int64_t kPiece = 1 << 22;  // elements
    const Tensor& t = *e.tensor;
    const bool rotated =
        architecture_of(c).pairs && (e.name.ends_with("attn_q.weight") || e.name.ends_with("attn_k.weight"));
    const int64_t columns = t.shape.back(), element = size_of(e.dtype);
    const int64_t step = rotated ? columns : std::min(t.size, kPiece);
    std::vector<char> piece(static_cast<size_t>(step * element));
    for (int64_t first = 0; first < t.size; first += step) {
        const int64_t count = std::min(step, t.size - first);
        const int64_t from = rotated ? source_row(first / columns, c.head_dim) * columns : first;
        weights.read(t, from, count, e.dtype, piece.data());
        file.write_at(data + e.offset + first * element, piece.data(), count * element);
    }
}

}  // namespace

void save_gguf(const std::string& path, const ModelConfig& c, const ParamTable& table, DType dtype,
               const HfWeights& weights, const Tokenizer* tokenizer) {
    refuse_other_arithmetic(c);
    Metadata values;
    add_model(values, c, dtype);
    if (tokenizer) add_tokenizer(values, c, *tokenizer);
    const std::vector<Entry> entries = entries_of(c, table, dtype);

    Metadata head;
    head.bytes = "GGUF";
    head.put(uint32_t(3));
    head.put(uint64_t(entries.size()));
    head.put(values.count);
    head.bytes += values.bytes;
    for (const Entry& e : entries) {
        std::vector<int64_t> shape = e.tensor ? e.tensor->shape : std::vector<int64_t>{c.head_dim / 2};
        std::reverse(shape.begin(), shape.end());  // the extent that varies fastest comes first
        head.put_text(e.name);
        head.put(uint32_t(shape.size()));
        for (const int64_t extent : shape) head.put(uint64_t(extent));
        head.put(uint32_t(ggml_type(e.dtype)));
        head.put(uint64_t(e.offset));
    }
    head.bytes.resize(size_t(round_up(int64_t(head.bytes.size()), kAlignment)), '\0');

    const int64_t data = int64_t(head.bytes.size());
    const int64_t size = data + round_up(entries.back().offset + entries.back().bytes, kAlignment);
    AtomicFile file(path, size);
    file.write_at(0, head.bytes.data(), data);
    for (const Entry& e : entries) {
        if (e.tensor) {
            write_tensor(file, data, e, c, weights);
        } else {
            const std::vector<float> factors = rope_factors(c);
            file.write_at(data + e.offset, factors.data(), e.bytes);
        }
    }
    const std::string padding(size_t(size - data - entries.back().offset - entries.back().bytes), '\0');
    if (!padding.empty()) file.write_at(size - int64_t(padding.size()), padding.data(), int64_t(padding.size()));
    file.commit();
}

}  // namespace rz
