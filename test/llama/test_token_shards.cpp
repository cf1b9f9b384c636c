#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "llama/data/token_shards.h"
#include "test/llama/helpers.h"

namespace {

namespace fs = std::filesystem;
using namespace rz;

class TokenShards : public testing::Test {
   protected:
    std::string path(const std::string& base) const { return dir_ + "/" + base; }
    std::string write(const std::string& base, const std::string& bytes) const {
        std::ofstream(path(base), std::ios::binary) << bytes;
        return path(base);
    }

    const TempFolder folder_;
    const std::string& dir_ = folder_.path;
};

template <class T>
std::string bytes_of(const std::vector<T>& v) {
    return {reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T)};
}

std::string llmc_header(int32_t magic, int32_t version, int32_t tokens) {
    std::vector<int32_t> header(256, 0);
    header[0] = magic, header[1] = version, header[2] = tokens;
    return bytes_of(header);
}

// Token value equals position.
template <class T>
std::string counting(int64_t n) {
    std::vector<T> ids(n);
    std::iota(ids.begin(), ids.end(), T(0));
    return bytes_of(ids);
}

std::string gpt2(int64_t n) { return llmc_header(20240520, 1, int32_t(n)) + counting<uint16_t>(n); }
std::string llama3(int64_t n) { return llmc_header(20240801, 7, int32_t(n)) + counting<uint32_t>(n); }

std::string megatron_index(int dtype, const std::vector<int32_t>& lengths, int width) {
    std::vector<int64_t> offsets, documents{0, int64_t(lengths.size())};
    int64_t at = 0;
    for (int32_t n : lengths) offsets.push_back(at), at += int64_t(n) * width;
    const std::vector<uint64_t> counts{lengths.size(), documents.size()};
    return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({1}) + char(dtype) + bytes_of(counts) +
           bytes_of(lengths) + bytes_of(offsets) + bytes_of(documents);
}

void expect_counting(const TokenShard& shard, int64_t n) {
    ASSERT_EQ(shard.tokens(), n);
    std::vector<int32_t> ids(n, -1);
    shard.read(0, n, n, ids.data());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(ids[i], i);
    int32_t last = -1;
    shard.read(n - 1, 1, n, &last);
    EXPECT_EQ(last, n - 1);
}

TEST_F(TokenShards, ReadsEveryFormat) {
    expect_counting(TokenShard(write("a.bin", gpt2(65536))), 65536);
    expect_counting(TokenShard(write("b.bin", llama3(70001))), 70001);
    expect_counting(TokenShard(write("c.bin", counting<uint16_t>(999)), /*raw16=*/true), 999);
    EXPECT_EQ(TokenShard(path("a.bin")).format(), ShardFormat::kLlmcGpt2);
    EXPECT_EQ(TokenShard(path("b.bin")).format(), ShardFormat::kLlmcLlama3);
    EXPECT_EQ(TokenShard(path("a.bin"), /*raw16=*/true).format(), ShardFormat::kLlmcGpt2) << "a magic number wins";
}

TEST_F(TokenShards, ReadsMegatronByIndexOrData) {
    write("u8.idx", megatron_index(1, {100, 0, 56}, 1));
    write("u8.bin", counting<uint8_t>(156));
    write("u16.idx", megatron_index(8, {7, 993}, 2));
    write("u16.bin", counting<uint16_t>(1000));
    write("i32.idx", megatron_index(4, {70000}, 4) + std::string(1, '\0'));  // with modes
    write("i32.bin", counting<int32_t>(70000));
    for (const char* end : {".idx", ".bin"}) {
        expect_counting(TokenShard(path(std::string("u8") + end)), 156);
        expect_counting(TokenShard(path(std::string("u16") + end)), 1000);
        expect_counting(TokenShard(path(std::string("i32") + end)), 70000);
    }
    const auto both = open_shards(expand_paths(path("u16.*")), {.vocab = 1000});
    EXPECT_EQ(both.size(), 1u) << "a pair matched by both of its names is one shard";
}

