// Checkpoints in one process: the hash, the manifest's reader, the folder's rules, and save and load.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "kernels/elementwise.h"
#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/checkpoint/finite.h"
#include "llama/model/hf.h"
#include "llama/train/train_state.h"
#include "llama/base/sum_hash.h"
#include "test/llama/helpers.h"
#include "test/comm/ranks.h"
#include "test/llama/toys.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

// ---- hash ----

TEST(SumHash, PartsAddUpInAnyOrder) {
    std::mt19937 rng(1);
    std::vector<uint32_t> data(1000);
    for (uint32_t& x : data) x = rng();
    for (const int64_t e : {1, 2, 4, 8}) {
        const int64_t n = int64_t(data.size()) * 4 / e;
        const char* bytes = reinterpret_cast<const char*>(data.data());
        const uint64_t whole = sum_hash(bytes, 0, n, e);
        const int64_t a = n / 3, b = n / 2 + 1;
        EXPECT_EQ(whole, sum_hash(bytes + b * e, b, n - b, e) + sum_hash(bytes, 0, a, e) +
                             sum_hash(bytes + a * e, a, b - a, e));
    }
    EXPECT_THROW(sum_hash(data.data(), 0, 1, 3), Error);
}

TEST(SumHash, AnyBitAndAnySwapShows) {
    std::vector<uint16_t> data(64);
    for (size_t i = 0; i < data.size(); ++i) data[i] = uint16_t(i / 8);
    const uint64_t want = sum_hash(data.data(), 0, 64, 2);
    for (size_t i = 0; i < data.size(); ++i)
        for (int bit = 0; bit < 16; ++bit) {
            data[i] ^= uint16_t(1 << bit);
            ASSERT_NE(sum_hash(data.data(), 0, 64, 2), want);
            data[i] ^= uint16_t(1 << bit);
        }
    for (size_t i = 8; i < data.size(); ++i) {
        std::swap(data[i], data[0]);
        ASSERT_NE(sum_hash(data.data(), 0, 64, 2), want);
        std::swap(data[i], data[0]);
    }
    EXPECT_NE(text_hash(std::string("a\0", 2)), text_hash("a"));
}

// ---- manifest ----

Manifest example() {
    Manifest m;
    m.run_id = "abc", m.commit = "1234567", m.written_at = "2026-11-21T12:00:00Z", m.device = "a \"device\"";
    m.step = 300, m.updates = 298, m.samples = 4096, m.tokens = int64_t(1) << 45, m.data_hash = 0xfedcba9876543210ull;
    m.validations = 3, m.seconds = 0.1, m.ranks = 4, m.zero = 3;
    m.rollbacks = {{290, 200, 5000, "a \"spike\""}, {295, 100, 1, ""}};
    m.flags = {{"lr", "0.001"}, {"val-data", ""}};
    m.data = R"({"seed":1})";
    m.guards = R"({"skipped":0})", m.gemm_choices = "gemm1\tA GPU\tab\t1.0\tsum\n";
    m.files = {{"config.json", 12, 0xffffffffffffffffull, false, DType::f32, {}},
               {"model.safetensors", int64_t(1) << 40, 1, true, DType::bf16, {{"a", 2}, {"b", 0x8000000000000000ull}}}};
    return m;
}

TEST(Manifest, SurvivesARoundTrip) {
    const Manifest m = example();
    EXPECT_EQ(Manifest::from_json(m.to_json(), "here"), m);
}

// Version 1 had no checksum, so that its text can be changed at will.
std::string version_1(std::string text) {
    const size_t version = text.find("\"version\": 2");
    text[version + 11] = '1';
    const size_t line = text.find(" \"checksum\"");
    return text.erase(line, text.find('\n', line) + 1 - line);
}

TEST(Manifest, EveryFlippedBitIsSeen) {
    const std::string good = example().to_json();
    for (size_t i = 0; i < good.size(); ++i)
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = good;
            bad[i] = char(bad[i] ^ (1 << bit));
            EXPECT_THROW(Manifest::from_json(bad, "x"), Error) << "byte " << i << ", bit " << bit;
        }
}

