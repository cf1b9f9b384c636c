// Texts of another host about snapshots, changed: refused, or of the snapshot's folder and of lengths that can be.

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "comm/loopback.h"
#include "comm/process.h"
#include "llama/train/courier.h"
#include "llama/train/snapshot_words.h"
#include "test/checks.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

const CopyLayout kLayout{
    .files = {"model.safetensors", "optimizer/m.safetensors"},
    .runs = {{.file = 0, .offset = 80, .bytes = 40, .at = 0}, {.file = 1, .offset = 120, .bytes = 16, .at = 64}},
    .bytes = 80};

bool inside(const std::string& file) { return !file.empty() && file[0] != '/' && file.find("..") == file.npos; }

void expect_possible(const CopyLayout& l) {
    int64_t end = 0;
    for (const CopyLayout::Run& r : l.runs) {
        EXPECT_TRUE(r.file >= 0 && r.file < std::ssize(l.files) && r.offset >= 0 && r.bytes > 0);
        EXPECT_TRUE(r.at >= end && r.bytes <= l.bytes && r.at <= l.bytes - r.bytes);
        end = r.at + r.bytes;
    }
    for (const std::string& file : l.files) EXPECT_TRUE(inside(file)) << file;
}

// Every bit and every end of a text, which `read` may refuse.
void change(const std::string& text, const std::function<void(const std::string&)>& read) {
    const auto may_refuse = [&](const std::string& changed) { return error_of([&] { read(changed); }); };
    for (size_t n = 0; n < text.size(); ++n) {
        may_refuse(text.substr(0, n));
        for (int bit = 0; bit < 8; ++bit) {
            std::string changed = text;
            changed[n] = char(changed[n] ^ (1 << bit));
            may_refuse(changed);
        }
    }
}

TEST(SnapshotWords, AShareIsRefusedOrPossible) {
    const std::string good = to_text(kLayout);
    EXPECT_EQ(to_text(layout_from(good, "test")), good);
    const auto with = [](const char* files, const char* bytes, const char* runs) {
        return format(R"({"files": %s, "bytes": %s, "runs": %s})", files, bytes, runs);
    };
    EXPECT_NO_THROW(layout_from(with(R"(["a"])", "8", "[[0, 0, 8, 0]]"), "test"));
    for (const char* files : {R"(["../a"])", R"(["/etc/passwd"])", R"([""])", R"(["a/../../b"])", R"(["a\u0000b"])",
                              "[7]", R"("a")", "{}", "null"})
        EXPECT_THROW(layout_from(with(files, "8", "[]"), "test"), Error) << files;
    for (const char* bytes : {"-1", "8.5", "1e300", "9223372036854775807", "18446744073709551615", R"("8")", "[]"})
        EXPECT_THROW(layout_from(with(R"(["a"])", bytes, "[]"), "test"), Error) << bytes;
    for (const char* run : {"[1, 0, 8, 0]", "[-1, 0, 8, 0]", "[0, -1, 8, 0]", "[0, 9223372036854775807, 8, 0]",
                            "[0, 0, 0, 0]", "[0, 0, -8, 0]", "[0, 0, 9, 0]", "[0, 0, 8, 1]", "[0, 0, 8, -1]",
                            "[0, 0, 8]", "[]", "8", "[[0], 0, 8, 0]", "[0, 0, 4, 0], [0, 0, 4, 3]", "[0, 0, 1e300, 0]"})
        EXPECT_THROW(layout_from(with(R"(["a"])", "8", ("[" + std::string(run) + "]").c_str()), "test"), Error) << run;
    EXPECT_THROW(layout_from(std::string(100000, '['), "test"), Error);
    change(good, [](const std::string& text) { expect_possible(layout_from(text, "test")); });
}

TEST(SnapshotWords, AListIsRefusedOrNamesRanksAndAnAttempt) {
    const std::string good = "12 0a1b2c3d-00ff 0 1\n15 0a1b2c3d-01ff 0\n";
    const auto found = snapshots_in({good, "", "12 0a1b2c3d-00ff 2\n"}, {0, 2});
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found.at({12, "0a1b2c3d-00ff"}).hosts, (std::vector<int>{0, 2}));
    EXPECT_EQ(found.at({12, "0a1b2c3d-00ff"}).hosts_of.at(2), (std::vector<int>{2}));
    for (const char* line : {"12", "x 0a1b 0", "-3 0a1b 0", "99999999999999999999 0a1b 0", "12 ../../x 0", "12 a/b 0",
                             "12 0a1b 3", "12 0a1b -1", "12 0a1b 0 x", "12 0a1b 99999999999999999999", ""})
        EXPECT_THROW(snapshots_in({std::string(line) + "\n", "", ""}, {0, 2}), Error) << line;
    EXPECT_THROW(snapshots_in({"", good, ""}, {0, 2}), Error) << "of a rank that makes no folders";
    change(good, [](const std::string& text) {
        for (const auto& [snapshot, where] : snapshots_in({text, "", ""}, {0, 2})) {
            EXPECT_GE(snapshot.first, 0);
            EXPECT_EQ(snapshot.second.find_first_of("/."), std::string::npos);
            for (const auto& [rank, hosts] : where.hosts_of) EXPECT_TRUE(rank >= 0 && rank < 3);
        }
    });
}

