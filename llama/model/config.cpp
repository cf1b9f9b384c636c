#include "llama/model/config.h"

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/runtime/request.h"
#include "llama/base/json.h"

namespace rz {

// The bounds keep every product of two fields within 64 bits; larger products are checked.
constexpr ConfigField kFields[] = {
    {"dim", "hidden_size", &ModelConfig::dim, 8, 1 << 20, "Width of the residual stream, a multiple of 8."},
    {"layers", "num_hidden_layers", &ModelConfig::layers, 1, 1 << 16, "Number of transformer blocks."},
    {"heads", "num_attention_heads", &ModelConfig::heads, 1, 1 << 16, "Number of query heads."},
    {"kv-heads", "num_key_value_heads", &ModelConfig::kv_heads, 1, 1 << 16,
     "Number of key and value heads. 0: as many as --heads."},
    {"head-dim", "head_dim", &ModelConfig::head_dim, 2, kMaxHeadDim, "Width of a head, even. 0: dim / heads."},
    {"ffn", "intermediate_size", &ModelConfig::ffn, 1, 1 << 24, "Width of the MLP."},
    {"vocab", "vocab_size", &ModelConfig::vocab, 1, INT32_MAX, "Number of token ids, from 0 to vocab - 1."},
    {"max-seq-len", "max_position_embeddings", &ModelConfig::max_seq_len, 1, INT32_MAX, "Longest sequence, in tokens."},
    {"nope-every", nullptr, &ModelConfig::nope_every, 0, 1 << 16,
     "Blocks from one to the next that does not rotate q and k (SmolLM3: 4, the fourth is the first). 0: all rotate."},
    {"window", nullptr, &ModelConfig::window, 0, INT32_MAX,
     "Keys that a query sees at most, its own among them (Mistral's sliding_window). 0: all up to its own."},
};

std::span<const ConfigField> config_fields() { return kFields; }

constexpr ConfigSwitch kSwitches[] = {
    {"qkv-bias", &ModelConfig::qkv_bias, "Add biases to q, k and v, as Qwen2 and Qwen2.5 do."},
    {"qk-norm", &ModelConfig::qk_norm, "Normalise each head of q and k (RMSNorm) before RoPE, as Qwen3 does."},
    {"post-norm", &ModelConfig::post_norm,
     "Normalise what attention and MLP add, not what they read, and q and k over all heads, as OLMo 2 does."},
};

std::span<const ConfigSwitch> config_switches() { return kSwitches; }

// ---- architectures ----

constexpr Architecture kArchitectures[] = {
    {.type = "llama",
     .name = "LlamaForCausalLM",
     .gguf = "llama",
     .pairs = true,
     .rope_factors = true,
     .bos = 1,
     .eos = 2},
    {.type = "mistral",
     .name = "MistralForCausalLM",
     .gguf = "llama",
     .window = true,
     .pairs = true,
     .rope_factors = true,
     .kv_heads = 8,
     .max_seq_len = 1 << 17,
     .bos = 1,
     .eos = 2},
    {.type = "qwen2",
     .name = "Qwen2ForCausalLM",
     .gguf = "qwen2",
     .qkv_bias = true,
     .gguf_heads = false,
     .kv_heads = 32,
     .max_seq_len = 32768},
    {.type = "qwen3",
     .name = "Qwen3ForCausalLM",
     .gguf = "qwen3",
     .qk_norm = true,
     .kv_heads = 32,
     .head_dim = 128,
     .max_seq_len = 32768},
    {.type = "smollm3",
     .name = "SmolLM3ForCausalLM",
     .gguf = "smollm3",
     .nope = true,
     .pairs = true,
     .kv_heads = 4,
     .max_seq_len = 32768,
     .rope_theta = 2e6,
     .bos = 128000,
     .eos = 128001,
     .tied = true},
    {.type = "olmo2",
     .name = "Olmo2ForCausalLM",
     .gguf = "olmo2",
     .post_norm = true,
     .gguf_heads = false,
     .gguf_tied = false,
     .norm_eps = 1e-5,
     .eos = 50279,
     .pad = 1},
};

static const Architecture* find_architecture(const ModelConfig& c) {
    for (const Architecture& a : kArchitectures)
        if (a.qkv_bias == c.qkv_bias && a.qk_norm == c.qk_norm && a.post_norm == c.post_norm &&
            a.nope == (c.nope_every > 0) && a.window == (c.window > 0))
            return &a;
    return nullptr;
}

const Architecture& architecture_of(const ModelConfig& c) {
    const Architecture* found = find_architecture(c);
    if (found != nullptr) return *found;
    std::string both;
    for (const auto& [has, name] : {std::pair(c.qkv_bias, "qkv-bias"),
                                    {c.qk_norm, "qk-norm"},
                                    {c.post_norm, "post-norm"},
                                    {c.nope_every > 0, "nope-every"},
                                    {c.window > 0, "window"}})
        if (has) both += (both.empty() ? "" : " with ") + std::string(name);
    fail("%s: no architecture of transformers has both\n  nearest: one of them", both.c_str());
}

// "heads (num_attention_heads) = 7"
static std::string named(const ModelConfig& config, int64_t ModelConfig::*member) {
    for (const ConfigField& f : kFields)
        if (f.member == member)
            return format("%s%s = %ld", f.name, f.key ? format(" (%s)", f.key).c_str() : "", config.*member);
    return "?";
}

// "4 or 8": the divisors of n next to x.
static std::string nearest_divisors(int64_t n, int64_t x) {
    int64_t below = 0, above = 0;
    for (int64_t d = std::min(x, n); d >= 1 && below == 0; --d)
        if (n % d == 0) below = d;
    for (int64_t d = x; d <= n && above == 0; ++d)
        if (n % d == 0) above = d;
    return above == 0 || above == below ? std::to_string(below) : format("%ld or %ld", below, above);
}

static void require_finite(double x, double min, double max, const char* name) {
    require(x >= min && x <= max, "%s = %g must be a number from %g to %g", name, x, min, max);
}

// True: cos and sin are those of no scaling.
static bool is_plain(const RopeScaling& s) { return s.factor == 1 && rope_attention_factor(s) == 1; }

void ModelConfig::resolve() {
    const auto in_range = [&](const ConfigField& f) {
        require(this->*f.member >= f.min && this->*f.member <= f.max, "%s must be from %ld to %ld",
                named(*this, f.member).c_str(), f.min, f.max);
    };
    for (const ConfigField& f : kFields)
        if (this->*f.member != 0 || (f.member != &ModelConfig::kv_heads && f.member != &ModelConfig::head_dim))
            in_range(f);
    if (kv_heads == 0) kv_heads = heads;
    require(dim % 8 == 0, "%s must be a multiple of 8: nearest %ld or %ld", named(*this, &ModelConfig::dim).c_str(),
            std::max<int64_t>(8, dim / 8 * 8), round_up(dim, 8));
    require(dim % heads == 0, "%s does not divide %s: nearest heads %s", named(*this, &ModelConfig::heads).c_str(),
            named(*this, &ModelConfig::dim).c_str(), nearest_divisors(dim, heads).c_str());
    require(heads % kv_heads == 0, "%s does not divide %s: nearest kv-heads %s",
            named(*this, &ModelConfig::kv_heads).c_str(), named(*this, &ModelConfig::heads).c_str(),
            nearest_divisors(heads, kv_heads).c_str());
    if (head_dim == 0) head_dim = dim / heads;
    require(head_dim % 2 == 0, "%s must be even, since RoPE rotates pairs: nearest %ld or %ld",
            named(*this, &ModelConfig::head_dim).c_str(), std::max<int64_t>(2, head_dim - 1), head_dim + 1);
    for (const ConfigField& f : kFields) in_range(f);  // the derived ones too
    if (nope_every > layers) nope_every = 0;           // then all rotate
    architecture_of(*this);
    require_finite(rope_theta, 1, 1e15, "rope-theta (rope_theta)");
    require_finite(norm_eps, 0, 1, "norm-eps (rms_norm_eps)");
    require_finite(init_std, 0, 100, "init-std (initializer_range)");
    RopeScaling& s = rope_scaling;
    if (s.kind == RopeKind::dynamic) s.original_max_position = max_seq_len;
    require_finite(s.factor, 1, 1e6, "rope_scaling factor");
    require_finite(s.low_freq_factor, 1e-6, 1e6, "rope_scaling low_freq_factor");
    require_finite(s.high_freq_factor, 1e-6, 1e6, "rope_scaling high_freq_factor");
    require(s.high_freq_factor > s.low_freq_factor,
            "rope_scaling high_freq_factor = %g must exceed low_freq_factor = %g", s.high_freq_factor,
            s.low_freq_factor);
    require_finite(s.beta_slow, 1e-6, 1e6, "rope_scaling beta_slow");
    require_finite(s.beta_fast, s.beta_slow, 1e6, "rope_scaling beta_fast");
    require_finite(s.attention_factor, 0, 1e6, "rope_scaling attention_factor");
    require(s.original_max_position >= 1 && s.original_max_position <= INT32_MAX,
            "rope_scaling original_max_position_embeddings = %ld must be from 1 to %d", s.original_max_position,
            INT32_MAX);
    require(s.kind != RopeKind::dynamic || s.factor == 1 || head_dim > 2,
            "rope_scaling dynamic needs a head-dim (head_dim) above 2");
    // The largest buffer holds 8 bytes per parameter at most.
    checked_mul(parameter_count(), 8,
                "the model's size (hidden_size, intermediate_size, num_hidden_layers, vocab_size)");
}

// Why not into `tp` parts, or "".
static std::string find_cut_error(const ModelConfig& c, int64_t tp) {
    if (c.heads % tp != 0) return format("%ld heads do not divide by %ld", c.heads, tp);
    if (c.kv_heads % tp != 0 && tp % c.kv_heads != 0)
        return format("of %ld kv heads and %ld ranks one must divide the other", c.kv_heads, tp);
    for (const auto& [what, n] : {std::pair("columns of ffn", c.ffn), {"tokens of the vocabulary", c.vocab}})
        if (n < tp) return format("%ld %s are fewer than ranks", n, what);
    return "";
}

void check_tensor_parallel(const ModelConfig& c, int64_t tp) {
    const std::string why = find_cut_error(c, tp);
    if (why.empty()) return;
    int64_t below = std::min(tp, c.heads), above = tp;
    while (!find_cut_error(c, below).empty()) --below;  // one part is always possible
    while (above <= c.heads && !find_cut_error(c, above).empty()) ++above;
    const std::string nearest = above > c.heads ? format("--tp %ld", below) : format("--tp %ld or %ld", below, above);
    refuse("--tp %ld: %s\n  nearest: %s", tp, why.c_str(), nearest.c_str());
}

int64_t ModelConfig::matmul_parameters() const {
    constexpr const char* kWhat = "parameter count (hidden_size, intermediate_size, num_hidden_layers, vocab_size)";
    const int64_t attention = checked_mul(dim, checked_add(qkv_rows(), q_rows(), kWhat), kWhat);
    const int64_t mlp = checked_mul(3 * dim, ffn, kWhat);
    return checked_add(checked_mul(layers, checked_add(attention, mlp, kWhat), kWhat), checked_mul(vocab, dim, kWhat),
                       kWhat);
}

int64_t ModelConfig::parameter_count() const {
    const int64_t norms = (2 * layers + 1) * dim + layers * (q_gains() + k_gains()),
                  biases = qkv_bias ? layers * qkv_rows() : 0;
    return checked_add(checked_add(matmul_parameters(), norms + biases, "parameter count"), tied ? 0 : vocab * dim,
                       "parameter count");
}

static std::string human_count(int64_t n) {
    const double x = double(n);
    if (x >= 1e9) return format("%.*fB", x < 1e10 ? 2 : 1, x / 1e9);
    if (x >= 1e6) return format("%.*fM", x < 1e8 ? 1 : 0, x / 1e6);
    return format("%.1fk", x / 1e3);
}

std::string summary(const ModelConfig& c) {
    const std::string kv = c.kv_heads == c.heads ? "" : format(" (%ld kv)", c.kv_heads);
    const std::string scaling =
        is_plain(c.rope_scaling) ? "" : format(", %s rope x%g", name_of(c.rope_scaling.kind), c.rope_scaling.factor);
    std::string more;
    for (const ConfigSwitch& w : kSwitches)
        if (c.*w.member) more += format(", %s", w.name);
    if (c.nope_every > 0) more += format(", nope-every %ld", c.nope_every);
    if (c.window > 0) more += format(", window %ld", c.window);
    return format("%s parameters: dim %ld, %ld layers, %ld heads%s of %ld, ffn %ld, vocab %ld, %s%s%s",
                  human_count(c.parameter_count()).c_str(), c.dim, c.layers, c.heads, kv.c_str(), c.head_dim, c.ffn,
                  c.vocab, c.tied ? "tied" : "untied", scaling.c_str(), more.c_str());
}

std::string differences(const ModelConfig& a, const ModelConfig& b, std::string_view name_a, std::string_view name_b) {
    std::string out;
    const auto compare = [&](const char* name, double x, double y) {
        if (x != y)
            out += format("%s: %.15g in %.*s, %.15g in %.*s\n", name, x, int(name_a.size()), name_a.data(), y,
                          int(name_b.size()), name_b.data());
    };
    for (const ConfigField& f : kFields)
        if (f.member != &ModelConfig::max_seq_len && f.member != &ModelConfig::window)
            compare(f.name, double(a.*f.member), double(b.*f.member));
    compare("window", double(a.hiding_window()), double(b.hiding_window()));
    for (const ConfigSwitch& w : kSwitches) compare(w.name, a.*w.member, b.*w.member);
    compare("tied", a.tied, b.tied);
    compare("norm-eps", a.norm_eps, b.norm_eps);
    compare("rope-theta", a.rope_theta, b.rope_theta);
    const RopeScaling &s = a.rope_scaling, &t = b.rope_scaling;
    compare("rope_scaling factor", s.factor, t.factor);
    if (is_plain(s) && is_plain(t)) return out;
    if (s.kind != t.kind)
        out += format("rope_scaling rope_type: %s in %.*s, %s in %.*s\n", name_of(s.kind), int(name_a.size()),
                      name_a.data(), name_of(t.kind), int(name_b.size()), name_b.data());
    compare("rope_scaling low_freq_factor", s.low_freq_factor, t.low_freq_factor);
    compare("rope_scaling high_freq_factor", s.high_freq_factor, t.high_freq_factor);
    if (s.kind != RopeKind::dynamic)  // there it is max-seq-len
        compare("rope_scaling original_max_position_embeddings", double(s.original_max_position),
                double(t.original_max_position));
    compare("rope_scaling attention_factor", rope_attention_factor(s), rope_attention_factor(t));
    compare("rope_scaling beta_fast", s.beta_fast, t.beta_fast);
    compare("rope_scaling beta_slow", s.beta_slow, t.beta_slow);
    compare("rope_scaling truncate", s.truncate, t.truncate);
    return out;
}

// ---- config.json ----

struct RopeSettings {
    double theta;
    RopeScaling scaling;
};

static void refuse_partial_rotation(const Json& json, const std::string& where) {
    if (const Json* x = json_find(json, "partial_rotary_factor"))
        require(json_number(*x, "partial_rotary_factor", 0, 1, where) == 1,
                "%s: partial_rotary_factor = %s: only 1 is supported", where.c_str(), json_excerpt(*x).c_str());
}

// `object` is rope_scaling (transformers 4) or rope_parameters (5); `name` says which.
static RopeSettings read_rope(const Json& object, const char* name, double theta, int64_t max_positions,
                              const std::string& where) {
    require(object.is_object(), "%s: %s = %s must be an object or null", where.c_str(), name,
            json_excerpt(object).c_str());
    const std::string inside = where + ": " + name;
    RopeSettings rope{theta, {}};
    if (const Json* x = json_find(object, "rope_theta")) rope.theta = json_number(*x, "rope_theta", 1, 1e15, inside);
    refuse_partial_rotation(object, inside);
    const Json* type = json_find(object, "rope_type");
    if (type == nullptr) type = json_find(object, "type");
    const std::string kind = type == nullptr ? "default" : json_string(*type, "rope_type", inside);
    if (kind == "default") return rope;
    std::string names;
    bool known = false;
    for (const Named<RopeKind>& k : kNames<RopeKind>) {
        names += format(", \"%s\"", k.name);
        if (kind == k.name) rope.scaling.kind = k.value, known = true;
    }
    require(known, "%s: rope_type \"%s\" is not supported, only \"default\"%s", inside.c_str(), kind.c_str(),
            names.c_str());
    const auto number = [&](const char* key, double min) { return json_number_at(object, key, min, 1e6, inside); };
    const auto optional = [&](const char* key, double& to, double min = 0) {
        if (const Json* x = json_find(object, key)) to = json_number(*x, key, min, 1e6, inside);
    };
    RopeScaling& s = rope.scaling;
    s.factor = number("factor", 1);
    constexpr const char* kOriginal = "original_max_position_embeddings";
    s.original_max_position = max_positions;
    if (s.kind == RopeKind::llama3) {
        s.low_freq_factor = number("low_freq_factor", 1e-6);
        s.high_freq_factor = number("high_freq_factor", 1e-6);
        s.original_max_position = json_int_at(object, kOriginal, 1, INT32_MAX, inside);
    }
    if (s.kind != RopeKind::yarn) return rope;
    if (const Json* x = json_find(object, kOriginal))
        s.original_max_position = json_int(*x, kOriginal, 1, INT32_MAX, inside);
    optional("attention_factor", s.attention_factor, 1e-6);
    optional("mscale", s.mscale);
    optional("mscale_all_dim", s.mscale_all_dim);
    optional("beta_fast", s.beta_fast);
    optional("beta_slow", s.beta_slow);
    if (const Json* x = json_find(object, "truncate")) s.truncate = json_bool(*x, "truncate", inside);
    return rope;
}

static void read_rope(const Json& json, double theta, ModelConfig& config, const std::string& where) {
    if (const Json* x = json_find(json, "rope_theta")) theta = json_number(*x, "rope_theta", 1, 1e15, where);
    const Json* legacy = json_find(json, "rope_scaling");
    const Json* current = json_find(json, "rope_parameters");
    RopeSettings rope{theta, {}};
    if (legacy != nullptr) rope = read_rope(*legacy, "rope_scaling", theta, config.max_seq_len, where);
    if (current != nullptr) {
        const RopeSettings newer = read_rope(*current, "rope_parameters", theta, config.max_seq_len, where);
        const bool theta_agrees = json_find(json, "rope_theta") == nullptr || newer.theta == theta;
        const bool scaling_agrees = legacy == nullptr || newer.scaling == rope.scaling;
        require(theta_agrees && scaling_agrees, "%s: rope_parameters contradicts %s: keep one of them", where.c_str(),
                theta_agrees ? "rope_scaling" : "rope_theta");
        rope = newer;
    }
    config.rope_theta = rope.theta;
    config.rope_scaling = rope.scaling;
}

// The row of a file: by its model_type, or else by the class that it names first.
static const Architecture& find_architecture(const Json& json, const std::string& where) {
    const Json *classes = json_find(json, "architectures"), *type = json_find(json, "model_type");
    require(classes != nullptr || type != nullptr, "%s: neither architectures nor model_type says what model this is",
            where.c_str());
    const auto names = [&](auto member, const char* quote) {
        std::string all;
        for (const Architecture& a : kArchitectures) {
            const bool last = &a == &std::end(kArchitectures)[-1];
            all += format("%s%s%s%s", all.empty() ? "" : last ? " and " : ", ", quote, a.*member, quote);
        }
        return all;
    };
    const auto lists = [&](const Architecture& a) {
        return classes->is_array() &&
               std::any_of(classes->begin(), classes->end(), [&](const Json& x) { return x == a.name; });
    };
    const Architecture *of_class = nullptr, *of_type = nullptr;
    for (const Architecture& a : kArchitectures) {
        if (classes != nullptr && of_class == nullptr && lists(a)) of_class = &a;
        if (type != nullptr && *type == a.type) of_type = &a;
    }
    require(classes == nullptr || of_class != nullptr, "%s: architectures = %s is not supported: only %s are",
            where.c_str(), json_excerpt(*classes).c_str(), names(&Architecture::name, "").c_str());
    require(type == nullptr || of_type != nullptr, "%s: model_type = %s is not supported: only %s are", where.c_str(),
            json_excerpt(*type).c_str(), names(&Architecture::type, "\"").c_str());
    if (of_class == nullptr || of_type == nullptr) return of_type ? *of_type : *of_class;
    require(lists(*of_type) || std::string_view(of_type->gguf) == of_class->gguf,
            "%s: model_type = \"%s\" contradicts architectures = %s", where.c_str(), of_type->type,
            json_excerpt(*classes).c_str());
    return *of_type;
}

// Windows of some layers only.
static void refuse_layer_windows(const Json& json, const std::string& where) {
    if (const Json* x = json_find(json, "use_sliding_window"))
        require(!json_bool(*x, "use_sliding_window", where),
                "%s: use_sliding_window = true is not supported: only MistralForCausalLM has a window here",
                where.c_str());
    if (const Json* x = json_find(json, "layer_types"))
        require(x->is_array() && std::all_of(x->begin(), x->end(), [](const Json& t) { return t == "full_attention"; }),
                "%s: layer_types = %s is not supported: only \"full_attention\" is", where.c_str(),
                json_excerpt(*x).c_str());
}

// Refuses what would compute something else than this program does.
static void refuse_unsupported(const Json& json, const Architecture& a, const std::string& where) {
    if (!a.window) refuse_layer_windows(json, where);
    for (const char* key : {"attention_bias", "mlp_bias", "rope_interleaved"})
        if (const Json* x = json_find(json, key); x != nullptr && !a.qkv_bias)  // Qwen2's class knows no such keys
            require(!json_bool(*x, key, where), "%s: %s = true is not supported", where.c_str(), key);
    if (const Json* x = json_find(json, "hidden_act"))
        require(*x == "silu", "%s: hidden_act = %s is not supported: only \"silu\" is", where.c_str(),
                json_excerpt(*x).c_str());
    if (const Json* x = json_find(json, "attention_dropout"))
        require(json_number(*x, "attention_dropout", 0, 1, where) == 0,
                "%s: attention_dropout = %s is not supported: set it to 0", where.c_str(), json_excerpt(*x).c_str());
    refuse_partial_rotation(json, where);
    require(json_find(json, "quantization_config") == nullptr,
            "%s: quantization_config is present: quantised weights are not supported, use the unquantised model",
            where.c_str());
}

static int64_t read_token_id(const Json& value, const char* key, const std::string& where) {
    return std::max<int64_t>(-1, json_int(value, key, INT32_MIN, INT32_MAX, where));  // old files say -1 for none
}

static void read_token_ids(const Json& json, const Architecture& a, ModelConfig& config, const std::string& where) {
    const auto id = [&](const char* key, int64_t absent) {
        const Json* x = json_find(json, key);
        return !json.contains(key) ? absent : x == nullptr ? -1 : read_token_id(*x, key, where);
    };
    config.bos = id("bos_token_id", a.bos);
    config.pad = id("pad_token_id", a.pad);
    config.eos.clear();
    const Json* eos = json_find(json, "eos_token_id");
    if (eos != nullptr && eos->is_array())
        for (const Json& x : *eos) config.eos.push_back(read_token_id(x, "eos_token_id", where));
    else
        config.eos.push_back(id("eos_token_id", a.eos));
    std::erase_if(config.eos, [](int64_t x) { return x < 0; });
}

// SmolLM3's list has 0 where a layer does not rotate.
static int64_t read_nope(const Json& json, int64_t layers, const std::string& where) {
    const Json* list = json_find(json, "no_rope_layers");
    if (list == nullptr) {
        const Json* every = json_find(json, "no_rope_layer_interval");
        return every == nullptr ? 4 : json_int(*every, "no_rope_layer_interval", 1, 1 << 16, where);
    }
    require(list->is_array() && int64_t(list->size()) >= layers, "%s: no_rope_layers = %s must list all %ld layers",
            where.c_str(), json_excerpt(*list).c_str(), layers);
    ModelConfig config;
    for (int64_t l = layers - 1; l >= 0; --l)
        if ((*list)[size_t(l)] == 0) config.nope_every = l + 1;
    for (int64_t l = 0; l < layers; ++l)
        require((*list)[size_t(l)] == int(config.rotates(l)),
                "%s: no_rope_layers = %s is not supported: only 0 in every N-th place and 1 elsewhere", where.c_str(),
                json_excerpt(*list).c_str());
    return config.nope_every;
}

// Null where there is none; transformers takes 4096 where the file says nothing.
static int64_t read_window(const Json& json, const std::string& where) {
    if (const Json* window = json_find(json, "sliding_window"))
        return json_int(*window, "sliding_window", 1, INT32_MAX, where);
    return json.contains("sliding_window") ? 0 : 4096;
}

ModelConfig config_from_json(std::string_view text, const std::string& where) {
    const Json json = parse_json(text, where, kModelConfig);
    require(json.is_object(), "%s: expected a JSON object, found %s", where.c_str(), json_excerpt(json).c_str());
    const Architecture& a = find_architecture(json, where);
    refuse_unsupported(json, a, where);
    ModelConfig config;
    config.kv_heads = a.kv_heads;
    config.tied = a.tied;
    config.norm_eps = a.norm_eps;
    config.head_dim = a.head_dim;
    config.qkv_bias = a.qkv_bias;
    config.qk_norm = a.qk_norm;
    config.post_norm = a.post_norm;
    if (a.max_seq_len > 0) config.max_seq_len = a.max_seq_len;
    for (const ConfigField& f : kFields) {
        if (f.key == nullptr) continue;
        const bool derived = f.member == &ModelConfig::kv_heads || f.member == &ModelConfig::head_dim;
        const bool has_default = f.member == &ModelConfig::max_seq_len;
        const Json* x = json_find(json, f.key);
        require(x != nullptr || derived || has_default, "%s: \"%s\" is missing", where.c_str(), f.key);
        if (x != nullptr) config.*f.member = json_int(*x, f.key, f.min, f.max, where);
        if (x == nullptr && derived && json.contains(f.key)) config.*f.member = 0;  // null: as many as heads
    }
    if (a.nope) config.nope_every = read_nope(json, config.layers, where);
    if (a.window) config.window = read_window(json, where);
    if (const Json* x = json_find(json, "rms_norm_eps")) config.norm_eps = json_number(*x, "rms_norm_eps", 0, 1, where);
    if (const Json* x = json_find(json, "initializer_range"))
        config.init_std = json_number(*x, "initializer_range", 0, 100, where);
    if (const Json* x = json_find(json, "tie_word_embeddings"))
        config.tied = json_bool(*x, "tie_word_embeddings", where);
    read_rope(json, a.rope_theta, config, where);
    read_token_ids(json, a, config, where);
    try {
        config.resolve();
    } catch (const Error& e) {
        fail("%s: %s", where.c_str(), e.what());
    }
    return config;
}

static OrderedJson rope_to_json(const RopeScaling& s) {
    OrderedJson json = {{"rope_type", name_of(s.kind)}, {"factor", s.factor}};
    if (s.kind == RopeKind::llama3) {
        json["low_freq_factor"] = s.low_freq_factor;
        json["high_freq_factor"] = s.high_freq_factor;
    }
    if (s.kind == RopeKind::llama3 || s.kind == RopeKind::yarn)
        json["original_max_position_embeddings"] = s.original_max_position;
    if (s.kind != RopeKind::yarn) return json;
    json["attention_factor"] = rope_attention_factor(s);  // one form for all three that are read
    json["beta_fast"] = s.beta_fast;
    json["beta_slow"] = s.beta_slow;
    json["truncate"] = s.truncate;
    return json;
}

std::string config_to_json(const ModelConfig& c, DType weights) {
    const auto id = [](int64_t x) { return x < 0 ? OrderedJson(nullptr) : OrderedJson(x); };
    const char* dtype = names_of(weights).config_json;
    OrderedJson json;
    const Architecture& a = architecture_of(c);
    json["architectures"] = {a.name};
    json["model_type"] = a.type;
    for (const ConfigField& f : kFields)
        if (f.key) json[f.key] = c.*f.member;
    json["hidden_act"] = "silu";
    json["rms_norm_eps"] = c.norm_eps;
    json["initializer_range"] = c.init_std;
    json["tie_word_embeddings"] = c.tied;
    if (!a.qkv_bias) json["attention_bias"] = false;
    if (!a.qkv_bias) json["mlp_bias"] = false;
    if (a.qkv_bias || a.qk_norm || a.nope) json["use_sliding_window"] = false;
    for (int64_t l = 0; a.nope && l < c.layers; ++l) json["no_rope_layers"].push_back(int(c.rotates(l)));
    if (a.nope) json["no_rope_layer_interval"] = c.nope_every;
    if (a.window) json["sliding_window"] = c.window;
    json["attention_dropout"] = 0.0;
    json["rope_theta"] = c.rope_theta;
    if (is_plain(c.rope_scaling))
        json["rope_scaling"] = nullptr;
    else
        json["rope_scaling"] = rope_to_json(c.rope_scaling);
    json["bos_token_id"] = id(c.bos);
    json["eos_token_id"] = c.eos.empty()       ? OrderedJson(nullptr)
                           : c.eos.size() == 1 ? OrderedJson(c.eos[0])
                                               : OrderedJson(c.eos);
    json["pad_token_id"] = id(c.pad);
    json["use_cache"] = true;
    json["torch_dtype"] = dtype;
    json["dtype"] = dtype;
    return json.dump(2) + "\n";
}

}  // namespace rz