TEST(Manifest, FieldsOfALaterProgramAreIgnored) {
    std::string text = version_1(example().to_json());
    text.insert(text.find(" \"step\""), " \"expert_parallel\": {\"ranks\": 8},\n");
    EXPECT_EQ(Manifest::from_json(text, "here"), example());
}

TEST(Manifest, KeepsPathsThatAreNoUtf8) {
    Manifest m = example();
    m.flags["data"] = "/data/caf\xe9";
    EXPECT_EQ(Manifest::from_json(m.to_json(), "here"), m);
}

// Which counted skipped updates and knew no rollbacks.
TEST(Manifest, ReadsThatOfAnEarlierVersion) {
    std::string text = version_1(example().to_json());
    const size_t at = text.find(" \"updates\": 298,\n");
    ASSERT_NE(at, std::string::npos);
    text.erase(at, text.find('\n', at) + 1 - at);
    const size_t list = text.find(" \"rollbacks\": ["), end = text.find(" ],\n", list);
    ASSERT_NE(end, std::string::npos);
    text.erase(list, end + 4 - list);
    const Manifest m = Manifest::from_json(text, "here");
    EXPECT_EQ(m.updates, 300);
    EXPECT_TRUE(m.rollbacks.empty());
}

TEST(Manifest, RefusesWhatIsWrongNamingIt) {
    const std::string good = version_1(example().to_json());
    const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
        {"\"version\": 1", "\"version\": 3", "this program reads versions 1 and 2"},
        {"ringzero checkpoint", "other", "format"},
        {"\"step\": 300", "\"step\": -1", "step"},
        {"\"step\": 300", "\"step\": 1e30", "step"},
        {"\"step\": 300", "\"step\": \"300\"", "step"},
        {"\"updates\": 298", "\"updates\": 301", "updates"},
        {"\"zero\": 3", "\"zero\": 4", "zero"},
        {"\"from\": 290", "\"from\": -1", "from"},
        {"\"samples\": 5000", "\"samples\": \"5000\"", "samples"},
        {"config.json", "../config.json", "no path inside"},
        {"config.json", "/etc/passwd", "no path inside"},
        {"config.json", "model.safetensors", "listed twice"},
        {"BF16", "I8", "dtype"},
        {"fedcba9876543210", "fedcba987654321", "data_hash"},
        {"fedcba9876543210", "fedcba987654321G", "data_hash"},
        {"\"files\"", "\"fails\"", "files"},
    };
    for (const auto& [from, to, part] : cases) {
        std::string bad = good;
        ASSERT_TRUE(says(bad, from));
        bad.replace(bad.find(from), from.size(), to);
        const std::string error = error_of([&] { Manifest::from_json(bad, "/run/manifest.json"); });
        EXPECT_TRUE(says(error, part)) << to;
        EXPECT_EQ(error.find("/run/manifest.json"), 0u) << error;
    }
    for (size_t n : {size_t(0), size_t(1), good.size() / 2, good.size() - 2})
        EXPECT_THROW(Manifest::from_json(good.substr(0, n), "x"), Error) << n;
}

// Deterministic damage of every kind: an Error or a manifest, nothing else.
TEST(Manifest, DamagedBytesNeverCrash) {
    const std::string good = version_1(example().to_json());
    std::mt19937 rng(7);
    for (int i = 0; i < 3000; ++i) {
        std::string bad = good;
        for (int k = 0; k < 1 + int(rng() % 4); ++k) bad[rng() % bad.size()] = char(rng());
        try {
            Manifest::from_json(bad, "x");
        } catch (const Error&) {
        }
    }
}

// ---- the folder ----