TEST(SnapshotWords, ASkeletonIsRefusedOrStaysInItsFolder) {
    const TempFolder temporary;
    const fs::path work = temporary / "work";
    const std::string folder = work / "within/step";
    const auto make = [&](const std::string& text) {
        fs::remove_all(work);
        fs::create_directories(folder);
        const auto leave = [&] {
            EXPECT_EQ(std::distance(fs::directory_iterator(work), {}), 1) << text;
            EXPECT_EQ(std::distance(fs::directory_iterator(work / "within"), {}), 1) << text;
        };
        try {
            make_skeleton(text, folder);
        } catch (const Error&) {
            leave();
            throw;
        }
        leave();
    };
    const std::string good = R"([["optimizer/m.safetensors",100,4],["manifest.json",3,3]])"
                             "\nHEADabc";
    make(good);
    EXPECT_EQ(fs::file_size(folder + "/optimizer/m.safetensors"), 100u);
    EXPECT_EQ(text_in(folder + "/manifest.json"), "abc");
    for (const char* text : {"",
                             "\n",
                             "[]",
                             "{",
                             R"([["a",3,3]])",
                             "[[\"a\",3,3]]\nab",
                             "[[\"a\",3,3]]\nabcd",
                             "[[\"a\",2,3]]\nabc",
                             "[[\"a\",-1,0]]\n",
                             "[[\"a\",3,-1]]\n",
                             "[[\"a\",1e300,0]]\n",
                             "[[\"a\",9223372036854775807,0]]\n",
                             "[[\"../a\",3,3]]\nabc",
                             "[[\"/tmp/a\",3,3]]\nabc",
                             "[[\"b/../../a\",3,3]]\nabc",
                             "[[\"\",3,3]]\nabc",
                             "[[\"a\\u0000b\",3,3]]\nabc",
                             "[[3,3,3]]\nabc",
                             "[[\"a\",3]]\nabc",
                             "[\"a\"]\n",
                             "[[\"a\",\"3\",3]]\nabc"})
        EXPECT_THROW(make(text), Error) << text;
    EXPECT_THROW(make(std::string(100000, '[') + "\n"), Error);
    change(good, make);
}

// Rank 1 says what it wants, in place of a courier.
using Say = std::function<void(MessageGroup&)>;
void with_a_liar(const std::vector<Say>& says, const std::function<void(Courier&)>& body) {
    LoopbackHub hub(2, 5);
    hub.run([&](int rank) {
        Process process(hub, rank);
        process.run([&] {
            if (rank == 0) {
                Courier courier(process);
                body(courier);
                return 0;
            }
            const auto transport = process.make_transport(TransportKind::automatic, Device{}, 0, rank, "snapshots");
            Stream stream(Device{}, "lies");
            for (const Say& say : says) {
                MessageGroup group;
                say(group);
                transport->exchange(stream, group);
                try {
                    stream.synchronize();
                } catch (const Error&) {  // rank 0 does not take it
                }
            }
            return 0;
        });
    });
}

TEST(SnapshotCourier, LengthsThatCannotBe) {
    for (const int64_t length : {int64_t(-1), int64_t(1) << 40, INT64_MAX, INT64_MIN})
        with_a_liar({[&](MessageGroup& g) { g.send(&length, 8, 0); }},
                    [&](Courier& courier) { EXPECT_THROW(courier.texts({}, {1}), Error) << length; });
}

TEST(SnapshotCourier, ATextThatIsShorterThanWasSaid) {
    const int64_t length = 100;
    const std::string text(50, 'x');
    with_a_liar({[&](MessageGroup& g) { g.send(&length, 8, 0); }, [&](MessageGroup& g) { g.send(text.data(), 50, 0); }},
                [](Courier& courier) { EXPECT_THROW(courier.texts({}, {1}), Error); });
}

// Nothing of a piece with another sum is written.
TEST(SnapshotCourier, SlicesWithAnotherSum) {
    const std::string slice(1000, 'x');
    for (const uint64_t off : {0, 1}) {
        const uint64_t sum = sum_of_piece(slice.data(), 1000) + off;
        int written = 0;
        with_a_liar({[&](MessageGroup& g) { g.send(slice.data(), 1000, 0), g.send(&sum, 8, 0); }},
                    [&](Courier& courier) {
                        std::vector<Incoming> in;
                        in.push_back({.from = 1, .bytes = 1000, .write = [&](auto...) { ++written; }});
                        if (off)
                            EXPECT_THROW(courier.move({}, std::move(in)), Error);
                        else
                            EXPECT_NO_THROW(courier.move({}, std::move(in)));
                    });
        EXPECT_EQ(written, off ? 0 : 1);
    }
}

}  // namespace
}  // namespace rz
