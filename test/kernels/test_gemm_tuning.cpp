// The file that keeps cuBLASLt's algorithms: what is written is read, and nothing else is.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/context.h"
#include "test/checks.h"

namespace rz {
namespace {

class GemmCacheTest : public testing::Test {
   protected:
    void set_text(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

    const TempFolder folder_;
    const std::string path_ = folder_ / "cache.txt";
    const std::string key_ =
        "NVIDIA H200, cuBLASLt 13.1.0\tbf16 (24 x 40 x 16), B^T, C bf16, strides 16 16 40, aligned to 256";
    const GemmChoice choice_ = {0, 1, 0xff, 0x7f, 10, 9, 32, 255};
};

TEST_F(GemmCacheTest, WhatIsWrittenIsRead) {
    EXPECT_TRUE(read_gemm_cache(path_, key_, 8).empty());
    const GemmChoice other = {8, 7, 6, 5, 4, 3, 2, 1};
    write_gemm_cache(path_, key_, choice_, 12.5);
    write_gemm_cache(path_, key_ + "2", other, 1);
    EXPECT_EQ(read_gemm_cache(path_, key_, 8), std::vector<GemmChoice>{choice_});
    EXPECT_EQ(read_gemm_cache(path_, key_ + "2", 8), std::vector<GemmChoice>{other});
    EXPECT_TRUE(read_gemm_cache(path_, key_.substr(0, key_.size() - 1), 8).empty());  // a key is no prefix
    EXPECT_TRUE(read_gemm_cache(path_, key_, 16).empty());                            // another library's size
    write_gemm_cache(path_, key_, other, 2);
    EXPECT_EQ(read_gemm_cache(path_, key_, 8), std::vector<GemmChoice>{other});
    EXPECT_EQ(read_gemm_cache(path_, key_ + "2", 8), std::vector<GemmChoice>{other});
}

// Any byte changed or lost anywhere in the line: passed over. Only the key's own letters may spell another key.
TEST_F(GemmCacheTest, DamagedLinesArePassedOver) {
    write_gemm_cache(path_, key_, choice_, 12.5);
    const std::string good = text_in(path_);
    for (size_t i = 0; i < good.size(); ++i) {
        for (const char c : {char(good[i] ^ 1), '\n', '\t', '\0', char(0xff)}) {
            if (c == good[i]) continue;
            std::string bad = good;
            bad[i] = c;
            set_text(bad);
            EXPECT_TRUE(read_gemm_cache(path_, key_, 8).empty()) << "byte " << i << " became " << int(c);
        }
        set_text(good.substr(0, i));
        EXPECT_TRUE(read_gemm_cache(path_, key_, 8).empty()) << "cut at " << i;
    }
    // Damage around it does not hide the good line, and goes when the file is written again.
    set_text("damaged\n\t\t\t\n" + std::string(100000, 'x') + "\n" + std::string("\0\0\n", 3) + good +
             "no end of line");
    EXPECT_EQ(read_gemm_cache(path_, key_, 8), std::vector<GemmChoice>{choice_});
    write_gemm_cache(path_, key_ + "2", choice_, 1);
    EXPECT_EQ(text_in(path_).find("damaged"), std::string::npos);
    EXPECT_EQ(read_gemm_cache(path_, key_, 8), std::vector<GemmChoice>{choice_});
}

TEST_F(GemmCacheTest, NoiseIsPassedOver) {
    std::mt19937 random(1);
    for (int i = 0; i < 200; ++i) {
        std::string noise = "gemm1\t" + key_ + "\t";
        for (int j = 0; j < 200; ++j) noise += "\t\n0123456789abcdef\xff"[random() % 19];
        set_text(noise);
        EXPECT_TRUE(read_gemm_cache(path_, key_, 8).empty());
    }
}

// No regular file, or one too big: as if there were none. A pipe without a writer must not make anyone wait.
TEST_F(GemmCacheTest, WhatIsNoRegularFileHoldsNothing) {
    ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
    EXPECT_TRUE(read_gemm_cache(path_, key_, 8).empty());
    EXPECT_TRUE(read_gemm_cache(folder_.path, key_, 8).empty());
    EXPECT_TRUE(read_gemm_cache("/dev/zero", key_, 8).empty());
    std::filesystem::remove(path_);
    write_gemm_cache(path_, key_, choice_, 1);
    std::filesystem::resize_file(path_, 64 << 20);
    EXPECT_TRUE(read_gemm_cache(path_, key_, 8).empty());
}

// Writers at the same time lose no line, and a reader never sees half a file.
TEST_F(GemmCacheTest, WritersAtTheSameTimeLoseNothing) {
    write_gemm_cache(path_, key_, choice_, 1);
    std::vector<pid_t> children;
    for (int rank = 0; rank < 3; ++rank) {
        const pid_t pid = fork();
        if (pid == 0) {
            for (int i = 0; i < 10; ++i)
                write_gemm_cache(path_, key_ + format(" rank %d shape %d", rank, i),
                                 GemmChoice(8, (unsigned char)(rank * 10 + i)), 1);
            _exit(0);
        }
        children.push_back(pid);
    }
    for (int i = 0; i < 200; ++i) ASSERT_EQ(read_gemm_cache(path_, key_, 8).size(), 1u);
    for (const pid_t pid : children) {
        int status = -1;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 0);
    }
    for (int rank = 0; rank < 3; ++rank)
        for (int i = 0; i < 10; ++i)
            EXPECT_EQ(read_gemm_cache(path_, key_ + format(" rank %d shape %d", rank, i), 8),
                      std::vector<GemmChoice>{GemmChoice(8, (unsigned char)(rank * 10 + i))});
}

TEST_F(GemmCacheTest, UnwritableIsSaid) {
    EXPECT_TRUE(says(error_of([&] { write_gemm_cache(folder_ / "nowhere/cache.txt", key_, choice_, 1); }),
                     "/nowhere/cache.txt"));
}

TEST_F(GemmCacheTest, FlagsSayWhatTheyDo) {
    RankContext context;
    const Device cpu{DeviceKind::cpu, 0, &context}, cuda{DeviceKind::cuda, 0, &context};
    const GemmTuning& tuning = gemm_tuning(context);
    EXPECT_EQ(set_gemm_tuning(cpu, GemmTune::off, ""), "");
    EXPECT_NE(set_gemm_tuning(cpu, GemmTune::on, "").find("no effect on the CPU"), std::string::npos);
    EXPECT_EQ(tuning.tune, GemmTune::off);
    EXPECT_NE(set_gemm_tuning(cpu, GemmTune::off, path_).find("no effect on the CPU"), std::string::npos);
    EXPECT_EQ(set_gemm_tuning(cuda, GemmTune::off, ""), "");
    EXPECT_EQ(set_gemm_tuning(cuda, GemmTune::off, path_), "");
    EXPECT_EQ(tuning.tune, GemmTune::off);
    EXPECT_EQ(tuning.cache_file, path_);
    set_gemm_tuning(cuda, GemmTune::bits_free, folder_ / "made/cache.txt");
    EXPECT_EQ(tuning.tune, GemmTune::bits_free);
    EXPECT_TRUE(std::filesystem::is_directory(folder_ / "made"));
    std::ofstream(folder_ / "file") << "x";
    EXPECT_THROW(set_gemm_tuning(cuda, GemmTune::on, folder_ / "file/cache.txt"), Error);
}

}  // namespace
}  // namespace rz
