// The drawing of who is where, by hand.

#include <gtest/gtest.h>

#include "comm/layout_text.h"
#include "kernels/runtime/check.h"

namespace rz {
namespace {

using Lines = std::vector<std::string>;

TEST(LayoutText, DrawsStagesAndGroups) {
    EXPECT_EQ(layout_text(Grid(8, {.tp = 2, .pp = 2}), Lines(8, "a")),
              (Lines{"axes tp 2 x dp 2 x pp 2, neighbouring ranks first, on 1 host", "pp 0: [0 1] [2 3]",
                     "pp 1: [4 5] [6 7]"}));
    EXPECT_EQ(layout_text(Grid(4, {.pp = 2}), Lines(4, "a")),
              (Lines{"axes dp 2 x pp 2, neighbouring ranks first, on 1 host", "pp 0: 0 1", "pp 1: 2 3"}));
    EXPECT_EQ(layout_text(Grid(4, {.tp = 2, .order = {Axis::dp, Axis::tp, Axis::cp, Axis::pp}}), Lines(4, "a")),
              (Lines{"axes dp 2 x tp 2, neighbouring ranks first, on 1 host", "pp 0: [0 2] [1 3]"}));
}

TEST(LayoutText, CountsGroupsThatLeaveAHost) {
    EXPECT_EQ(layout_text(Grid(8, {.tp = 2, .pp = 2}), {"a", "a", "a", "a", "b", "b", "b", "b"}).back(),
              "groups on several hosts: tp 0 of 4, dp 0 of 4, pp 4 of 4");
    EXPECT_EQ(layout_text(Grid(4, {.tp = 2}), {"a", "b", "b", "b"}).back(),
              "groups on several hosts: tp 1 of 2, dp 1 of 2");
    const Lines large = layout_text(Grid(128, {.tp = 8, .pp = 2}), Lines(128, "a"));
    EXPECT_EQ(large, Lines{"axes tp 8 x dp 8 x pp 2, neighbouring ranks first, on 1 host"}) << "too many to draw";
    EXPECT_THROW(layout_text(Grid(4, {}), Lines(3, "a")), Error);
}

}  // namespace
}  // namespace rz