TEST_F(TokenShards, EachDamageHasItsOwnMessage) {
    struct Case {
        const char* file;
        std::string bytes;
        const char* expected;
    };
    const std::string good = gpt2(100);
    std::string swapped = good;
    std::swap(swapped[0], swapped[3]), std::swap(swapped[1], swapped[2]);
    std::string negative = good;
    std::memset(negative.data() + 8, 0xff, 4);
    const std::string index = megatron_index(8, {50, 50}, 2);
    std::string moved = index, huge = index, odd_type = index, future = index;
    moved[34 + 8 + 8] = 99;
    std::memset(huge.data() + 18, 0xff, 8);
    odd_type[17] = 7;
    future[9] = 2;
    const Case cases[] = {
        {"empty.bin", "", "the file is empty"},
        {"tiny.bin", "abc", "3 bytes are too short"},
        {"header.bin", good.substr(0, 500), "header is cut off: 500 bytes of 1024"},
        {"magic.bin", "abcd" + good.substr(4), "not a token shard: no known magic number"},
        {"lfs.bin", "version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
        {"html.bin", "<html>404</html>", "failed download"},
        {"eval.bin", llmc_header(20240522, 1, 0), "evaluation file"},
        {"endian.bin", swapped, "big-endian"},
        {"version.bin", llmc_header(20240520, 2, 0), "version 2, but only version 1"},
        {"version7.bin", llmc_header(20240801, 1, 0), "version 1, but only version 7"},
        {"negative.bin", negative, "claims -1 tokens"},
        {"short.bin", good.substr(0, good.size() - 1),
         "1223 bytes, but its header of 100 tokens asks for 1224: the file is cut off"},
        {"long.bin", good + "x", "the file is too long"},
        {"raw.bin", counting<uint16_t>(300), "pass --raw16"},
        {"cut.idx", index.substr(0, 33), "index is cut off"},
        {"size.idx", index + "abc", "documents ask for"},
        {"moved.idx", moved, "does not follow"},
        {"huge.idx", huge, "more than its"},
        {"type.idx", odd_type, "dtype code 7"},
        {"future.idx", future, "version 2"},
        {"lonely.idx", index, "lonely.bin: cannot open: No such file"},
    };
    for (const auto& base : {"moved.bin", "type.bin", "huge.bin", "size.bin", "future.bin"})
        write(base, counting<uint16_t>(100));
    for (const auto& c : cases) {
        write(c.file, c.bytes);
        const std::string message = error_of([&] { TokenShard shard(path(c.file)); });
        EXPECT_TRUE(says(message, c.expected)) << c.file;
        EXPECT_TRUE(says(message, dir_)) << "names no file: ";
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
    EXPECT_TRUE(says(error_of([&] { TokenShard s(write("odd.bin", "xyz"), true); }), "even number"));
    EXPECT_TRUE(says(error_of([&] { TokenShard s(dir_); }), "it is a folder"));
    EXPECT_TRUE(says(error_of([&] { TokenShard s(path("none")); }), "cannot open"));
    write("pair.idx", megatron_index(8, {50}, 2));
    write("pair.bin", counting<uint16_t>(51));
    EXPECT_TRUE(says(error_of([&] { TokenShard s(path("pair.bin")); }), "do not belong together"));
}

TEST_F(TokenShards, NamesFilePlaceAndValueOfABadToken) {
    write("a.bin", llmc_header(20240520, 1, 3) + bytes_of<uint16_t>({1, 2, 300}));
    const std::string expected = "a.bin: token 2 (byte offset 1028) is 300, outside the vocabulary of 300";
    const auto opening = error_of([&] { open_shards({path("a.bin")}, {.vocab = 300}); });
    EXPECT_TRUE(says(opening, expected));
    EXPECT_NO_THROW(open_shards({path("a.bin")}, {.vocab = 301}));

    const auto shards = open_shards({path("a.bin")}, {.vocab = 300, .scan_bytes = 0});
    int32_t out[3];
    EXPECT_NO_THROW(shards[0].read(0, 2, 300, out));
    const auto reading = error_of([&] { shards[0].read(1, 2, 300, out); });
    EXPECT_TRUE(says(reading, expected));

    write("n.idx", megatron_index(4, {2}, 4));
    write("n.bin", bytes_of<int32_t>({5, -7}));
    const auto negative = error_of([&] { open_shards({path("n.bin")}, {.vocab = 2147483647}); });
    EXPECT_TRUE(says(negative, "token 1 (byte offset 4) is -7"));
    write("u.bin", llmc_header(20240801, 7, 1) + bytes_of<uint32_t>({4294967295u}));
    const auto wide = error_of([&] { open_shards({path("u.bin")}, {.vocab = 2147483647}); });
    EXPECT_TRUE(says(wide, "is 4294967295"));
}

TEST_F(TokenShards, ListsAndPatternsOfPathsAreExpandedInOrder) {
    for (const char* base : {"b_train_1.bin", "a_train_0.bin", "a_val_0.bin"}) write(base, gpt2(10));
    const auto train = expand_paths(path("*_train_*.bin"));
    EXPECT_EQ(train, (std::vector<std::string>{path("a_train_0.bin"), path("b_train_1.bin")}));
    EXPECT_EQ(expand_paths(path("b_train_1.bin") + "," + path("a_*")).size(), 3u);
    const auto nothing = error_of([&] { expand_paths(path("a_train_0.bin") + "," + path("x*.bin")); });
    EXPECT_TRUE(says(nothing, "no data file matches '" + path("x*.bin") + "'"));
    const auto twice = error_of([&] { expand_paths(path("*.bin") + "," + path("a_val_0.bin")); });
    EXPECT_TRUE(says(twice, "a_val_0.bin: listed twice"));
    EXPECT_TRUE(says(error_of([&] { expand_paths(","); }), "no data files given"));
}

TEST_F(TokenShards, MixedFormatsNameBothFiles) {
    write("a.bin", gpt2(10));
    write("b.bin", llama3(10));
    const auto message = error_of([&] { open_shards(expand_paths(path("*.bin")), {.vocab = 100}); });
    EXPECT_TRUE(says(message, "a.bin is llm.c gpt-2"));
    EXPECT_TRUE(says(message, "b.bin is llm.c llama-3"));
    write("c.idx", megatron_index(8, {10}, 2)), write("c.bin", counting<uint16_t>(10));
    write("d.idx", megatron_index(4, {10}, 4)), write("d.bin", counting<uint32_t>(10));
    const auto widths = error_of([&] { open_shards({path("c.bin"), path("d.bin")}, {.vocab = 100}); });
    EXPECT_TRUE(says(widths, "d.bin of 4"));
}

// A hole costs no disk: 2^31 - 1 tokens of 4 bytes are just under 8 GiB, past every 32-bit offset.
TEST_F(TokenShards, TokensBeyondFourGiBAreRead) {
    constexpr int64_t kTokens = 2147483647;
    const auto file = write("big.bin", llmc_header(20240801, 7, kTokens));
    fs::resize_file(file, 1024 + 4 * kTokens);
    const int64_t places[] = {(1ll << 29) - 257, (1ll << 30) - 257, (1ll << 30) + 5, kTokens - 1};  // 2, 4, 4+ GiB, end
    FILE* f = std::fopen(file.c_str(), "r+b");
    for (size_t i = 0; i < std::size(places); ++i) {
        const uint32_t id = uint32_t(1000 + i);
        ASSERT_EQ(std::fseek(f, 1024 + 4 * places[i], SEEK_SET), 0);
        ASSERT_EQ(std::fwrite(&id, 4, 1, f), 1u);
    }
    std::fclose(f);
    const auto shards = open_shards({file}, {.vocab = 1004});
    ASSERT_EQ(shards[0].tokens(), kTokens);
    for (size_t i = 0; i < std::size(places); ++i) {
        int32_t ids[2] = {-1, -1};
        shards[0].read(places[i] - 1, 2, 1004, ids);
        EXPECT_EQ(ids[0], 0);
        EXPECT_EQ(ids[1], int32_t(1000 + i));
    }
    int32_t id;
    const auto message = error_of([&] { shards[0].read(kTokens - 1, 1, 1003, &id); });
    EXPECT_TRUE(says(message, "byte offset 8589935608"));
}

TEST_F(TokenShards, DatasetJsonIsReadAndItsFaultsAreNamed) {
    const std::string json = R"({"format_version": 1, "name": "toy", "vocab_size": 257,
        "tokenizer": {"kind": "bytes", "file": "tokenizer.json"},
        "train": {"tokens": 10, "shards": [{"file": "toy_train_000000.bin", "tokens": 10}]},
        "val": {"tokens": 4, "bytes_per_token": 0.75, "shards": [{"file": "toy_val_000000.bin", "tokens": 4}]}})";
    write("dataset.json", json);
    const Dataset d = load_dataset(dir_);
    EXPECT_EQ(d.name, "toy");
    EXPECT_EQ(d.vocab, 257);
    EXPECT_EQ(d.tokenizer, path("tokenizer.json"));
    EXPECT_EQ(d.train, std::vector<std::string>{path("toy_train_000000.bin")});
    EXPECT_EQ(d.val, std::vector<std::string>{path("toy_val_000000.bin")});
    EXPECT_EQ(d.val_bytes_per_token, 0.75);
    EXPECT_EQ(d.entropy_nats, -1);
    EXPECT_TRUE(says(error_of([&] { load_dataset(path("none")); }), "prepare.py stdlib"));

    const auto with = [&](const char* from, const char* to) {
        std::string changed = json;
        changed.replace(changed.find(from), std::strlen(from), to);
        write("dataset.json", changed);
        return error_of([&] { load_dataset(dir_); });
    };
    EXPECT_TRUE(says(with("toy_train_0", "../x/toy_train_0"), "not a plain file name"));
    EXPECT_TRUE(says(with("\"vocab_size\"", "\"vocab\""), "vocab_size"));
    EXPECT_TRUE(says(with("_version\": 1", "_version\": 9"), "format_version 9"));
}

}  // namespace