TEST(CheckpointStore, CountsOnlyCompleteOnesAndCleansUp) {
    TempFolder f;
    CheckpointStore store(f.path);
    EXPECT_TRUE(store.steps().empty());
    for (int64_t step : {20, 5, 100}) write_text(store.path(step) + "/manifest.json", "{}");
    fs::create_directories(store.path(7));  // no manifest
    write_text(store.folder() + "/step_12x/manifest.json", "{}");
    write_text(store.folder() + "/step_12/manifest.json", "{}");
    write_text(store.folder() + "/.tmp-step_000000030-a/manifest.json", "{}");
    write_text(store.folder() + "/.trash-step_000000002/manifest.json", "{}");
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{5, 20, 100}));
    store.clean();
    EXPECT_FALSE(fs::exists(store.folder() + "/.tmp-step_000000030-a"));
    EXPECT_FALSE(fs::exists(store.folder() + "/.trash-step_000000002"));
    store.collect(0, 0);
    EXPECT_EQ(store.steps().size(), 3u);
    store.collect(1, 5);
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{5, 20, 100})) << "all are multiples of 5";
    store.collect(1, 20);
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{20, 100}));
    store.collect(2, 0);
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{20, 100}));
    EXPECT_EQ(store.abandon_after(20, "x"), (std::vector<int64_t>{100}));
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{20}));
    // The one just published stays, whatever its number.
    for (int64_t step : {40, 60, 7}) write_text(store.path(step) + "/manifest.json", "{}");
    store.collect(2, 0, 7);
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{7, 60}));
    store.collect(1, 0, 7);
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{7}));
    EXPECT_TRUE(fs::exists(store.path(100) + "-abandoned-x/manifest.json"));
}

TEST(CheckpointStore, AStepOutsideOfSaveEveryGoesFirst) {
    TempFolder f;
    const CheckpointStore store(f.path);
    for (int64_t step : {4, 8, 10}) write_text(store.path(step) + "/manifest.json", "{}");
    store.collect(2, 0, -1, 4);
    write_text(store.path(12) + "/manifest.json", "{}");
    store.collect(2, 0, 12, 4);  // as without the stop after step 10
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{8, 12}));
}

TEST(CheckpointStore, PublishReplacesInOneMove) {
    TempFolder f;
    CheckpointStore store(f.path);
    write_text(store.temporary(3, "a") + "/manifest.json", "first");
    store.publish(3, "a");
    EXPECT_EQ(read_file(store.path(3) + "/manifest.json"), "first");
    write_text(store.temporary(3, "b") + "/manifest.json", "second");
    store.publish(3, "b");
    EXPECT_EQ(read_file(store.path(3) + "/manifest.json"), "second");
    EXPECT_FALSE(fs::exists(store.temporary(3, "b")));
    EXPECT_EQ(read_file(store.folder() + "/latest"), "step_000000003\n");
}

// ---- save and load ----

ModelConfig checkpoint_toy() { return toy24(/*tied=*/false, /*layers=*/2); }

// A state on one process; every array is full of its own values.
struct State {
    explicit State(DType param, DType master = DType::f32, DType adam = DType::f32)
        : core(checkpoint_toy(),
               {.zero = {.param_dtype = param,
                         .grad_dtype = param,
                         .wire_dtype = param,
                         .master_dtype = master,
                         .adam_dtype = adam},
                .adamw = {},
                .stage = {.B = 1, .T = 8}},
               cpu, mesh) {}
    // Values that all types hold exactly, and nothing in the padding: calls body(array, its type, element, value).
    template <class Body>
    void each(const Body& body) {
        for (const OwnedRange& r : zero.optimizer.owned())
            for (const StateArray& a : state_arrays(zero.options))
                for (int64_t i = 0; i < table.units()[size_t(r.unit)].size; ++i)
                    body(r.*a.where, a.dtype, i, value(r.global_offset + i, a.part));
    }
    void fill() {
        each(set);
        zero.optimizer.all_gather_updated();
        stream.synchronize();
    }
    void expect_filled() {
        int64_t wrong = 0;
        each([&](const void* p, DType d, int64_t i, float x) { wrong += get(p, d, i) != x; });
        EXPECT_EQ(wrong, 0);
    }
    static float value(int64_t i, StatePart part) {  // parameters are their masters
        return float((i * 7 + std::max(1, int(part)) * 13) % 101 - 50) / 32;
    }
    static void set(void* p, DType d, int64_t i, float x) {
        with_dtype(d, [&]<class E>() { static_cast<E*>(p)[i] = E(x); });
    }
    static float get(const void* p, DType d, int64_t i) {
        return with_dtype(d, [&]<class E>() { return float(static_cast<const E*>(p)[i]); });
    }
    const Device cpu{DeviceKind::cpu, 0};
    Mesh mesh{cpu};
    TrainState core;
    const ModelConfig& config = core.config;
    const ParamTable& table = core.table;
    Stream& stream = core.compute;
    Zero& zero = core.zero;
};

