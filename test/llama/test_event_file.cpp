#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "llama/base/atomic_file.h"
#include "llama/base/crc32.h"
#include "llama/report/event_file.h"
#include "llama/report/wandb_file.h"
#include "test/checks.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

std::string hex(std::string_view bytes) {
    std::string text;
    for (const char b : bytes) text += format("%02x", unsigned(uint8_t(b)));
    return text;
}

template <class T>
T load(const std::string& bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

struct EventFileTest : testing::Test {
    const TempFolder folder;
    const std::string& folder_ = folder.path;
};

// The events of a file. Checks the framing as TensorBoard does: length, and a CRC made by another route than the
// writer's (bit by bit).
std::vector<std::string> events_of(const std::string& bytes) {
    const auto crc = [](std::string_view data) {
        uint32_t c = ~0u;
        for (const char b : data)
            for (int bit = 0; bit < 8; ++bit) {
                const uint32_t in = ((c ^ (uint32_t(uint8_t(b)) >> bit)) & 1) != 0;
                c = (c >> 1) ^ (in ? 0x82f63b78u : 0);
            }
        c = ~c;
        return ((c >> 15) | (c << 17)) + 0xa282ead8u;
    };
    std::vector<std::string> events;
    for (size_t at = 0; at < bytes.size();) {
        EXPECT_LE(at + 12, bytes.size()) << "torn record";
        const auto length = load<uint64_t>(bytes, at);
        EXPECT_LE(at + 16 + length, bytes.size()) << "torn record";
        EXPECT_EQ(load<uint32_t>(bytes, at + 8), crc(std::string_view(bytes).substr(at, 8)));
        events.push_back(bytes.substr(at + 12, length));
        EXPECT_EQ(load<uint32_t>(bytes, at + 12 + length), crc(events.back()));
        at += 16 + length;
    }
    return events;
}

TEST(EventRecord, MatchesTensorBoardsBytes) {
    EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
    EXPECT_EQ(hex(event_record(event_version(1700000000))),
              "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d");
    EXPECT_EQ(hex(event_record(event_scalars(1700000001, 10, {{"train/loss", 2.5f}}))),
              "200000000000000029eda9500900004040fc54d941100a2a130a110a0a747261696e2f6c6f73731500002040a6466f5b");
    EXPECT_EQ(hex(event_session_start(1700000000, 300)), "0900000040fc54d94110ac023a020801");
}

TEST_F(EventFileTest, HoldsVersionSessionStartAndScalars) {
    std::string path;
    {
        EventFile file(folder_, 7);
        path = file.path();
        EXPECT_TRUE(file.write(8, {{"train/loss", 2.5f}, {"train/lr", 1e-3f}}));
        EXPECT_EQ(events_of(read_file(path)).size(), 3u) << "handed over at once, not when the file is closed";
        EXPECT_TRUE(file.write(9, {}));
        EXPECT_TRUE(file.write(300, {{std::string(200, 't'), -1.0f}}));
    }
    EXPECT_TRUE(says(fs::path(path).filename().string(), "events.out.tfevents."));
    const std::vector<std::string> events = events_of(read_file(path));
    ASSERT_EQ(events.size(), 4u);
    const auto wall = load<double>(events[0], 1);
    EXPECT_GT(wall, 1.7e9);
    EXPECT_EQ(events[0].substr(9),
              "\x1a\x0d"
              "brain.Event:2");
    EXPECT_EQ(events[1].substr(9), "\x10\x07\x3a\x02\x08\x01");
    EXPECT_EQ(events[2].substr(9, 4), std::string("\x10\x08\x2a\x24"));
    EXPECT_TRUE(says(events[2], "train/lr"));
    EXPECT_EQ(events[3].substr(9, 3), "\x10\xac\x02");
}

TEST_F(EventFileTest, EachStartHasItsOwnFile) {
    const EventFile a(folder_, 0), b(folder_ + "/new", 0), c(folder_, 0);
    EXPECT_NE(a.path(), c.path());
    EXPECT_TRUE(fs::exists(b.path()));
}

TEST_F(EventFileTest, AFullDiskNeitherThrowsNorTearsTheFile) {
    EventFile file(folder_, 0);
    ASSERT_TRUE(file.write(1, {{"a", 1.0f}}));
    const std::string before = read_file(file.path());
    {
        const FileSizeLimit limit(before.size() + 10);
        EXPECT_FALSE(file.write(2, {{"a", 2.0f}}));
    }
    EXPECT_EQ(read_file(file.path()), before);
    EXPECT_TRUE(file.write(3, {{"a", 3.0f}}));
    EXPECT_EQ(events_of(read_file(file.path())).size(), 4u);
}

TEST_F(EventFileTest, AFolderThatCannotBeIsAnError) {
    write_file_atomically(folder_ + "/f", "");
    EXPECT_THROW(EventFile(folder_ + "/f", 0), Error);
}

// LevelDB's log: 7 bytes are left of a block for a first part without bytes, fewer are filled with zeros.
TEST(WandbRecord, IsInPartsWhereABlockEnds) {
    for (int64_t size = 2 * 32768 - 12; size <= 2 * 32768; ++size)
        for (const size_t n : {size_t(0), size_t(3), size_t(40000), size_t(70000)}) {
            const std::string data(n, 'a'), out = log_record(data, size);
            std::string read;
            std::vector<int> kinds;
            for (size_t at = 0; at < out.size();) {
                const size_t room = 32768 - (size_t(size) + at) % 32768;
                if (room < 7) {
                    ASSERT_EQ(out.substr(at, room), std::string(room, '\0'));
                    at += room;
                    continue;
                }
                ASSERT_LE(at + 7, out.size());
                const size_t length = load<uint16_t>(out, at + 4);
                ASSERT_LE(length + 7, room);
                ASSERT_LE(at + 7 + length, out.size());
                ASSERT_EQ(load<uint32_t>(out, at), crc32(std::string_view(out).substr(at + 6, length + 1)));
                kinds.push_back(out[at + 6]);
                read += out.substr(at + 7, length);
                at += 7 + length;
            }
            ASSERT_EQ(read, data) << size;
            ASSERT_FALSE(kinds.empty());
            if (kinds.size() == 1) {
                ASSERT_EQ(kinds[0], 1);  // full
                continue;
            }
            for (size_t i = 0; i < kinds.size(); ++i)
                ASSERT_EQ(kinds[i], i == 0 ? 2 : i + 1 < kinds.size() ? 3 : 4) << size;  // first, middle, last
        }
}

}  // namespace
}  // namespace rz
