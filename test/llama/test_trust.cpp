// Files and text of strangers: what is read, how much of it, and how it is shown (dev/guide/trust.md).

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "llama/base/atomic_file.h"
#include "llama/base/folder_file.h"
#include "llama/base/json.h"
#include "llama/base/toml.h"
#include "llama/model/hf.h"
#include "llama/report/html.h"
#include "llama/tokenizer/tokenizer.h"
#include "test/checks.h"
#include "test/llama/toys.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

class Trust : public testing::Test {
   protected:
    void SetUp() override {
        make_folder(path("model"));
        write_file_atomically(path("secret"), "SECRET");
    }
    std::string path(const std::string& name) const { return root_ / name; }
    void write(const std::string& name, const std::string& text) { write_file_atomically(path(name), text); }
    std::string refusal(const std::string& name) const {
        return error_of([&] { has_file(path("model"), name); });
    }
    const TempFolder root_;
};

TEST_F(Trust, ControlCharactersOfOthersAreShownAndNotObeyed) {
    EXPECT_EQ(printable("a\tb\nc"), "a\tb\nc");
    EXPECT_EQ(printable(std::string("\x1b[2J\r\a\0\x7f", 8)), "\\x1b[2J\\x0d\\x07\\x00\\x7f");
    EXPECT_EQ(printable("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\xa6\x99"), "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\xa6\x99");
    EXPECT_EQ(printable("\xc2\x9b"
                        "31m \x9b \xff\xc3"),
              "\\u009b31m \\x9b \\xff\\xc3");  // C1; no UTF-8
    EXPECT_EQ(printable("\xe2\x80\xae"
                        "abc\xe2\x81\xa6"),
              "\\u202e"
              "abc\\u2066");                                                      // turn the writing
    EXPECT_EQ(printable("\xc0\x80 \xed\xa0\x80"), "\\xc0\\x80 \\xed\\xa0\\x80");  // overlong; a surrogate
    EXPECT_EQ(printable(printable("\x1b")), "\\x1b");
    EXPECT_EQ(printable_line("a\nb\t"), "a\\x0ab\\x09");
    EXPECT_EQ(error_of([] { fail("tensor %s", "\x1b]0;title\a"); }), "tensor \\x1b]0;title\\x07");
    EXPECT_EQ(escape_html("<b>\x1b[1m & \xff"), "&lt;b&gt;\\x1b[1m &amp; \xef\xbf\xbd");
}

TEST_F(Trust, TextInPiecesIsShownAsTheWhole) {
    const std::string text = "x\xf0\x9f\xa6\x99\xc3\x1b[1mbold\x1b[0m \x1b[2J \xe2\x80\xae";
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        PrintablePieces pieces(/*colours=*/true);
        std::string out = pieces.feed(text.substr(0, cut));
        out += pieces.feed(text.substr(cut));
        EXPECT_EQ(out + pieces.finish(), "x\xf0\x9f\xa6\x99\\xc3\x1b[1mbold\x1b[0m \\x1b[2J \\u202e") << cut;
    }
}

TEST_F(Trust, AFileIsAFileOfItsFolder) {
    write("model/config.json", "{}");
    EXPECT_TRUE(has_file(path("model"), "config.json"));
    EXPECT_FALSE(has_file(path("model"), "tokenizer.json"));
    fs::create_symlink("config.json", path("model/same"));
    EXPECT_TRUE(has_file(path("model"), "same"));
    fs::create_symlink(path("secret"), path("model/out"));
    EXPECT_TRUE(says(refusal("out"), "is a link out of its folder, to " + fs::canonical(path("secret")).string()));
    fs::create_symlink("../secret", path("model/up"));
    EXPECT_TRUE(says(refusal("up"), "is a link out of its folder"));
    fs::create_directory_symlink(root_.path, path("model/inner"));
    EXPECT_TRUE(says(refusal("inner/secret"), "is a link out of its folder"));
    make_folder(path("model-2"));  // its name begins as the folder's does
    write("model-2/x", "");
    fs::create_symlink(path("model-2/x"), path("model/beside"));
    EXPECT_TRUE(says(refusal("beside"), "is a link out of its folder"));
    fs::create_symlink("nowhere", path("model/lost"));
    EXPECT_TRUE(says(refusal("lost"), "leads nowhere"));
    fs::create_symlink("loop", path("model/loop"));
    EXPECT_TRUE(says(refusal("loop"), "leads nowhere"));
    ASSERT_EQ(::mkfifo(path("model/fifo").c_str(), 0600), 0);
    EXPECT_TRUE(says(refusal("fifo"), "is a FIFO, not a file"));
    fs::create_symlink("/dev/zero", path("model/zero"));
    EXPECT_TRUE(says(refusal("zero"), "is a device, not a file"));
    make_folder(path("model/folder"));
    EXPECT_TRUE(says(refusal("folder"), "is a folder, not a file"));
}