Manifest manifest_of(int64_t step) {
    Manifest m = example();
    m.files.clear();
    m.step = m.updates = step;
    return m;
}

struct Saved {
    explicit Saved(DType param, bool background = true, DType master = DType::f32, DType adam = DType::f32,
                   int64_t shard_above = 0)
        : state(param, master, adam) {
        state.fill();
        writer = std::make_unique<CheckpointWriter>(
            process, state.cpu, state.stream, state.zero, state.table, state.config,
            SaveOptions{.run_folder = folder.path, .background = background, .shard_above = shard_above});
    }
    std::string save(int64_t step) {
        writer->save(manifest_of(step));
        return writer->finish() ? CheckpointStore(folder.path).path(step) : "";
    }
    std::string load(State& into, const std::string& path) {
        const Manifest m = check_checkpoint(path);
        return load_state(path, m, into.table, process, into.cpu, into.stream, into.zero, nullptr);
    }
    Process process;
    TempFolder folder;
    State state;
    std::unique_ptr<CheckpointWriter> writer;
};

TEST(Checkpoint, ComesBackInEveryType) {
    for (const bool background : {true, false})
        for (const DType param : {DType::f32, DType::bf16}) {
            Saved saved(param, background);
            const std::string path = saved.save(5);
            ASSERT_NE(path, "");
            EXPECT_EQ(fs::exists(path + "/optimizer/master.safetensors"), param == DType::bf16);
            for (const DType other : {DType::f32, DType::bf16}) {
                State into(other);
                EXPECT_EQ(saved.load(into, path), "");
                into.expect_filled();
            }
        }
    Saved narrow(DType::bf16, true, DType::bf16, DType::bf16);
    const std::string path = narrow.save(5);
    ASSERT_NE(path, "");
    State into(DType::f32);
    EXPECT_EQ(narrow.load(into, path), "");
    into.expect_filled();
}

TEST(Checkpoint, IsAHuggingFaceModel) {
    Saved saved(DType::bf16);
    const std::string path = saved.save(5);
    const HfWeights weights(path, saved.state.table);
    EXPECT_EQ(weights.dtype(), DType::bf16);
    EXPECT_EQ(differences(load_config(path), saved.state.config, "a", "b"), "");
    for (const Tensor& t : saved.state.table.tensors()) {
        std::vector<float> values(static_cast<size_t>(t.size));
        weights.read(t, 0, t.size, DType::f32, values.data());
        for (int64_t i = 0; i < t.size; ++i)
            ASSERT_EQ(values[size_t(i)], State::value(t.offset + i, StatePart::model)) << t.name;
    }
}

// Bytes that the disk gave to this process.
int64_t bytes_from_disk() {
    std::ifstream file("/proc/self/io");
    int64_t value = -1;
    for (std::string name; file >> name >> value;)
        if (name == "read_bytes:") return value;
    return -1;
}

