#include "llama/data/shard_sums.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "llama/base/atomic_file.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

class ShardSumsTest : public testing::Test {
   protected:
    ShardSumsTest() {
        for (const char* file : {"a.bin", "b.bin", "c.bin"}) {
            std::string text;
            for (int i = 0; i < 300003; ++i) text += char(i * 7 + file[0]);  // no multiple of 8
            write_file_atomically(path(file), text);
        }
    }
    std::string path(const std::string& file) const { return folder_ / file; }
    std::vector<std::string> files() const { return {path("a.bin"), path("b.bin"), path("c.bin")}; }

    static void wait_for(const ShardSums& sums, size_t n) {
        for (int i = 0; i < 6000 && sums.known().size() < n; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    static std::vector<ShardSum> sums_of(const std::vector<std::string>& files) {
        ShardSums sums(files);
        sums.start();
        wait_for(sums, files.size());
        return sums.known();
    }
    std::vector<ShardSum> all_sums() { return sums_of(files()); }
    void change(const std::string& file, int64_t at) { flip_bit(path(file), at); }
    static std::string difference(const std::vector<std::string>& files, const std::vector<ShardSum>& recorded) {
        std::string text;
        run_processes(1, [&](Process& process) {
            ShardSums sums(files);
            text = sums.compare(recorded, {}, process);
            if (text.empty()) {
                EXPECT_EQ(sums.known().size(), files.size());
            }
        });
        return text;
    }
    std::string compare(const std::vector<ShardSum>& recorded) { return difference(files(), recorded); }

    const TempFolder folder_;
};

TEST_F(ShardSumsTest, AnyChangedByteIsFound) {
    const std::vector<ShardSum> sums = all_sums();
    ASSERT_EQ(sums.size(), 3u);
    EXPECT_EQ(compare(sums), "");
    for (const int64_t at : {int64_t(0), int64_t(7), int64_t(150001), int64_t(300000), int64_t(300002)}) {
        change("b.bin", at);
        EXPECT_TRUE(says(compare(sums), "b.bin has the same size but other contents")) << at;
        change("b.bin", at);  // back: only the time of change is another
        EXPECT_EQ(compare(sums), "") << at;
    }
}

// The CRC-32 of what follows a shard's header, as dataset.json has it. zlib gives cbf43926 for 123456789.
TEST_F(ShardSumsTest, AFlippedBitIsFoundAtAFirstStart) {
    std::string shard(1024, 'h');
    shard += "123456789";
    write_file_atomically(path("a.bin"), shard);
    const auto damage = [&] {
        ShardSums sums(files());
        sums.expect(path("a.bin"), 0xcbf43926);
        sums.start();
        wait_for(sums, 3);
        return sums.damaged();
    };
    EXPECT_EQ(damage(), "");
    change("a.bin", 3);  // the header is not summed
    EXPECT_EQ(damage(), "");
    change("a.bin", 1030);
    EXPECT_TRUE(says(damage(), "a.bin: the CRC-32 of its tokens is"));
}

// prepare.py gives each data set the same names. Each file is that of its folder; a folder that was renamed is
// known by its place; manifests that have neither are still read.
TEST_F(ShardSumsTest, SetsWithShardsOfOneName) {
    std::vector<std::string> paths;
    for (const char* set : {"one", "two"}) {
        fs::create_directory(path(set));
        fs::copy_file(path(set[0] == 'o' ? "a.bin" : "b.bin"), path(set) + "/s.bin");
        paths.push_back(path(set) + "/s.bin");
    }
    std::vector<ShardSum> sums = sums_of(paths);
    ASSERT_EQ(sums.size(), 2u);
    EXPECT_NE(sums[0].sum, sums[1].sum);
    std::vector<ShardSum> old = sums;
    for (ShardSum& s : sums) s.changed -= 1;  // each is read
    for (ShardSum& s : old) s.changed -= 1, s.place = -1, s.folder = s.given = "";
    EXPECT_EQ(difference(paths, sums), "");
    EXPECT_EQ(difference({paths[1], paths[0]}, sums), "") << "by folder, in another order";
    EXPECT_EQ(difference(paths, old), "");
    fs::rename(path("one"), path("renamed"));
    const std::vector<std::string> renamed = {path("renamed") + "/s.bin", paths[1]};
    EXPECT_EQ(difference(renamed, sums), "");
    fs::remove_all(path("renamed"));
    fs::create_directory(path("renamed"));
    fs::copy_file(path("c.bin"), path("renamed") + "/s.bin");
    EXPECT_TRUE(says(difference(renamed, sums), "renamed/s.bin has the same size but other contents"));
    EXPECT_TRUE(says(difference(renamed, old), "other contents"));
}

TEST_F(ShardSumsTest, WhatIsUnchangedIsNotReadAgain) {
    std::vector<ShardSum> sums = all_sums();
    sums[0].sum ^= 1;  // would be found if the file were read
    EXPECT_EQ(compare(sums), "");
    sums[0].changed -= 1;
    EXPECT_NE(compare(sums), "");
}

TEST_F(ShardSumsTest, FilesThatComeLaterAreSummedToo) {
    const std::vector<ShardSum> all = all_sums();
    ShardSums sums({path("a.bin")});
    sums.start();
    for (const size_t n : {2u, 3u}) {
        std::vector<std::string> so_far = files();
        so_far.resize(n);
        sums.follow(so_far);
        wait_for(sums, n);
        EXPECT_EQ(sums.known(), std::vector<ShardSum>(all.begin(), all.begin() + long(n)));
    }
}

TEST_F(ShardSumsTest, RanksShareTheFilesAndAgree) {
    const std::vector<ShardSum> sums = all_sums();
    change("c.bin", 150000);  // the third rank's
    std::vector<std::string> texts(3);
    run_processes(3, [&](Process& process) {
        texts[size_t(process.rank())] = ShardSums(files()).compare(sums, {process.rank(), 3}, process);
    });
    for (const std::string& text : texts) EXPECT_TRUE(says(text, "c.bin has the same size"));
}

}  // namespace
}  // namespace rz