TEST_F(Trust, TheHuggingFaceCacheLinksToItsBlobs) {
    make_folder(path("hub/models--org--m/snapshots/abc"));
    make_folder(path("hub/models--org--m/blobs"));
    write("hub/models--org--m/blobs/123", "{}");
    fs::create_symlink("../../blobs/123", path("hub/models--org--m/snapshots/abc/config.json"));
    EXPECT_TRUE(has_file(path("hub/models--org--m/snapshots/abc"), "config.json"));
    fs::create_symlink("../../../../secret", path("hub/models--org--m/snapshots/abc/tokenizer.json"));
    EXPECT_TRUE(says(error_of([&] { has_file(path("hub/models--org--m/snapshots/abc"), "tokenizer.json"); }),
                     "is a link out of its folder"));
}

TEST_F(Trust, WhatIsCopiedIsWhatItsNameSays) {
    const auto beside = [&] { return TokenizerFiles::beside_model(path("model")); };
    write("model/LICENSE", "free");
    write("model/picture.png", "\x89PNG\r\n");
    write("model/notes.txt", std::string("a\0b", 3));
    write("model/key.pem", "-----BEGIN PRIVATE KEY-----");
    write("model/trainer_state.json", "{\"loss\": NaN}");
    const TokenizerFiles files = beside();
    make_folder(path("out"));
    files.write_to(path("out"));
    EXPECT_EQ(names_in(path("out")), (std::vector<std::string>{"LICENSE", "picture.png"}));
    ASSERT_EQ(files.left_out().size(), 3u);
    EXPECT_TRUE(says(files.left_out()[0], "key.pem is left out: it is of no kind that is known"));
    EXPECT_TRUE(says(files.left_out()[1], "notes.txt is left out: it is no text"));
    EXPECT_TRUE(says(files.left_out()[2], "trainer_state.json is left out: it is not valid JSON"));
    write("model/tokenizer_config.json", "-----BEGIN PRIVATE KEY-----");
    EXPECT_TRUE(says(error_of(beside), "tokenizer_config.json: it is not valid JSON"));
    fs::remove(path("model/tokenizer_config.json"));
    fs::create_symlink(path("secret"), path("model/tokenizer_config.json"));
    EXPECT_TRUE(says(error_of(beside), "is a link out of its folder"));
    EXPECT_TRUE(says(error_of([&] { TokenizerFiles{path("model")}; }), "is a link out of its folder"));
    fs::remove(path("model/tokenizer_config.json"));
    fs::create_symlink(path("secret"), path("model/README"));
    EXPECT_TRUE(says(error_of(beside), "is a link out of its folder"));
}

TEST_F(Trust, EveryTextHasALimit) {
    const auto sparse = [&](const std::string& name, uintmax_t bytes) {
        write(name, "{");
        fs::resize_file(path(name), bytes);
        return path(name);
    };
    EXPECT_TRUE(
        says(error_of([&] { read_file(sparse("a", 65 << 20)); }), "are too many for a text file (at most 64.0 MiB)"));
    EXPECT_TRUE(says(error_of([&] { read_toml(sparse("t", uintmax_t(8) << 30)); }), "are too many for a TOML file"));
    sparse("model/config.json", uintmax_t(1) << 40);
    EXPECT_TRUE(says(error_of([&] { load_config(path("model")); }),
                     "1099511627776 bytes are too many for a model's config.json (at most 4.00 MiB)"));
    sparse("model/tokenizer.json", 65 << 20);
    EXPECT_TRUE(says(error_of([&] { Tokenizer::load(path("model")); }), "are too many for a tokenizer"));
    sparse("model/model.safetensors.index.json", 33 << 20);
    EXPECT_TRUE(
        says(error_of([&] { HfWeights(path("model"), ParamTable(toy24())); }), "too many for an index of weights"));
    EXPECT_TRUE(says(error_of([] { read_file("/dev/zero"); }), "not a regular file"));
    EXPECT_TRUE(says(error_of([] { read_file("/proc/kmsg", kPrompt); }), "/proc/kmsg"));
}

TEST_F(Trust, AFewBytesOfJsonDoNotBecomeManyInMemory) {
    std::string many = "[";
    for (int i = 0; i < 120'000; ++i) many += "[],";
    EXPECT_TRUE(says(error_of([&] { parse_json(many + "0]", "x", kModelConfig); }),
                     "x: more than 100000 JSON values are too many for a model's config.json"));
    EXPECT_EQ(parse_json(many + "0]", "x").size(), 120'001u);
    EXPECT_TRUE(says(error_of([&] { parse_json(std::string(1 << 20, '['), "x"); }), "nested deeper than 100"));
}

}  // namespace
}  // namespace rz