TEST(Checkpoint, IsReadBackFromTheDiskNotFromMemory) {
    Saved saved(DType::f32);
    const std::string probe = saved.folder.path + "/probe";
    write_text(probe, std::string(1 << 16, 'x'));
    const int fd = ::open(probe.c_str(), O_RDWR);
    ASSERT_TRUE(::fsync(fd) == 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    ::close(fd);
    const int64_t before_probe = bytes_from_disk();
    read_file(probe);
    if (bytes_from_disk() < before_probe + (1 << 16))
        GTEST_SKIP() << "/tmp has no disk below it that the kernel counts";
    const int64_t before = bytes_from_disk();
    const std::string path = saved.save(5);
    ASSERT_NE(path, "");
    int64_t tensors = 0;
    for (const ManifestFile& f : check_checkpoint(path).files)
        if (f.holds_tensors) tensors += f.bytes;
    EXPECT_GE(bytes_from_disk() - before, tensors);
}

TEST(Checkpoint, TheStateOfTheSaveIsSavedNotALaterOne) {
    Saved saved(DType::f32);
    saved.writer->save(manifest_of(5));
    for (const OwnedRange& r : saved.state.zero.optimizer.owned()) saved.state.stream.zero(r.m, r.elements.size() * 4);
    ASSERT_TRUE(saved.writer->finish());
    State into(DType::f32);
    EXPECT_EQ(saved.load(into, CheckpointStore(saved.folder.path).path(5)), "");
    into.expect_filled();
}

TEST(Checkpoint, EveryDamagedByteIsFoundAndNamed) {
    Saved saved(DType::bf16);
    const std::string good = saved.save(5), bad = saved.folder.path + "/bad";
    const auto damaged = [&](const std::function<void()>& damage) {
        fs::remove_all(bad);
        fs::copy(good, bad, fs::copy_options::recursive);
        damage();
        State into(DType::bf16);
        std::string problem;
        const std::string error = error_of([&] { problem = saved.load(into, bad); });
        return problem + error;
    };
    EXPECT_EQ(damaged([] {}), "");
    for (const char* file :
         {"model.safetensors", "optimizer/master.safetensors", "optimizer/m.safetensors", "optimizer/v.safetensors"})
        for (const int64_t at : {int64_t(9), int64_t(-1), int64_t(fs::file_size(good + "/" + file) / 2)}) {
            const std::string text = damaged([&] { flip_bit(bad + "/" + file, at); });
            EXPECT_TRUE(says(text, file));
            if (at == -1) {
                EXPECT_TRUE(says(text, "tensor lm_head.weight"));
            }
        }
    EXPECT_TRUE(says(damaged([&] { flip_bit(bad + "/config.json", 20); }), "config.json"));
    EXPECT_TRUE(says(damaged([&] { fs::resize_file(bad + "/optimizer/m.safetensors", 100); }), "has 100 bytes"));
    EXPECT_TRUE(says(damaged([&] { fs::resize_file(bad + "/optimizer/m.safetensors", 0); }), "has 0 bytes"));
    EXPECT_TRUE(says(damaged([&] { fs::remove(bad + "/optimizer/v.safetensors"); }), "v.safetensors: missing"));
    EXPECT_TRUE(says(damaged([&] { fs::remove(bad + "/manifest.json"); }), "not a checkpoint"));
    EXPECT_TRUE(says(damaged([&] { write_text(bad + "/manifest.json", ""); }), "manifest.json"));
    EXPECT_TRUE(says(damaged([&] {
                         fs::copy_file(bad + "/optimizer/m.safetensors", bad + "/optimizer/v.safetensors",
                                       fs::copy_options::overwrite_existing);
                     }),
                     "v.safetensors"));
}

// Embedding, two blocks, head: what the manifest lists, and what another reader finds by the index.
TEST(Checkpoint, AFileForEachUnitAboveASize) {
    TempFolder kept;
    const std::string one = kept.path + "/one";
    {
        Saved whole(DType::bf16);
        fs::copy(whole.save(5), one, fs::copy_options::recursive);
    }
    const int64_t largest = int64_t(fs::file_size(one + "/optimizer/m.safetensors"));
    {  // as large as the largest file: nothing is cut
        Saved fits(DType::bf16, true, DType::f32, DType::f32, largest);
        EXPECT_TRUE(fs::exists(fits.save(5) + "/optimizer/m.safetensors"));
    }
    {
        Saved above(DType::bf16, true, DType::f32, DType::f32, largest - 1);
        const std::string some = above.save(5);
        EXPECT_TRUE(fs::exists(some + "/model.safetensors"));
        EXPECT_TRUE(fs::exists(some + "/optimizer/m-00001-of-00004.safetensors"));
        State mixed(DType::bf16);
        EXPECT_EQ(above.load(mixed, some), "");
        mixed.expect_filled();
    }
    Saved saved(DType::bf16, true, DType::f32, DType::f32, /*shard_above=*/1);
    const std::string many = saved.save(5);
    ASSERT_NE(many, "");
    EXPECT_FALSE(fs::exists(many + "/model.safetensors"));
    for (const char* stem : {"model", "optimizer/master", "optimizer/m", "optimizer/v"})
        for (int i = 1; i <= 4; ++i)
            EXPECT_TRUE(fs::exists(many + format("/%s-%05d-of-00004.safetensors", stem, i))) << stem << " " << i;
    State into(DType::bf16);
    EXPECT_EQ(saved.load(into, many), "");
    into.expect_filled();
    const HfWeights theirs(one, saved.state.table), ours(many, saved.state.table);
    for (const Tensor& t : saved.state.table.tensors()) {
        std::vector<float> a(size_t(t.size), -1), b(size_t(t.size), -2);
        theirs.read(t, 0, t.size, DType::f32, a.data());
        ours.read(t, 0, t.size, DType::f32, b.data());
        EXPECT_EQ(a, b) << t.name;
    }

    // Damage is named by file and tensor.
    const std::string second = "optimizer/m-00002-of-00004.safetensors";
    flip_bit(many + "/" + second, -1);
    EXPECT_TRUE(says(saved.load(into, many), second + ": tensor model.layers.0."));
    fs::copy_file(many + "/optimizer/m-00003-of-00004.safetensors", many + "/" + second,
                  fs::copy_options::overwrite_existing);  // the same size, the next block
    EXPECT_TRUE(says(saved.load(into, many), second + ": its header is not that"));
    Manifest listed = check_checkpoint(many);
    std::erase_if(listed.files, [&](const ManifestFile& f) { return f.path == second; });
    EXPECT_TRUE(says(load_state(many, listed, into.table, saved.process, into.cpu, into.stream, into.zero, nullptr),
                     "the manifest has no hash of model.layers.0.input_layernorm.weight"));
    listed = check_checkpoint(many);
    for (ManifestFile& f : listed.files)
        if (f.path == second) f.tensors["model.norm.weight"] = 1;
    EXPECT_TRUE(says(load_state(many, listed, into.table, saved.process, into.cpu, into.stream, into.zero, nullptr),
                     "the manifest has several hashes of model.norm.weight"));
}

TEST(Checkpoint, AnotherModelsFilesAreRefused) {
    Saved saved(DType::f32);
    const std::string path = saved.save(5);
    ModelConfig other = checkpoint_toy();
    other.ffn = 24;
    other.resolve();
    Mesh mesh(saved.state.cpu);
    TrainState core(other, {.zero = {}, .adamw = {}, .stage = {.B = 1, .T = 8}}, saved.state.cpu, mesh);
    EXPECT_NE(load_state(path, check_checkpoint(path), core.table, saved.process, saved.state.cpu, core.compute,
                         core.zero, nullptr),
              "");
}

void set_element(const OwnedRange& r, StatePart part, const ZeroOptions& o, int64_t i, float x) {
    for (const StateArray& a : state_arrays(o))
        if (a.part == part) State::set(r.*a.where, a.dtype, i, x);
}

// The one before stays, and the message names tensor, element and step.
TEST(Checkpoint, AStateThatIsNotFiniteIsNotSaved) {
    for (const bool background : {true, false})
        for (const StatePart part : {StatePart::model, StatePart::master, StatePart::m, StatePart::v})
            for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
                Saved saved(DType::bf16, background, DType::f32, part == StatePart::v ? DType::bf16 : DType::f32);
                ASSERT_NE(saved.save(5), "");
                const OwnedRange& r = saved.state.zero.optimizer.owned()[1];  // block 0
                const Tensor& t = saved.state.table.block(0, kGate);
                const int64_t at = t.offset - r.global_offset + 77;
                set_element(r, part, saved.state.zero.options, at, bad);
                EXPECT_EQ(saved.save(6), "");
                const std::vector<SaveReport> reports = saved.writer->reports();
                ASSERT_EQ(reports.size(), 2u);
                EXPECT_TRUE(reports[1].not_finite);
                EXPECT_TRUE(says(reports[1].error,
                                 format("the state of step 6 is not finite: %s: tensor %s, element 77 is %s",
                                        path_of(part).c_str(), t.name.c_str(), std::isnan(bad) ? "nan" : "-inf")));
                const CheckpointStore store(saved.folder.path);
                EXPECT_EQ(store.steps(), (std::vector<int64_t>{5}));
                set_element(r, part, saved.state.zero.options, at, 1);
                EXPECT_NE(saved.save(7), "");
                EXPECT_FALSE(saved.writer->reports().back().not_finite);
            }
}

