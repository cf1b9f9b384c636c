#include "llama/checkpoint/after_save.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "llama/base/atomic_file.h"
#include "llama/base/shell.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "test/checks.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

class AfterSaveTest : public testing::Test {
   protected:
    void checkpoint(int64_t step) {
        make_folder(store_->path(step));
        write_file_atomically(store_->path(step) + "/" + kManifestName, "{}");
        store_->mark(step);
    }
    std::string log() { return text_in(run_ / "log"); }

    const TempFolder run_;
    const std::unique_ptr<CheckpointStore> store_ = std::make_unique<CheckpointStore>(run_.path);
};

TEST_F(AfterSaveTest, SeesEachCheckpointOnceAndInOrder) {
    checkpoint(2);
    checkpoint(4);
    checkpoint(30);
    AfterSave hook("echo $RINGZERO_STEP $(basename $RINGZERO_CHECKPOINT) >> $RINGZERO_OUT/log", *store_);
    hook.finish(20);
    checkpoint(32);
    hook.saved(32);
    hook.finish(20);
    EXPECT_EQ(log(), "2 step_000000002\n4 step_000000004\n30 step_000000030\n32 step_000000032\n");
    EXPECT_TRUE(store_->marked().empty());
    ASSERT_EQ(hook.lines().size(), 1u) << "that earlier ones are done now";
}

TEST_F(AfterSaveTest, WhatFailsStaysMarkedAndIsNotCollected) {
    for (const int64_t step : {2, 4, 6}) checkpoint(step);
    {
        AfterSave hook("echo x >> $RINGZERO_OUT/log; [ $RINGZERO_STEP = 4 ]", *store_);
        hook.finish(3);  // the first one is in its pause
    }
    EXPECT_EQ(store_->marked(), (std::vector<int64_t>{2, 4, 6}));
    store_->collect(1, 0);
    EXPECT_EQ(store_->steps(), (std::vector<int64_t>{2, 4, 6}));
    store_->unmark(4);
    store_->collect(1, 0);
    EXPECT_EQ(store_->steps(), (std::vector<int64_t>{2, 6}));
    {
        AfterSave hook("true", *store_);
        hook.finish(20);
    }
    store_->collect(1, 0);
    EXPECT_EQ(store_->steps(), (std::vector<int64_t>{6}));
}

// The disk has an end. The command may be at the oldest, and the newest are worth the most.
TEST_F(AfterSaveTest, AtMostSomeWaitForACommandThatFails) {
    for (int64_t step = 1; step <= kMostHeld + 3; ++step) checkpoint(step);
    EXPECT_EQ(store_->collect(2, 0), (std::vector<int64_t>{2, 3, 4}));
    EXPECT_EQ(store_->steps(), (std::vector<int64_t>{1, 5, 6, 7, 8, 9, 10, 11}));
    EXPECT_EQ(store_->marked(), store_->steps());
    EXPECT_EQ(store_->collect(2, 0), std::vector<int64_t>{});
    EXPECT_EQ(store_->collect(2, 0, -1, 0, /*most_held=*/1), (std::vector<int64_t>{5, 6, 7, 8, 9}));
    EXPECT_EQ(store_->steps(), (std::vector<int64_t>{1, 10, 11}));
}

TEST_F(AfterSaveTest, AMarkOfNoCheckpointGoes) {
    checkpoint(2);
    fs::remove_all(store_->path(2));
    write_file_atomically(store_->folder() + "/.after-save-4x", "");
    store_->clean();
    EXPECT_TRUE(store_->marked().empty());
}

TEST_F(AfterSaveTest, ACommandThatHangsEndsWithTheRun) {
    checkpoint(2);
    const auto began = std::chrono::steady_clock::now();
    {
        AfterSave hook("sleep 600 & sleep 600", *store_);
        hook.finish(0.3);
        const std::vector<std::string> lines = hook.lines();
        ASSERT_EQ(lines.size(), 2u);
        EXPECT_TRUE(says(lines[1], "not done for 1 checkpoint"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(120));
    EXPECT_EQ(store_->marked(), (std::vector<int64_t>{2}));
}

TEST(Shell, SaysHowACommandEnded) {
    EXPECT_EQ(run_shell({.text = "true", .environment = {}}), "");
    EXPECT_EQ(run_shell({.text = "exit 3", .environment = {}}), "ended with exit code 3");
    EXPECT_EQ(run_shell({.text = "kill -9 $$", .environment = {}}), "was ended by signal 9 (Killed)");
    EXPECT_EQ(run_shell({.text = "sleep 600", .environment = {}, .seconds = 0.1}), "took more than 0 s and was ended");
    EXPECT_EQ(run_shell({.text = "cat", .environment = {}}), "") << "standard input is empty";
}

TEST(Shell, TheLaunchersVariablesStayAway) {
    setenv("PMI_RANK", "1", 1);
    setenv("RZ_OTHER", "a b", 1);
    EXPECT_EQ(run_shell({.text = "[ -z \"$PMI_RANK\" ] && [ \"$RZ_OTHER\" = 'a b' ] && [ \"$OWN\" = \"it's\" ]",
                         .environment = {"OWN=it's"}}),
              "");
    unsetenv("PMI_RANK");
    unsetenv("RZ_OTHER");
}

// A launcher waits for whoever holds the other end of its pipes.
TEST(Shell, TheLaunchersDescriptorsStayAway) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    EXPECT_EQ(run_shell({.text = format("! [ -e /proc/self/fd/%d ]", ends[1]), .environment = {}}), "");
    close(ends[0]);
    close(ends[1]);
}

}  // namespace
}  // namespace rz