// As an earlier version may have left it: every hash is right.
TEST(Checkpoint, ACheckpointThatIsNotFiniteIsNotResumed) {
    Saved saved(DType::f32);
    const std::string path = saved.save(5), file = "optimizer/v.safetensors";
    const Tensor& last = saved.state.table.tensors().back();
    std::vector<float> values(static_cast<size_t>(last.size));
    const int64_t at = int64_t(fs::file_size(path + "/" + file)) - last.size * 4;
    std::fstream data(path + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    data.seekg(at).read(reinterpret_cast<char*>(values.data()), last.size * 4);
    values[3] = std::numeric_limits<float>::infinity();
    data.seekp(at).write(reinterpret_cast<const char*>(values.data()), last.size * 4);
    data.close();
    Manifest m = check_checkpoint(path);
    for (ManifestFile& f : m.files)
        if (f.path == file) f.tensors[last.name] = sum_hash(values.data(), 0, last.size, 4);
    write_text(path + "/manifest.json", m.to_json());
    State into(DType::f32);
    const std::string problem = saved.load(into, path);
    EXPECT_TRUE(says(problem, file + ": tensor " + last.name + ", element 3 is inf"));
}

TEST(Finite, FindsTheFirstInEveryTypeAndPlace) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
        for (const int64_t at : {0, 1, 4095, 4096, 8999}) {
            std::vector<char> bytes(static_cast<size_t>(9000 * size_of(dtype)));
            for (int64_t i = 0; i < 9000; ++i) State::set(bytes.data(), dtype, i, i % 2 ? -60000.0f : 1e-7f);
            EXPECT_EQ(first_not_finite(bytes.data(), 9000, dtype), -1);
            State::set(bytes.data(), dtype, 8999, std::numeric_limits<float>::quiet_NaN());
            State::set(bytes.data(), dtype, at, -std::numeric_limits<float>::infinity());
            EXPECT_EQ(first_not_finite(bytes.data(), 9000, dtype), at);
            EXPECT_EQ(first_not_finite(bytes.data(), at, dtype), -1);
        }
}

// A save that can't be written leaves the one before, and nothing half done; the next save works again.
TEST(Checkpoint, AFileSizeLimitLeavesTheOneBefore) {
    Saved saved(DType::f32);
    ASSERT_NE(saved.save(5), "");
    {
        const FileSizeLimit limit(20000);
        EXPECT_EQ(saved.save(6), "");
    }
    const std::vector<SaveReport> reports = saved.writer->reports();
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_EQ(reports[0].error, "");
    EXPECT_TRUE(says(reports[1].error, "File too large"));
    const CheckpointStore store(saved.folder.path);
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{5}));
    EXPECT_EQ(names_in(store.folder()).size(), 2u) << "step_000000005 and latest";
    EXPECT_NE(saved.save(7), "");
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{5, 7}));
}

// ---- several ranks ----

// Three ranks as threads save as often as `expected` has entries: what that took rank 0, and its reports.
struct SavesOfThree {
    std::vector<double> seconds;
    std::vector<SaveReport> reports;
};
SavesOfThree saves_of_three(const std::string& folder, const std::string& faults, double timeout_s, bool background,
                            const std::vector<bool>& expected, double pause_before_last = 0) {
    SavesOfThree result;
    LoopbackHub hub(3);
    run_processes(hub, [&](Process& process) {
        const int rank = process.rank();
        Mesh mesh(hub, rank);
        TrainState core(checkpoint_toy(), {.zero = {.stage = 3}, .adamw = {}, .stage = {.B = 1, .T = 8}},
                        hub.device(rank), mesh);
        initialise_weights(core.table, 5, core.compute, core.zero);
        CheckpointWriter writer(process, hub.device(rank), core.compute, core.zero, core.table, core.config,
                                {.run_folder = folder, .background = background, .timeout_s = timeout_s});
        const FaultScope armed(Faults(rank, faults));
        for (size_t i = 0; i < expected.size(); ++i) {
            if (i + 1 == expected.size()) std::this_thread::sleep_for(std::chrono::duration<double>(pause_before_last));
            process.barrier();
            const auto start = std::chrono::steady_clock::now();
            writer.save(manifest_of(int64_t(i) + 1));
            EXPECT_EQ(writer.finish(), expected[i]) << "save " << i << " on rank " << rank;
            if (rank == 0)
                result.seconds.push_back(
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        if (rank == 0) result.reports = writer.reports();
    });
    return result;
}

// It can't write a word about it either.
TEST(CheckpointOfThreeRanks, ARankWhoseDiskTakesNothingIsNamedAtOnce) {
    for (const bool background : {true, false})
        for (const int bad : {0, 1, 2}) {
            TempFolder folder;
            const SavesOfThree saves =
                saves_of_three(folder.path, format("file.write:%d:1+:enospc", bad), 60, background, {false, false});
            ASSERT_EQ(saves.reports.size(), 2u);
            for (const SaveReport& r : saves.reports) {
                EXPECT_EQ(r.error.rfind(format("rank %d: ", bad), 0), 0u) << r.error;
                EXPECT_TRUE(says(r.error, "No space left on device"));
            }
            for (const double s : saves.seconds) EXPECT_LT(s, 30);
            EXPECT_TRUE(names_in(folder / "checkpoints").empty()) << "nothing half done stays";
        }
}

// No rank has a checkpoint, all ranks know, and the next save works.
TEST(CheckpointOfThreeRanks, OneRanksFailureIsEveryones) {
    TempFolder folder;
    const SavesOfThree saves = saves_of_three(folder.path, "checkpoint.fsync:1:1:eio", 60, true, {false, true});
    ASSERT_EQ(saves.reports.size(), 2u);
    EXPECT_TRUE(says(saves.reports[0].error, "rank 1"));
    EXPECT_EQ(CheckpointStore(folder.path).steps(), (std::vector<int64_t>{2}));
}

// The save fails after its limit, the run has other things to do, and saves work again when the file system does.
TEST(CheckpointOfThreeRanks, AFileSystemThatDoesNotAnswerFailsTheSave) {
    TempFolder folder;
    const SavesOfThree saves =
        saves_of_three(folder.path, "checkpoint.shard:1:1:sleep=5", 2, true, {false, false, true}, 5);
    ASSERT_EQ(saves.reports.size(), 3u);
    EXPECT_TRUE(says(saves.reports[0].error, "rank 1: the file system has not answered"));
    EXPECT_TRUE(says(saves.reports[1].error, "rank 1: the file system still has not answered to the save of step 1"));
    EXPECT_EQ(saves.reports[2].error, "");
    EXPECT_EQ(CheckpointStore(folder.path).steps(), (std::vector<int64_t>{3}));
}

}  // namespace
}  // namespace rz
